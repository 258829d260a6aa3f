"""Force-unlock: wrong input, changed holders, refusals, unknown outcomes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote, urljoin

import pytest

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.stores.request_types import Remove
from tests.support.board import Board

FIELDS = {"name": "a", "uuid": "u1", "reason": "it hangs"}


@pytest.fixture
def board() -> Iterator[Board]:
    with Board("--allow-force-unlock --force-unlock-limit 1000") as started:
        started.store.take("a", uuid="u1")
        yield started


def unlock(board: Board, path: str = "/api/locks/a/force-unlock", **changes: Any) -> Any:
    return board.post(path, json=FIELDS | changes)


def holder(board: Board, name: str = "a") -> str | None:
    return board.store.holder(name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "A"}, "the name that was typed is 'A'"),
        ({"name": "a "}, "the lock's name is 'a'"),
        ({"name": ""}, "the field name"),
        ({"name": ["a"]}, "the field name"),
        ({"uuid": ""}, "the field uuid"),
        ({"uuid": None}, "the field uuid"),
        ({"reason": " \n"}, "the field reason"),
        ({"reason": "x" * 501}, "500 characters"),
    ],
)
def test_a_missing_or_mistyped_field_unlocks_nothing(
    board: Board, changes: dict[str, Any], said: str
) -> None:
    answer = unlock(board, **changes)
    assert answer.status_code == 400
    assert answer.json["error"].startswith("Nothing was unlocked: ")
    assert said in answer.json["error"]
    assert holder(board) == "u1"


def test_a_malformed_or_oversized_body_unlocks_nothing(board: Board) -> None:
    path = "/api/locks/a/force-unlock"
    for body in (b"", b"{", b"[]", b'"a"', b"null", b"[" * 5000):
        answer = board.post(path, data=body, content_type="application/json")
        assert answer.status_code == 400
    assert unlock(board, reason="x" * 20_000).status_code == 413
    assert holder(board) == "u1"


@pytest.mark.parametrize("name", [".", "..", "b/c", "force-unlock", "x/force-unlock", "<b>", "🔒"])
def test_every_name_can_be_unlocked(board: Board, name: str) -> None:
    for path in (
        f"/api/locks/{quote(name, safe='')}/force-unlock",
        f"/api/lock/force-unlock?name={quote(name, safe='')}",
    ):
        board.store.take(name, uuid="u2")
        answer = unlock(board, path, name=name, uuid="u2")
        assert answer.status_code == 200, answer.get_data(as_text=True)
        assert holder(board, name) is None
    board.store.take(name, uuid="u2")
    page = board.html(f"/lock?name={quote(name, safe='')}")
    form = board.html(_address(r'href="([^"]*/force-unlock\?[^"]*uuid=u2)"', page))
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
    answer = board.post(
        _address(r'<form [^>]*action="([^"]*/force-unlock[^"]*)"', form),
        data=fields | {"name": name, "reason": "it hangs"},
        headers={"Origin": "http://localhost"},
    )
    assert (answer.status_code, holder(board, name)) == (303, None)


def _address(pattern: str, page: str) -> str:
    """Return the first address that a page has so, as a browser asks for it: it resolves dots."""
    return urljoin("http://localhost/", unescape(re.findall(pattern, page)[0]))


def test_a_changed_holder_is_not_unlocked(board: Board) -> None:
    board.store.before_removing = lambda _: board.store.take("a", uuid="u2", hostname="other")
    for _ in range(2):
        answer = unlock(board)
        assert answer.status_code == 409
        assert "It is now held by other" in answer.json["error"]
        assert holder(board) == "u2"
    assert board.get("/api/removed").json["total"] == 0


def test_two_concurrent_force_unlocks_remove_one_holder_once(board: Board) -> None:
    both, codes = threading.Barrier(2), list[int]()
    board.store.before_removing = lambda _: both.wait(60)
    board.settle()
    people = [
        threading.Thread(target=lambda: codes.append(unlock(board).status_code)) for _ in range(2)
    ]
    for person in people:
        person.start()
    for person in people:
        person.join(60)
    assert sorted(codes) == [200, 409]
    assert (board.get("/api/removed").json["total"], holder(board)) == (1, None)


def test_a_released_lock_is_409(board: Board) -> None:
    board.store.release("a")
    answer = unlock(board)
    assert (answer.status_code, "held by nobody" in answer.json["error"]) == (409, True)


def test_an_unreachable_store_gets_no_request(board: Board) -> None:
    board.settle()
    board.store.reachable = False
    assert unlock(board).status_code == 503
    assert (board.store.questions, holder(board)) == (0, "u1")


@pytest.mark.parametrize(
    ("error", "code", "said", "result"),
    [
        (StoreUnavailable("No answer."), 503, "It is unknown", "unknown"),
        (StoreUnavailable("No member.", unknown=False), 502, "Nothing was unlocked", "failed"),
        (StoreError("permission denied"), 502, "Nothing was unlocked: permission", "failed"),
        (StoreError("No space.", unknown=True), 503, "It is unknown", "unknown"),
    ],
)
def test_a_failing_store_is_explained(
    board: Board, error: Exception, code: int, said: str, result: str
) -> None:
    def fail(_: Remove) -> None:
        raise error

    board.store.before_removing = fail
    answer = unlock(board)
    assert (answer.status_code, said in answer.json["error"]) == (code, True)
    metrics = board.html("/metrics")
    assert f'mutexdash_force_unlocks_total{{result="{result}"}} 1.0' in metrics


def test_an_oversized_record_is_cut(board: Board) -> None:
    board.store.take("a", uuid="u1", reason="r" * 30_000, backtrace="b" * 30_000 + "innermost")
    removed = unlock(board).json["removed"]
    assert (len(removed["reason"]), len(removed["backtrace"])) == (4096, 16384)
    assert removed["backtrace"].endswith("innermost")


def test_the_error_page_names_the_cause_and_links_back(board: Board) -> None:
    answer = sent(board, uuid="u0")
    assert answer.status_code == 409
    for part in ("Nothing was unlocked", 'href="/lock/a"'):
        assert part in answer.get_data(as_text=True)


# ---------------------------------------------------------------- a lock of a newer format


def sent(board: Board, **more: str) -> Any:
    """Send the form as a browser does."""
    headers = {"Origin": "http://localhost"}
    return board.post("/locks/a/force-unlock", data=FIELDS | more, headers=headers)


def test_a_person_can_remove_a_lock_of_a_newer_format(board: Board) -> None:
    board.store.take("a", uuid="u1", format=2)
    assert "its format 2 is newer" in board.html("/locks/a/force-unlock?uuid=u1")
    assert sent(board).status_code == 303
    assert holder(board) is None


class TestOutOfSpace:
    """A lock is removed without a record only after a person has read so and agreed."""

    @pytest.fixture
    def full(self, board: Board) -> Board:
        """A store that has no space for records."""

        def refuse(request: Remove) -> None:
            if request.recorded:
                raise StoreFull("database space exceeded")

        board.store.before_removing = refuse
        return board

    def test_the_api_names_the_missing_field(self, full: Board) -> None:
        answer = unlock(full)
        assert (answer.status_code, holder(full)) == (409, "u1")
        assert "no record can be kept" in answer.json["error"]
        assert "the field unrecorded" in answer.json["error"]
        assert unlock(full, unrecorded="yes").status_code == 400
        assert unlock(full, unrecorded=True).status_code == 200
        assert holder(full) is None

    def test_the_form_asks_with_a_box_to_tick(self, full: Board) -> None:
        assert "unrecorded" not in full.html("/locks/a/force-unlock?uuid=u1")
        answer = sent(full)
        assert (answer.status_code, holder(full)) == (303, "u1")
        html = full.html(answer.headers["Location"])
        assert '<input type="checkbox" id="unrecorded" name="unrecorded" required>' in html
        assert "no record can be kept" in html
        assert sent(full, unrecorded="on").status_code == 303
        assert holder(full) is None
