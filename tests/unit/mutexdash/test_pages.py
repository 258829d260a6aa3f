"""The pages, as HTML: what stands on them in every state, and the headers around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest

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
    text = board.text("/")
    for part in (
        "OK nightly-report",
        "worker-1 : 4711",
        "rebuild totals",
        "1 min 1 s",
        "1 waiting",
    ):
        assert part in text
    assert "13 min 58 s left" in text


def test_states_are_words_not_only_colours(board: Board) -> None:
    board.store.take("a", held_for=400)
    board.store.take("b", held_for=1000)
    board.store.take("c", alert_at="x")
    text = board.text("/")
    for word in ("Past alert", "Overdue", "Broken", "1 min 40 s over"):
        assert word in text


def test_the_bar_has_a_text_for_screen_readers_and_no_inline_style(board: Board) -> None:
    board.store.take("a", held_for=150)
    html = board.html("/")
    assert re.search(
        r'role="img" aria-label="Last sign of life .* UTC, alert .* UTC, auto-unlock .* UTC"', html
    )
    assert re.search(r'class="filled" height="100%" width="25\.\d%"', html)
    assert "style=" not in html


def test_empty_states_say_what_is_the_matter(board: Board) -> None:
    assert "No lock is held right now." in board.text("/")
    board.store.take("a")
    text = board.text("/?q=nothing")
    assert "The one lock that is held does not match." in text
    assert "Clear the filter" in text
    board.store.take("b")
    assert "None of 2 locks match." in board.text("/?q=nothing")
    assert "Nothing had to be removed." in board.text("/removed")
    board.store.removed("x", "u")
    assert "No removal matches." in board.text("/removed?q=nothing")


def test_without_an_unlocker_the_banner_says_how_to_start_one(board: Board) -> None:
    assert "No unlocker is running" not in board.text("/")
    board.store.unlocker(runs=False)
    for path in ("/", "/removed", "/lock/a"):
        text = board.text(path)
        assert "No unlocker is running." in text
        assert "unlocker --url etcd://127.0.0.1:2379/clustermutex" in text


def test_with_etcd_away_the_last_known_state_is_greyed_with_its_age(board: Board) -> None:
    board.store.take("a")
    board.text("/")
    board.store.here = False
    board.ahead = 75
    text = board.text("/")
    assert "etcd is away." in text
    assert "last known state, 1 min 1" in text
    assert "worker-1" in text
    assert 'class="away"' in board.html("/")


def test_a_page_that_is_gone_shows_the_last_one(board: Board) -> None:
    for number in range(101):
        board.store.take(f"lock-{number:03}")
    assert "101–101 of 101 locks" in board.text("/?page=7")
    assert "1–100 of 101 locks" in board.text("/")


def test_links_keep_the_search_and_leave_the_page(board: Board) -> None:
    for number in range(101):
        board.store.take(f"lock-{number:03}")
    html = unescape(board.html("/?q=lock&page=2&sort=name"))
    assert 'href="/?q=lock&sort=-name"' in html
    assert 'href="/?q=lock&state=alert&sort=name"' in html
    assert 'rel="prev" href="/?q=lock&sort=name"' in html


def test_a_link_with_parameters_of_others_still_opens(board: Board) -> None:
    assert board.get("/?utm_source=mail").status_code == 200
    assert "The parameter sort must be one of" in board.text("/?sort=x", 400)


# ---------------------------------------------------------------- one lock


def test_a_lock_page_tells_all(board: Board) -> None:
    board.store.take("deploy/prod", identity="worker-7", held_for=400)
    board.store.wait("deploy/prod", "w1", hostname="next-1", pid=3, reason="my turn", since=1.0)
    text = board.text("/lock/deploy%2Fprod")
    for part in (
        *("deploy/prod", "Past its alert for 1 min 40 s, auto-unlock in 8 min", "worker-7"),
        *("Fencing token3", "next-1 : 3", "my turn", 'File "/srv/report.py", line 41, in rebuild'),
    ):
        assert part in text
    assert re.search(r"Taken 6 min 40 s ago\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)


def test_a_broken_lock_says_what_is_wrong_sentence_by_sentence(board: Board) -> None:
    board.store.take("odd", hostname=None, pid="<many>", needs="all", auto_unlock_at=b"\xff")
    text = board.text("/lock/odd")
    for sentence in (
        *("hostname is missing.", "auto_unlock_at is not UTF-8."),
        "about pid is not a whole number; needs is not a list of names.",
    ):
        assert sentence in text
    assert "never removes a lock that it can't read" in text


def test_a_lock_that_is_gone_shows_its_latest_removal(board: Board) -> None:
    for uuid, why in (("u1", "first"), ("u2", "second")):
        board.store.removed(
            *("old", uuid), how="auto-unlock", removed_by="dog", why=why, hostname="dead-host",
            backtrace="File dead.py", removed_at=5.0,
        )  # fmt: skip
    text = board.text("/lock/old")
    assert "Not held" in text
    for part in ("Auto-unlocked", "dog", "second", "dead-host", "File dead.py"):
        assert part in text
    assert "first" not in text
    assert "no removal of it is recorded" in board.text("/lock/never-was")


def test_a_free_lock_with_waiters_says_what_is_wrong(board: Board) -> None:
    """And where to look: at who is next; as long as somebody holds it, that waits for its turn."""
    board.store.wait("stuck", "w1", hostname="next-1", pid=3, since=1.0)
    text = board.text("/lock/stuck")
    for part in (
        *("Free, and 1 client waits for it", "next-1 : 3", "ssh next-1", "py-spy dump --pid 3"),
        "docs/runbook.md#lockfreewithwaiters",
    ):
        assert part in text
    assert "force-unlock" not in text
    assert "was never taken" not in text
    board.store.take("stuck")
    assert "Free, and" not in board.text("/lock/stuck")


def test_a_lock_page_shows_what_it_knows_when_the_store_does_not_answer(board: Board) -> None:
    """And is asked for again, instead of being taken for unchanged."""
    board.store.take("a")
    board.store.answers = False
    answer = board.get("/lock/a")
    assert answer.status_code == 200
    assert "ETag" not in answer.headers
    text = board.text("/lock/a")
    assert "worker-1" in text
    assert "etcd could not be asked for it: etcd at 127.0.0.1:2379 did not answer" in text
    board.store.answers = True
    assert "line 41, in rebuild" in board.text("/lock/a")


# ---------------------------------------------------------------- removed


def test_removals_are_told_with_the_dead_holders_facts(board: Board) -> None:
    board.store.removed(
        *("old", "u1"), how="force-unlock", removed_by="ann@desk", why="hung", hostname="dead",
        pid=9, reason="sync", locked_at=10.0, removed_at=700.0, client="c/1",
    )  # fmt: skip
    text = board.text("/removed")
    for part in (
        *("Force-unlocked", "ann@desk", "hung", "dead : 9", "sync", "11 min 30 s", "c/1"),
        "1970-01-01 00:11:40 UTC",
    ):
        assert part in text


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
        assert "\x07" not in outside_the_search_box, path
        assert "\u202e" not in outside_the_search_box, path


def test_pages_hold_no_inline_code_and_load_nothing_from_elsewhere(board: Board) -> None:
    board.store.take("a")
    for path in ("/", "/lock/a", "/timeline", "/removed", "/nothing"):
        html = board.html(path)
        assert not re.search(
            r"<script(?! (?:type=\"module\" )?src=\"/static/)|<style|\sstyle=|\son\w+=|https?://",
            html,
        )


def test_a_page_that_is_not_there_says_so(board: Board) -> None:
    text = board.text("/nothing", 404)
    assert "There is no such page here." in text
    assert "URL" not in text, "the words of somebody else"


def test_the_api_s_path_of_a_lock_leads_people_to_its_page(board: Board) -> None:
    board.store.take("deploy/prod")
    answer = board.get("/locks/deploy%2Fprod")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/lock/deploy%2Fprod")
    assert board.get("/locks/deploy%2Fprod/force-unlock?uuid=x").status_code == 200
    answer = board.get("/locks")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/")


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
    assert "etcd at 127.0.0.1:2379 has not answered so far" in Board().text("/", 503)


# ---------------------------------------------------------------- who may


@pytest.mark.parametrize("host", ["localhost:8722", "127.0.0.1", "127.3.2.1:80", "[::1]:8722"])
def test_a_local_dashboard_answers_to_local_names(board: Board, host: str) -> None:
    assert board.get("/api/locks", Host=host).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7", "[::", ""])
def test_a_local_dashboard_answers_to_no_other_name(board: Board, host: str) -> None:
    """A web page whose name was made to resolve to 127.0.0.1 must not read the locks."""
    answer = board.get("/api/locks", Host=host)
    assert answer.status_code in (400, 421)
    assert "locks" not in answer.json


def test_an_open_dashboard_answers_to_any_name() -> None:
    with Board(access=Access(local_only=False)) as board:
        assert board.get("/api/locks", Host="locks.example").status_code == 200


# ---------------------------------------------------------------- machines


def test_health_and_readiness(board: Board) -> None:
    assert board.get("/healthz").status_code == 200
    assert board.html("/readyz") == "The dashboard is ready.\n"
    board.store.here = False
    ready = board.get("/readyz")
    assert (ready.status_code, "etcd is away" in ready.get_data(as_text=True)) == (200, True)
    assert board.get("/healthz").status_code == 200
    unread = Board()
    assert unread.get("/healthz").status_code == 200
    assert unread.get("/readyz").status_code == 503


def test_metrics_count_locks_by_state_and_answers_from_zero(board: Board) -> None:
    text = board.html("/metrics")
    assert 'mutexdash_http_requests_total{status="5xx",view="pages.lock"} 0.0' in text
    board.store.take("a")
    board.store.take("b", held_for=400)
    board.store.take("c", alert_at="x")
    board.store.wait("a", "w1")
    board.get("/")
    text = board.html("/metrics")
    for line in (
        'mutexdash_locks{state="ok"} 1.0',
        'mutexdash_locks{state="alert"} 1.0',
        'mutexdash_locks{state="overdue"} 0.0',
        'mutexdash_locks{state="broken"} 1.0',
        "mutexdash_waiters 1.0",
        "mutexdash_unlockers 1.0",
        "mutexdash_store_connected 1.0",
        'mutexdash_http_requests_total{status="2xx",view="pages.locks"} 1.0',
        "mutexdash_http_request_seconds_count 2.0",
    ):
        assert f"{line}\n" in text
    assert "mutexdash_locks" not in Board().get("/metrics").get_data(as_text=True)
