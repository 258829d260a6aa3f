"""Force-unlock: what is asked for wrongly, changed meanwhile, refused, or of unknown outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from lockclient.errors import StoreError, StoreUnavailable
from mutexdash.access import Access
from tests.dash_memory import Board

FIELDS = {"name": "a", "uuid": "u1", "reason": "it hangs"}


@pytest.fixture
def board() -> Iterator[Board]:
    with Board(access=Access(allow_force_unlock=True, unlocks_a_minute=1000)) as started:
        started.store.take("a", uuid="u1")
        started.settle()
        yield started


def unlock(board: Board, path: str = "/api/locks/a/force-unlock", **changes: Any) -> Any:
    return board.client.post(path, json=FIELDS | changes, buffered=True)


def holder(board: Board, name: str = "a") -> str | None:
    found = board.store.kept.get(("locks", name, "uuid"))
    return found and (found.value or b"").decode()


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
def test_what_is_missing_or_mistyped_unlocks_nothing(
    board: Board, changes: dict[str, Any], said: str
) -> None:
    answer = unlock(board, **changes)
    assert answer.status_code == 400
    assert answer.json["error"].startswith("Nothing was unlocked: ")
    assert said in answer.json["error"]
    assert holder(board) == "u1"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b"null", b"[" * 5000])
def test_a_body_that_is_no_object_unlocks_nothing(board: Board, body: bytes) -> None:
    path = "/api/locks/a/force-unlock"
    answer = board.client.post(path, data=body, content_type="application/json")
    assert answer.status_code == 400
    assert holder(board) == "u1"


def test_a_body_that_is_too_long_is_not_read(board: Board) -> None:
    assert unlock(board, reason="x" * 20_000).status_code == 413


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


def test_a_holder_that_changed_before_or_in_between_stays(board: Board) -> None:
    """Before the look, and between the look and the transaction: the same 409, and nothing else."""
    board.store.before_removing = lambda: board.store.take("a", uuid="u2", hostname="other")
    for _ in range(2):
        answer = unlock(board)
        assert answer.status_code == 409
        assert "Now it is held by other" in answer.json["error"]
        assert holder(board) == "u2"
    assert not [key for key in board.store.kept if key[0] == "removed"]


def test_one_that_was_released_is_told_so(board: Board) -> None:
    board.store.release("a")
    answer = unlock(board)
    assert (answer.status_code, "held by nobody" in answer.json["error"]) == (409, True)


def test_with_the_store_away_nothing_is_sent(board: Board) -> None:
    board.store.here = False
    assert unlock(board).status_code == 503
    assert (board.store.asked, holder(board)) == (0, "u1")


@pytest.mark.parametrize(
    ("error", "code", "said", "result"),
    [
        (StoreUnavailable("No answer."), 503, "is not known", "unknown"),
        (StoreUnavailable("No member.", unknown=False), 502, "Nothing was unlocked", "failed"),
        (StoreError("permission denied"), 502, "Nothing was unlocked: permission", "failed"),
        (StoreError("No space.", unknown=True), 503, "is not known", "unknown"),
    ],
)
def test_a_store_that_fails_is_told_with_what_that_means(
    board: Board, error: Exception, code: int, said: str, result: str
) -> None:
    def fail() -> None:
        raise error

    board.store.before_removing = fail
    answer = unlock(board)
    assert (answer.status_code, said in answer.json["error"]) == (code, True)
    metrics = board.get("/metrics").get_data(as_text=True)
    assert f'mutexdash_force_unlocks_total{{result="{result}"}} 1.0' in metrics


def test_a_record_that_would_be_too_long_is_cut(board: Board) -> None:
    board.store.take("a", uuid="u1", reason="r" * 60_000, backtrace="b" * 60_000 + "innermost")
    removed = unlock(board).json["removed"]
    assert (len(removed["reason"]), len(removed["backtrace"])) == (4096, 16384)
    assert removed["backtrace"].endswith("innermost")


def test_a_page_says_what_went_wrong_and_leads_back(board: Board) -> None:
    form = board.get("/locks/a/force-unlock?uuid=u1").get_data(as_text=True)
    token = form.partition('name="csrf" value="')[2].partition('"')[0]
    data = FIELDS | {"uuid": "u0", "csrf": token}
    answer = board.client.post(
        "/locks/a/force-unlock", data=data, headers={"Origin": "http://localhost"}, buffered=True
    )
    text = answer.get_data(as_text=True)
    assert answer.status_code == 409
    assert "Nothing was unlocked" in text
    assert 'href="/lock/a"' in text
