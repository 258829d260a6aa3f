"""The JSON API: its shape, its names, its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.support.dashboard_fakes import Board
from tests.support.records import BACKTRACE

LOCK_KEYS = [
    *("name", "uuid", "state", "undecided", "hostname", "pid", "thread", "actor", "reason"),
    *("identity", "owner", "labels", "context", "user", "container", "client", "locked_at"),
    *("alive_at", "alert_at", "auto_unlock_at"),
    *("expected_runtime", "auto_unlock_after", "max_hold", "keepalive", "needs"),
    *("fencing_token", "waiters", "deadlock", "held_too_long"),
]


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        yield started


def test_locks_are_listed_as_the_design_has_it(board: Board) -> None:
    board.store.take("nightly", uuid="u1", identity="worker-7")
    board.store.wait("nightly", "w1")
    board.store.unlocker()
    answer = board.get("/api/locks").json

    assert list(answer) == [
        *("locks", "total", "revision", "server_time", "unlockers", "connected"),
        *("deadlocks", "remarks"),
    ]
    assert answer["total"] == answer["unlockers"] == 1
    assert answer["revision"] == board.store.revision
    (lock,) = answer["locks"]
    assert list(lock) == LOCK_KEYS
    assert (lock["name"], lock["uuid"], lock["state"]) == ("nightly", "u1", "ok")
    assert (lock["pid"], lock["waiters"], lock["fencing_token"]) == (4711, 1, 2)
    assert lock["auto_unlock_at"] - lock["alert_at"] == pytest.approx(600)
    assert lock["alive_at"] == lock["locked_at"]
    assert (lock["undecided"], lock["needs"]) == (None, None)


def test_a_broken_lock_has_null_for_what_cant_be_read(board: Board) -> None:
    board.store.take("odd", alert_at=b"\xff\xfe", pid="many", hostname=None)
    (lock,) = board.get("/api/locks").json["locks"]
    found = [lock[name] for name in ("state", "alert_at", "pid", "hostname")]
    assert found == ["broken", None, None, None]


def test_search_filter_order_and_page(board: Board) -> None:
    for number in range(5):
        board.store.take(f"lock-{number}", held_for=400 if number % 2 else 0)
    answer = board.get("/api/locks?q=LOCK&state=ok&sort=-name&page=2&per_page=2").json
    assert [lock["name"] for lock in answer["locks"]] == ["lock-0"]
    assert answer["total"] == 3
    assert board.get("/api/locks?page=9").json["locks"] == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *((f"locks?{bad}", "The parameter ") for bad in ("sort=x", "page=0")),
        ("removed?page=x", "The parameter "),
        ("removed?state=ok", "There is no parameter 'state' here; there are q, page, per_page."),
    ],
)
def test_a_bad_parameter_is_400_with_a_sentence(board: Board, path: str, said: str) -> None:
    answer = board.get(f"/api/{path}")
    assert answer.status_code == 400
    assert answer.json["error"].startswith(said)


# ---------------------------------------------------------------- one lock


def test_one_lock_has_its_backtrace_and_its_line(board: Board) -> None:
    board.store.take("nightly")
    board.store.wait("nightly", "w1", hostname="h1", pid=1, since=5.0, reason="me, too")
    board.store.wait("nightly", "w2", hostname="h2")
    lock = board.get("/api/locks/nightly").json

    assert list(lock) == [*LOCK_KEYS, "backtrace", "queue"]
    assert lock["backtrace"] == BACKTRACE
    assert lock["waiters"] == 2
    assert [ticket["uuid"] for ticket in lock["queue"]] == ["w1", "w2"]
    facts = {"hostname": "h1", "pid": 1, "reason": "me, too", "since": 5.0}
    nothing = {"thread": None, "actor": None, "within": None, "frame": None}
    assert lock["queue"][0] == {"uuid": "w1", "revision": 3, **facts, **nothing}


NAMES = (
    *("a/b", "a%2Fb", "a%252Fb", "/a", "a/", "//", "a//b", "a b", "a+b", "?", "#", "%", "&name=x"),
    *("...", "../..", "a/../b", "é", "🔒" * 63, "<b>", '"', "\u202eab", "\u2028", "force-unlock"),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_its_own_in_a_path(board: Board, name: str) -> None:
    """Names that differ only in how they could be encoded never show each other's lock."""
    for number, other in enumerate(NAMES):
        board.store.take(other, uuid=f"u{number}")
    mine = f"u{NAMES.index(name)}"
    assert board.get(f"/api/locks/{quote(name, safe='')}").json["uuid"] == mine
    assert board.get(f"/api/lock?name={quote(name, safe='')}").json["uuid"] == mine


@pytest.mark.parametrize("name", [".", ".."])
def test_dots_have_a_form_that_no_browser_takes_out(board: Board, name: str) -> None:
    board.store.take(name)
    assert board.get(f"/api/lock?name={name}").json["name"] == name
    page = board.html("/")
    assert f'href="/lock?name={name}"' in page


def test_a_lock_that_nobody_holds_is_404(board: Board) -> None:
    answer = board.get("/api/locks/nothing")
    assert answer.status_code == 404
    assert answer.json == {"error": "Nobody holds the lock 'nothing'."}


def test_a_name_that_no_lock_can_have_is_400(board: Board) -> None:
    for path in ("/api/locks/a%00b", f"/api/locks/{'x' * 256}", "/api/lock?name=", "/api/lock"):
        answer = board.get(path)
        assert answer.status_code == 400, path
        assert answer.json["error"].endswith((".", "?"))


def test_a_store_that_does_not_answer_is_503_and_one_that_is_away_is_not_waited_for(
    board: Board,
) -> None:
    board.store.take("a")
    board.store.answers = False
    answer = board.get("/api/locks/a")
    assert answer.status_code == 503
    assert "did not answer within 2 s" in answer.json["error"]
    board.store.here, board.store.questions = False, 0
    assert board.get("/api/locks/a").status_code == 503
    assert board.store.questions == 0
    answer = board.get("/api/locks").json
    assert (answer["connected"], answer["total"]) == (False, 1)


# ---------------------------------------------------------------- removed


def test_removals_tell_who_how_why_and_the_dead_holders_facts(board: Board) -> None:
    facts = {"how": "auto-unlock", "removed_by": "dog:7", "why": "no heartbeat", "pid": 7}
    facts |= {"removed_at": 99.5, "hostname": "h", "locked_at": 1.0}
    board.store.removed("a", "u1", **facts, backtrace=BACKTRACE)
    answer = board.get("/api/removed").json
    assert list(answer) == ["removed", "total", "revision", "server_time"]
    (removal,) = answer["removed"]
    assert (removal["name"], removal["uuid"]) == ("a", "u1")
    assert facts.items() <= removal.items()
    assert "backtrace" not in removal


# ---------------------------------------------------------------- ETag and other answers


@pytest.mark.parametrize("path", ["/api/locks", "/api/locks/a", "/api/removed"])
def test_what_was_seen_is_304(board: Board, path: str) -> None:
    board.store.take("a")
    board.store.removed("a", "u0")
    first = board.get(path)
    asked = board.store.questions
    again = board.get(path, If_None_Match=first.headers["ETag"])

    assert (first.status_code, again.status_code) == (200, 304)
    assert again.data == b""
    assert again.headers["ETag"] == first.headers["ETag"]
    assert board.store.questions == asked, "a 304 asks the store nothing"
    board.store.take("a", reason="another")
    assert board.get(path, If_None_Match=first.headers["ETag"]).status_code == 200


def test_one_locks_etag_does_not_care_for_other_locks(board: Board) -> None:
    board.store.take("a")
    first = board.get("/api/locks/a")
    board.store.take("b")
    assert board.get("/api/locks/a", If_None_Match=first.headers["ETag"]).status_code == 304


def test_hostile_text_is_plain_json(board: Board) -> None:
    board.store.take("a", reason="</script>\x00\u202e")
    board.store.write(("queue", "a", "w", json.dumps({"hostname": "\ud800"}).encode()))
    answer = board.get("/api/locks/a")
    assert answer.content_type == "application/json"
    assert answer.json["reason"] == "</script>\x00\u202e"
    assert answer.json["queue"][0]["hostname"]  # whatever of it can be told


def test_errors_of_the_api_are_json(board: Board) -> None:
    for path in ("/api/nothing", "/api/"):
        answer = board.get(path)
        assert (answer.status_code, list(answer.json)) == (404, ["error"])
    answer = board.client.post("/api/locks")
    assert (answer.status_code, list(answer.json or [])) == (405, ["error"])
    assert "GET" in answer.headers["Allow"]


def test_before_everything_was_read_it_is_503() -> None:
    board = Board()
    answer = board.get("/api/locks")
    assert answer.status_code == 503
    assert "127.0.0.1:2379" in answer.json["error"]
