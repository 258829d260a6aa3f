"""The JSON API: its shape, order, search and pages, its names, its errors, its ETags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from lockclient.stores.service_store import Tickets
from tests.support.board import Board, DashboardStore
from tests.support.records import BACKTRACE


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        yield started


def test_a_lock_is_listed_with_its_facts(board: Board) -> None:
    board.store.take("nightly", uuid="u1", identity="worker-7")
    board.store.wait("nightly", "w1")
    board.store.unlocker()
    answer = board.get("/api/locks").json

    assert answer["total"] == answer["unlockers"] == 1
    assert answer["revision"] == board.store.revision
    (lock,) = answer["locks"]
    assert (lock["name"], lock["uuid"], lock["state"]) == ("nightly", "u1", "ok")
    assert (lock["pid"], lock["waiters"], lock["fencing_token"]) == (4711, 1, 2)
    assert lock["auto_unlock_at"] - lock["alert_at"] == pytest.approx(600)
    assert lock["alive_at"] == lock["locked_at"]


def test_a_broken_lock_has_null_for_unreadable_fields(board: Board) -> None:
    board.store.take("odd", alert_at=b"\xff\xfe", pid="many", hostname=None)
    (lock,) = board.get("/api/locks").json["locks"]
    found = [lock[name] for name in ("state", "alert_at", "pid", "hostname")]
    assert found == ["broken", None, None, None]


def test_hostile_text_is_plain_json(board: Board) -> None:
    board.store.take("a", reason="</script>\x00\u202e")
    board.store.write(("queue", "a", "w", json.dumps({"hostname": "\ud800"}).encode()))
    answer = board.get("/api/locks/a")
    assert answer.content_type == "application/json"
    assert answer.json["reason"] == "</script>\x00\u202e"
    assert answer.json["queue"][0]["hostname"]  # whatever of it can be told


def test_long_texts_are_cut_in_lists_and_whole_on_one_lock(board: Board) -> None:
    board.store.take("a", uuid="u1", reason="r" * 30_000, identity="i" * 1000)
    board.store.removed("b", "u2", how="auto-unlock", why="w" * 50_000)
    (lock,) = board.get("/api/locks").json["locks"]
    assert lock["reason"] == "r" * 199 + "…"
    assert lock["identity"] == "i" * 199 + "…"
    assert board.get("/api/locks/a").json["reason"] == "r" * 30_000
    assert len(board.get("/api/removed?q=b").data) < 10_000
    board.store.release("a")
    board.store.removed("a", "u1", how="force-unlock", why="w" * 50_000)
    board.store.take("c", uuid="c" * 60_000)
    for path in ("/", "/removed"):
        assert len(board.get(path).data) < 60_000


# ---------------------------------------------------------------- order


def test_locks_are_sorted_by_the_longest_wait(board: Board) -> None:
    for name in ("a", "b"):
        board.store.take(name, held_for=400)
    for number, name in enumerate("abab", 1):
        board.store.wait(name, f"w{number}")
    before = board.get("/api/locks")
    assert [(lock["name"], lock["waiters"]) for lock in before.json["locks"]] == [
        ("a", 2),
        ("b", 2),
    ]
    board.store.write(("queue", "a", "w1", None), ("queue", "a", "w5", b"{}"))
    after = board.get("/api/locks", If_None_Match=before.headers["ETag"])
    assert [(lock["name"], lock["waiters"]) for lock in after.json["locks"]] == [("b", 2), ("a", 2)]


def test_the_first_waiter_of_a_partly_read_queue_is_unknown() -> None:
    class InPart(DashboardStore):
        def tickets(self, *asked: Any, **limits: Any) -> Tickets:
            return super().tickets(3, *asked[1:], **limits)

    for store, order in ((DashboardStore(), ["b", "a"]), (InPart(), ["a", "b"])):
        for name in ("a", "b"):
            store.take(name, held_for=400)
        for number, name in enumerate("baab"):
            store.wait(name, f"w{number}")
        with Board(store=store) as board:
            assert board.locks() == order


SORTS = (
    *("state", "name", "waiters", "hostname", "reason", "locked_at", "alive_at", "alert_at"),
    "auto_unlock_at",
)


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_has_its_reverse(board: Board, sort: str) -> None:
    """`-` turns the order round; locks that lack the value stay last, equal ones by name."""
    for number, name in enumerate("abc"):
        facts = {"hostname": f"h{number}", "reason": "xyz"[number], "unlock": 900 - number * 100}
        board.store.take(name, held_for=10 + number * 10, **facts)
    for uuid, name in enumerate("bcc"):
        board.store.wait(name, f"w{uuid}")
    board.store.write(("locks", "bare", "uuid", b"u"))  # nothing to sort by, broken
    up, down = board.locks(f"?sort={sort}"), board.locks(f"?sort=-{sort}")
    if sort in ("hostname", "reason", "locked_at", "alive_at", "alert_at", "auto_unlock_at"):
        assert up.pop() == down.pop() == "bare"
    assert up == down[::-1] or sort == "waiters"
    assert sort != "waiters" or (up[-2:], down[:2]) == (["b", "c"], ["c", "b"])


# ---------------------------------------------------------------- search, filter, pages


def test_pages_leave_nothing_out_and_show_nothing_twice(board: Board) -> None:
    every = [f"lock-{number:02}" for number in range(25)]
    for name in every:
        board.store.take(name)
    seen = [board.locks(f"?sort=name&page={page}&per_page=10") for page in (1, 2, 3, 4)]
    assert [len(page) for page in seen] == [10, 10, 5, 0]
    assert [name for page in seen for name in page] == every
    assert board.get("/api/locks?page=9").json["total"] == 25
    assert len(board.locks("?q=&state=&sort=")) == 25, "what is empty is as if it were not there"
    assert board.locks("?q=LOCK-1&state=ok&sort=-name&page=2&per_page=4") == [
        f"lock-{number}" for number in (15, 14, 13, 12)
    ]


def test_a_search_of_many_words_is_one_phrase(board: Board) -> None:
    """A page links to the search for its lock's name, and each word costs time."""
    name = "nightly " * 25 + "run"
    for each in (name, "nightly run"):
        board.store.take(each)
    assert board.locks(f"?q={quote(name)}") == [name]
    assert len(board.locks(f"?q={quote('nightly ' * 20)}")) == 2


@pytest.mark.parametrize(
    ("path", "given", "said"),
    [
        *(("locks", {"page": it}, "page") for it in ("0", "-1", "1e3", "", "٣", "9" * 5000)),
        ("locks", {"per_page": "1001"}, "per_page"),
        ("locks", {"sort": "colour"}, f"sort must be one of {', '.join(SORTS)}, or"),
        ("locks", {"sort": "--name"}, "sort"),
        ("locks", {"state": "lost"}, "state"),
        ("locks", {"q": "x" * 301}, "q"),
        ("locks", {"stat": "ok"}, "'stat'"),
        ("removed", {"page": "x"}, "page"),
        ("removed", {"state": "ok"}, "'state' here; there are q, page, per_page."),
    ],
)
def test_a_bad_parameter_is_400_with_a_sentence(
    board: Board, path: str, given: dict[str, str], said: str
) -> None:
    answer = board.get(f"/api/{path}?{urlencode(given)}")
    assert answer.status_code == 400
    assert f"parameter {said}" in answer.json["error"]
    assert answer.json["error"].endswith(".")
    assert len(answer.json["error"]) < 400


# ---------------------------------------------------------------- one lock


def test_a_lock_has_its_backtrace_and_its_queue(board: Board) -> None:
    board.store.take("nightly")
    board.store.wait("nightly", "w1", hostname="h1", pid=1, since=5.0, reason="me, too")
    board.store.wait("nightly", "w2", hostname="h2")
    lock = board.get("/api/locks/nightly").json

    assert lock["backtrace"] == BACKTRACE
    assert lock["waiters"] == 2
    assert [ticket["uuid"] for ticket in lock["queue"]] == ["w1", "w2"]
    facts = {"hostname": "h1", "pid": 1, "reason": "me, too", "since": 5.0}
    nothing = {"thread": None, "actor": None, "frame": None}
    assert lock["queue"][0] == {"uuid": "w1", "revision": 3, **facts, **nothing}


NAMES = (
    *("a/b", "a%2Fb", "a%252Fb", "/a", "a/", "//", "a//b", "a b", "a+b", "?", "#", "%", "&name=x"),
    *("...", "../..", "a/../b", "é", "🔒" * 63, "<b>", '"', "\u202eab", "\u2028", "force-unlock"),
)


def test_every_name_is_its_own_in_a_path(board: Board) -> None:
    """Names that differ only in how they could be encoded never show each other's lock."""
    for number, name in enumerate(NAMES):
        board.store.take(name, uuid=f"u{number}")
    for number, name in enumerate(NAMES):
        for path in ("/api/locks/", "/api/lock?name="):
            lock = board.get(path + quote(name, safe="")).json
            assert (lock["name"], lock["uuid"]) == (name, f"u{number}")
    for name in (".", ".."):  # A browser would take them out of a path.
        board.store.take(name)
        assert board.get(f"/api/lock?name={name}").json["name"] == name
        assert f'href="/lock?name={name}"' in board.html("/")


# ---------------------------------------------------------------- errors


def test_errors_of_the_api_are_json(board: Board) -> None:
    for path in ("/api/nothing", "/api/"):
        answer = board.get(path)
        assert (answer.status_code, list(answer.json)) == (404, ["error"])
    answer = board.get("/api/locks/nothing")
    assert (answer.status_code, answer.json) == (
        *(404, {"error": "Nobody holds the lock 'nothing'."}),
    )
    answer = board.client.post("/api/locks")
    assert (answer.status_code, list(answer.json or [])) == (405, ["error"])
    assert "GET" in answer.headers["Allow"]
    for path in ("/api/locks/a%00b", f"/api/locks/{'x' * 256}", "/api/lock?name=", "/api/lock"):
        answer = board.get(path)
        assert answer.status_code == 400, path
        assert answer.json["error"].endswith((".", "?"))


def test_an_unreachable_store_is_503_without_a_wait(
    board: Board,
) -> None:
    board.store.take("a")
    board.store.answers = False
    answer = board.get("/api/locks/a")
    assert answer.status_code == 503
    assert "did not answer within 2 s" in answer.json["error"]
    board.store.reachable, board.store.questions = False, 0
    for path in ("/api/locks/a", "/removed.csv", "/removed.json", "/api/removed/a?uuid=u"):
        assert board.get(path).status_code == 503
    assert board.store.questions == 0
    answer = board.get("/api/locks").json
    assert (answer["connected"], answer["total"]) == (False, 1)


# ---------------------------------------------------------------- removed


def test_removals_have_the_remover_the_reason_and_the_facts_of_the_holder(board: Board) -> None:
    facts = {"how": "auto-unlock", "removed_by": "dog:7", "why": "no heartbeat", "pid": 7}
    facts |= {"removed_at": 99.5, "hostname": "h", "locked_at": 1.0}
    board.store.removed("b/c", "u1", **facts, backtrace=BACKTRACE)
    answer = board.get("/api/removed").json
    (removal,) = answer["removed"]
    assert (removal["name"], removal["uuid"]) == ("b/c", "u1")
    assert facts.items() <= removal.items()
    assert "backtrace" not in removal
    for path in ("/api/removed/b%2Fc?uuid=u1", "/api/removal?name=b/c&uuid=u1"):
        assert board.get(path).json["backtrace"] == BACKTRACE
    for path in ("/api/removed/b%2Fc?uuid=u3", "/api/removed/b%2Fc", "/api/removed/c?uuid=u1"):
        assert board.get(path).status_code == 404


def test_removals_are_searched_by_each_field(board: Board) -> None:
    board.store.removed("a", "u1", how="auto-unlock", removed_by="dog", why="late", hostname="h1")
    board.store.removed("b", "u2", how="force-unlock", removed_by="ann", why="asked", reason="r")

    def found(text: str) -> list[str]:
        answer = board.get(f"/api/removed?q={quote(text)}").json
        return [removal["name"] for removal in answer["removed"]]

    assert found("") == ["b", "a"]  # the newest first
    assert [found(text) for text in ("H1", "ann asked", "force", "r dog")] == [
        *(["a"], ["b"], ["b"], []),
    ]


# ---------------------------------------------------------------- ETags


@pytest.mark.parametrize("path", ["/api/locks", "/api/locks/a", "/api/removed"])
def test_an_unchanged_page_is_304(board: Board, path: str) -> None:
    board.store.take("a")
    board.store.removed("a", "u0")
    first = board.get(path)
    asked = board.store.questions
    board.ahead += 10
    again = board.get(path, If_None_Match=first.headers["ETag"])

    assert (first.status_code, again.status_code) == (200, 304)
    assert again.data == b""
    assert again.headers["ETag"] == first.headers["ETag"]
    assert board.store.questions == asked, "a 304 asks the store nothing"
    board.store.take("a", reason="another")
    board.store.removed("a", "u1")
    assert board.get(path, If_None_Match=first.headers["ETag"]).status_code == 200


def test_the_etag_of_a_lock_does_not_depend_on_other_locks(board: Board) -> None:
    board.store.take("a")
    first = board.get("/api/locks/a")
    board.store.take("b")
    assert board.get("/api/locks/a", If_None_Match=first.headers["ETag"]).status_code == 304


def test_the_etag_changes_with_every_change_and_not_with_a_heartbeat_of_an_unlocker(
    board: Board,
) -> None:
    store = board.store
    changes: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "taken": lambda: store.take("a", held_for=0),
        "pushed": lambda: store.push("a"),
        "waited for": lambda: store.wait("a", "w1"),
        "past its alert": lambda: setattr(board, "ahead", 301),
        "overdue": lambda: setattr(board, "ahead", 901),
        "an unlocker": lambda: store.unlocker(),
        "etcd away": lambda: setattr(store, "reachable", False),
        "released": lambda: store.release("a"),
    }
    seen = {}
    for change, make in changes.items():
        make()
        seen[board.get("/api/locks").headers["ETag"]] = change
    assert list(seen.values()) == list(changes)
    store.write(("unlockers", "watchdog-1:77", "", b'{"alive": 2}'))
    assert board.get("/api/locks").headers["ETag"] == list(seen)[-1]


def test_each_dashboard_has_etags_of_its_own(board: Board) -> None:
    """Each counts its versions from 0: equal numbers say nothing about what the other shows."""
    board.store.take("a")
    with Board(store=board.store) as other:
        tags = {of.get("/api/locks").headers["ETag"] for of in (board, other)}
    assert len(tags) == 2


def test_a_snapshot_is_reused_for_twice_its_build_time() -> None:
    store = DashboardStore()
    store.take("a")
    with Board(store=store, reuse_factor=1e9) as board:
        assert board.locks() == ["a"]
        board.store.take("b")
        assert board.locks() == ["a"]
