"""The pages, as HTML: what stands on them in every state, and the headers around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape

import pytest
from werkzeug.test import create_environ, run_wsgi_app

from mutexdash.security.access import Access
from tests.support.dashboard_fakes import Board


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        started.store.unlocker()
        yield started


# ---------------------------------------------------------------- the list


def test_a_lock_is_shown_with_who_where_why_and_how_long(board: Board) -> None:
    board.store.take("nightly-report", held_for=61.5)
    board.store.wait("nightly-report", "w1")
    parts = ("OK nightly-report", "worker-1 : 4711", "rebuild totals", "1 min 1 s", "1 waiting")
    board.shows("/", *parts, "13 min 58 s left")


def test_states_are_words_not_only_colours(board: Board) -> None:
    """And the bar has a text for screen readers, and no inline style."""
    board.store.take("a", held_for=400)
    board.store.take("b", held_for=1000)
    board.store.take("c", alert_at="x")
    board.shows("/", "Past alert", "Overdue", "Broken", "overdue 1 min 40 s")
    board.store.take("d", held_for=150)
    html = board.html("/?q=d")
    times = "Last heartbeat .* UTC, alert .* UTC, auto-unlock .* UTC"
    assert re.search(rf'role="img" aria-label="{times}"', html)
    assert re.search(r'class="filled" height="100%" width="25\.\d%"', html)
    assert "style=" not in html


def test_empty_states_say_what_is_the_matter(board: Board) -> None:
    board.shows("/", "No lock is held right now.")
    board.store.take("a")
    board.shows("/?q=nothing", "The only held lock does not match.", "Clear the filter")
    board.store.take("b")
    board.shows("/?q=nothing", "None of 2 locks match.")
    board.shows("/removed", "No removals on record.")
    board.store.removed("x", "u")
    board.shows("/removed?q=nothing", "No removal matches.")


def test_without_an_unlocker_the_banner_says_how_to_start_one(board: Board) -> None:
    board.shows("/", but=("No unlocker is running",))
    board.store.unlocker(runs=False)
    how = "unlocker --url etcd://127.0.0.1:2379/clustermutex"
    for path in ("/", "/removed", "/lock/a"):
        board.shows(path, "No unlocker is running.", how)


def test_with_etcd_away_the_last_known_state_is_greyed_with_its_age(board: Board) -> None:
    board.store.take("a")
    board.text("/")
    board.store.here = False
    board.ahead = 75
    board.shows("/", "etcd is unreachable.", "last known state, 1 min 1", "worker-1")
    assert 'class="away"' in board.html("/")


def test_links_keep_the_search_and_leave_the_page(board: Board) -> None:
    """A page that is gone shows the last one; a link with parameters of others still opens."""
    for number in range(101):
        board.store.take(f"lock-{number:03}")
    board.shows("/?page=7", "101–101 of 101 locks")
    board.shows("/", "1–100 of 101 locks")
    html = unescape(board.html("/?q=lock&page=2&sort=name"))
    assert 'href="/?q=lock&sort=-name"' in html
    assert 'href="/?q=lock&state=alert&sort=name"' in html
    assert 'rel="prev" href="/?q=lock&sort=name"' in html
    assert board.get("/?utm_source=mail").status_code == 200
    board.shows("/?sort=x", "The parameter sort must be one of", code=400)


# ---------------------------------------------------------------- one lock


def test_a_lock_page_tells_all(board: Board) -> None:
    board.store.take("deploy/prod", identity="worker-7", held_for=400)
    board.store.wait("deploy/prod", "w1", hostname="next-1", pid=3, reason="my turn", since=1.0)
    text = board.shows(
        "/lock/deploy%2Fprod",
        *("deploy/prod", "Past its alert for 1 min 40 s, auto-unlock in 8 min", "worker-7"),
        *("Fencing token3", "next-1 : 3", "my turn", 'File "/srv/report.py", line 41, in rebuild'),
    )
    assert re.search(r"Taken 6 min 40 s ago\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)


def test_a_broken_lock_says_what_is_wrong_sentence_by_sentence(board: Board) -> None:
    board.store.take("odd", hostname=None, pid="<many>", needs="all", auto_unlock_at=b"\xff")
    board.shows(
        "/lock/odd",
        *("hostname is missing.", "auto_unlock_at is not UTF-8."),
        "about pid is not a whole number; needs is not a list of names.",
        "never remove a lock that they can't read",
    )


def test_a_lock_that_is_gone_shows_its_latest_removal(board: Board) -> None:
    facts = {"how": "auto-unlock", "removed_by": "dog", "backtrace": "File dead.py"}
    for uuid, why in (("u1", "first"), ("u2", "second")):
        board.store.removed("old", uuid, **facts, why=why, hostname="dead-host", removed_at=5.0)
    parts = ("Not held", "Auto-unlocked", "dog", "second", "dead-host", "File dead.py")
    board.shows("/lock/old", *parts, but=("first",))
    board.shows("/lock/never-was", "no removals on record")


def test_a_free_lock_with_waiters_says_what_is_wrong(board: Board) -> None:
    """And where to look: at who is next; as long as somebody holds it, that waits for its turn."""
    board.store.wait("stuck", "w1", hostname="next-1", pid=3, since=1.0)
    board.shows(
        "/lock/stuck",
        *("Free, with 1 waiter", "next-1 : 3", "ssh next-1", "py-spy dump --pid 3"),
        "LockFreeWithWaiters",
        but=("force-unlock", "was never taken"),
    )
    board.store.take("stuck")
    board.shows("/lock/stuck", but=("Free, with",))


def test_a_lock_page_shows_what_it_knows_when_the_store_does_not_answer(board: Board) -> None:
    """And is asked for again, instead of being taken for unchanged."""
    board.store.take("a")
    board.store.answers = False
    assert "ETag" not in board.get("/lock/a").headers
    why = "etcd could not be asked for it: etcd at 127.0.0.1:2379 did not answer"
    board.shows("/lock/a", "worker-1", why)
    board.store.answers = True
    board.shows("/lock/a", "line 41, in rebuild")


def test_removals_are_told_with_the_dead_holders_facts(board: Board) -> None:
    board.store.removed(
        *("old", "u1"), how="force-unlock", removed_by="ann@desk", why="hung", hostname="dead",
        pid=9, reason="sync", locked_at=10.0, removed_at=700.0, client="c/1",
    )  # fmt: skip
    parts = ("Force-unlocked", "ann@desk", "hung", "dead : 9", "sync", "11 min 30 s", "c/1")
    board.shows("/removed", *parts, "1970-01-01 00:11:40 UTC")


# ---------------------------------------------------------------- around the pages

EVIL = "<img src=x onerror=alert(1)>\u202e\x07"


def test_hostile_text_is_text_in_every_field(board: Board) -> None:
    name = EVIL.replace("\x07", "")
    fields = ("uuid", "hostname", "thread", "reason", "identity", "client", "backtrace", "pid")
    board.store.take(name, **dict.fromkeys(fields, EVIL))
    board.store.wait(name, EVIL, **dict.fromkeys(("hostname", "thread", "reason"), EVIL))
    texts = ("hostname", "reason", "client", "how", "why", "removed_by", "thread", "identity")
    board.store.removed("other" + name, EVIL, **dict.fromkeys(texts, EVIL))
    board.store.unlocker(EVIL)
    for path in ("/", f"/lock?name={name}", "/removed", f"/lock?name=other{name}", f"/?q={EVIL}"):
        html = board.html(path)
        assert "<img" not in html, path
        outside_the_search_box = re.sub(r' value=".*?"', "", html)
        assert not {"\x07", "\u202e"} & {*outside_the_search_box}, path


def test_pages_hold_no_inline_code_and_load_nothing_from_elsewhere(board: Board) -> None:
    board.store.take("a")
    ours = r"<script(?! (?:type=\"module\" )?src=\"/static/)"
    for path in ("/", "/lock/a", "/timeline", "/removed", "/nothing"):
        assert not re.search(rf"{ours}|<style|\sstyle=|\son\w+=|https?://", board.html(path))


def test_a_page_that_is_not_there_says_so(board: Board) -> None:
    """In our own words; and the API's path of a lock leads people to its page."""
    board.shows("/nothing", "This page does not exist.", but=("URL",), code=404)
    board.store.take("deploy/prod")
    for path, page in {"/locks/deploy%2Fprod": "/lock/deploy%2Fprod", "/locks": "/"}.items():
        answer = board.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (302, page)
    assert board.get("/locks/deploy%2Fprod/force-unlock?uuid=x").status_code == 200


@pytest.mark.parametrize("path", ["/lock/a", "/api/locks/a"])
def test_a_fault_of_ours_tells_nothing_of_the_inside(
    board: Board, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(board.store, "ask", fail)
    answer = board.get(path)
    assert answer.status_code == 500
    assert b"secret" not in answer.data
    assert answer.is_json == path.startswith("/api/")


def test_before_everything_was_read_the_page_says_what_it_waits_for() -> None:
    Board().shows("/", "etcd at 127.0.0.1:2379 has not answered so far", code=503)


# ---------------------------------------------------------------- who may


@pytest.mark.parametrize("host", ["localhost:8722", "127.0.0.1", "127.3.2.1:80", "[::1]:8722"])
def test_a_local_dashboard_answers_to_local_names(board: Board, host: str) -> None:
    assert board.get("/api/locks", Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.7",
        "[::",
        "",
        "evil@localhost",
        "localhost/x",
    ],
)
def test_a_local_dashboard_answers_to_no_other_name(board: Board, host: str) -> None:
    """A web page whose name was made to resolve to 127.0.0.1 must not read the locks."""
    # Without werkzeug's client, which in some releases itself refuses hosts that are none.
    environ = create_environ("/api/locks", environ_base={"REMOTE_ADDR": "127.0.0.1"})
    answer, status, _ = run_wsgi_app(board.app, {**environ, "HTTP_HOST": host})
    assert status.startswith(("400 ", "421 "))
    assert "locks" not in json.loads(b"".join(answer))


def test_an_open_dashboard_answers_to_any_name() -> None:
    with Board(access=Access(local_only=False)) as board:
        assert board.get("/api/locks", Host="locks.example").status_code == 200


# ---------------------------------------------------------------- machines


def test_health_and_readiness(board: Board) -> None:
    assert board.get("/healthz").status_code == 200
    assert board.html("/readyz") == "The dashboard is ready.\n"
    board.store.here = False
    ready = board.get("/readyz")
    assert (ready.status_code, "etcd is unreachable" in ready.get_data(as_text=True)) == (200, True)
    assert board.get("/healthz").status_code == 200
    unread = Board()
    assert unread.get("/healthz").status_code == 200
    assert unread.get("/readyz").status_code == 503


def test_metrics_count_locks_by_state_and_answers_from_zero(board: Board) -> None:
    requests = 'mutexdash_http_requests_total{status="%s",view="pages.%s"} %s\n'
    assert requests % ("5xx", "lock", "0.0") in board.html("/metrics")
    board.store.take("a")
    board.store.take("b", held_for=400)
    board.store.take("c", alert_at="x")
    board.store.wait("a", "w1")
    board.get("/")
    text = board.html("/metrics")
    for state, count in {"ok": 1, "alert": 1, "overdue": 0, "broken": 1}.items():
        assert f'mutexdash_locks{{state="{state}"}} {count}.0\n' in text
    for name in ("waiters", "unlockers", "store_connected"):
        assert f"mutexdash_{name} 1.0\n" in text
    assert requests % ("2xx", "locks", "1.0") in text
    assert "mutexdash_http_request_seconds_count 2.0\n" in text
    assert "mutexdash_locks" not in Board().html("/metrics")
