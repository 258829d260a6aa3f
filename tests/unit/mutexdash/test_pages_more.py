"""The pages beside list and lock: what went, what was held when, taking a lock from its holder."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

import mutexdash
from lockclient.model.holder import Holder
from mutexdash.cli import main
from mutexdash.data.timeline import Lane, Lanes, Span, lane_text, span_text, tick, ticks
from mutexdash.markup.cluster_label import ClusterLabel
from mutexdash.security.access import Access
from mutexdash.web.pages import domain
from mutexdash.web.urls import alert_query
from tests.support.dashboard_fakes import Board
from tests.support.processes import Figure

DEEP = """\
  File "/srv/run.py", line 88, in <module>
    main()
  File "/usr/lib/python3.11/site-packages/celery/app.py", line 5, in call
    task()
  File "/srv/invoices.py", line 214, in create
    stack.enter_context(mutex)
  File "/usr/lib/python3.11/contextlib.py", line 502, in enter_context
    result = _enter(cm)
"""


@pytest.fixture
def board() -> Iterator[Board]:
    with Board(access=Access(allow_force_unlock=True)) as started:
        started.store.unlocker()
        yield started


# ---------------------------------------------------------------- the list


def test_a_lock_that_went_is_greyed_with_the_reason_and_not_counted(board: Board) -> None:
    board.store.take("stays")
    board.store.take("went", uuid="u2")
    board.text("/")
    board.store.removed("went", "u2", how="force-unlock", removed_by="ann", why="it hangs")
    board.store.release("went")
    text = board.text("/")
    assert re.search(r"Force-unlocked went .* ago by ann: it hangs", text)
    assert "1–1 of 1 lock" in text
    assert '<tr class="ended" data-key="went' in board.html("/")
    board.ahead = 60
    assert "Force-unlocked" not in board.text("/")


def test_tiles_are_filters_that_are_taken_back_by_a_second_click(board: Board) -> None:
    board.store.take("quiet")
    board.store.take("wanted")
    for number in range(3):
        board.store.wait("wanted", f"w{number}")
    html = unescape(board.html("/"))
    assert 'href="/?state=waiters"' in html
    assert "waiting for 1 lock" in board.text("/")
    chosen = unescape(board.html("/?state=waiters"))
    assert re.search(r'class="tile waiters" href="/" aria-current="true"', chosen)
    assert "wanted" in chosen
    assert "quiet" not in chosen


# ---------------------------------------------------------------- one lock


def test_the_backtrace_has_own_frames_first_and_the_innermost_marked(board: Board) -> None:
    board.store.take("a", backtrace=DEEP)
    text = board.text("/lock/a")
    assert "Through 1 library call, folded below." in text
    order = [
        *("/srv/invoices.py:214", "took the lock here", "stack.enter_context(mutex)"),
        *("/srv/run.py:88", "2 library frames", "contextlib.py:502", "All of it"),
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert DEEP in unescape(board.html("/lock/a"))


def test_a_backtrace_of_another_language_is_shown_as_it_came(board: Board) -> None:
    board.store.take("a", backtrace="goroutine 1 [running]:\nmain.main()\n\t/srv/main.go:7")
    assert "goroutine 1 [running]:\nmain.main()\n\t/srv/main.go:7" in board.html("/lock/a")


def test_a_lock_links_to_its_alert_its_removals_and_its_lane(board: Board) -> None:
    board.store.take('odd "name"\\')
    html = unescape(board.html("/lock?name=odd%20%22name%22%5C"))
    for path in ("/removed", "/timeline"):
        assert (
            f'href="{path}?q=odd+"name"\\"' in html or f'href="{path}?q=odd+%22name%22%5C"' in html
        )
    assert "Prometheus" not in html
    assert "ALERTS%7Bname%3D%22odd+%5C%22name%5C%22%5C%5C%22%7D" in alert_query('odd "name"\\')


# ---------------------------------------------------------------- force-unlock


def test_the_form_is_for_the_holder_that_was_looked_at_and_for_no_other(board: Board) -> None:
    board.store.take("a", uuid="u1", hostname="old-host")
    board.store.wait("a", "w1", hostname="next-host", pid=7)
    assert 'href="/locks/a/force-unlock?uuid=u1"' in board.html("/lock/a")
    html = board.html("/locks/a/force-unlock?uuid=u1")
    assert '<form class="card force" method="post" action="/locks/a/force-unlock"' in html
    assert 'name="uuid" value="u1"' in html
    assert re.search(r'name="csrf" value="\w{20,}"', html)
    assert "gets it at once: next-host : 7." in board.text("/locks/a/force-unlock?uuid=u1")
    changed = board.html("/locks/a/force-unlock?uuid=u0")
    assert "<form class" not in changed
    assert "old-host" in changed
    assert "Nobody holds it now." in board.text("/locks/b/force-unlock?uuid=u0")


def test_the_form_is_off_while_etcd_is_away(board: Board) -> None:
    board.store.take("a", uuid="u1")
    board.text("/")
    board.store.here = False
    assert re.search(r'class="danger" disabled', board.html("/locks/a/force-unlock?uuid=u1"))
    assert "Force-unlock is off while this is old" in board.text("/lock/a")
    assert "/locks/a/force-unlock" not in board.html("/lock/a")


def test_a_dashboard_that_only_shows_has_no_form() -> None:
    with Board() as board:
        board.store.take("a", uuid="u1")
        assert "Force-unlock" not in board.html("/lock/a")
        assert "<form class" not in board.html("/locks/a/force-unlock?uuid=u1")
        assert "--allow-force-unlock" in board.text("/locks/a/force-unlock?uuid=u1")


# ---------------------------------------------------------------- removals and lanes


def test_a_removal_is_shown_with_the_dead_holders_backtrace(board: Board) -> None:
    board.store.removed(
        *("..", "u 1"), how="auto-unlock", removed_by="dog", why="silent", hostname="dead",
        backtrace=DEEP, removed_at=5.0,
    )  # fmt: skip
    assert 'href="/removal?name=..&uuid=u+1"' in unescape(board.html("/removed"))
    text = board.text("/removal?name=..&uuid=u+1")
    for part in ("Auto-unlocked", "dog", "silent", "dead", "/srv/invoices.py:214"):
        assert part in text


def test_exports_keep_the_search(board: Board) -> None:
    board.store.removed("a", "u1", removed_at=5.0)
    html = board.html("/removed?q=a")
    for kind in ("csv", "json"):
        assert f'href="/removed.{kind}?q=a" download' in html


def test_the_timeline_has_a_lane_for_each_lock_and_words_for_each_colour(board: Board) -> None:
    board.store.take("held", held_for=100)
    board.store.take("went", held_for=100, uuid="u2")
    board.text("/")
    board.store.release("went")
    html = board.html("/timeline?span=900")
    assert re.search(r'aria-label="worker-1 : 4711, from .* for 1 min \d+ s, still held"', html)
    assert re.search(r'aria-label="worker-1 : 4711, from .* for 1 min \d+ s, released"', html)
    assert re.search(r'class="span released">\s*<title>worker-1 : 4711, .* released</title>', html)
    text = board.text("/timeline?span=900")
    for word in ("15 min ago", "10 min ago", "now", "held", "released", "auto-unlocked"):
        assert word in text
    assert "No lock matches." in board.text("/timeline?q=nothing")
    for same in ("15m", "900s", "15+min"):
        assert "15 min ago" in board.text(f"/timeline?span={same}")
    for other in ("1", "soon", "15m15m"):
        said = f"must be one of 15 min, 1 h, 6 h, 24 h; it is '{other}'"
        assert said in board.text(f"/timeline?span={other}", 400)


def test_an_empty_timeline_says_so(board: Board) -> None:
    assert "No lock was held in this time." in board.text("/timeline")


def test_the_axis_is_divided_in_whole_hours_or_minutes() -> None:
    axis = Lanes(0.0, 21600.0, (), 0)
    assert [tick(axis.end - at) for at in ticks(axis)] == ["6 h ago", "4 h ago", "2 h ago", "now"]
    assert tick(1200) == "20 min ago"


def test_a_lane_is_told_its_newest_holders_first_and_hostile_ones_as_text() -> None:
    who = Holder("a", "u", "h\u202e", 5, locked_at=0.0)
    old, new = (Span(who, at, at + 60, "force-unlock", 0, 1, "ann", "x\n") for at in (0.0, 600.0))
    said = lane_text(Lane("a", [old, new]), time.time())
    first = span_text(new, 0)
    assert said.startswith(f"Held 2 times. The newest: {first}; ")
    assert first == (
        "h\\u202e : 5, from 1970-01-01 00:10:00 UTC for 1 min 0 s, force-unlocked by ann: x\\n"
    )
    # Of a broken lock nobody knows since when: the span is no claim that it was all the time.
    said = span_text(Span(Holder("a", "u", "h", 5), 0.0, None, "held", 0, 1), 600.0)
    assert said == "h : 5, since when is unknown, still held"


# ---------------------------------------------------------------- around the pages


def test_styles_and_scripts_are_small(figure: Figure) -> None:
    """30 KB compressed, all together: the page is there at once, on a phone at night, too."""
    folder = Path(mutexdash.__file__).parent / "static"
    files = [*folder.glob("*.css"), *folder.glob("*.js")]
    size = sum(len(gzip.compress(path.read_bytes())) for path in files)
    figure(f"all styles and scripts, compressed: {size / 1024:.1f} KB")
    assert size <= 30 * 1024


# ---------------------------------------------------------------- which cluster, what to do


def test_a_label_is_on_every_page_and_in_the_tab() -> None:
    with Board(access=Access(allow_force_unlock=True), label=ClusterLabel("prod", "red")) as board:
        board.store.unlocker()
        board.store.take("a", uuid="u1", held_for=2000)
        titles = {
            "/": "1 overdue · prod", "/lock/a": "Overdue: a · prod",
            "/nothing": "There is no such page · prod",
            "/removed": "Removed locks · prod", "/waiting": "Waiting · prod",
            "/locks/a/force-unlock?uuid=u1": "Force-unlock a · prod",
        }  # fmt: skip
        for path, title in titles.items():
            html = board.html(path)
            assert f"<title>{title}</title>" in html
            assert 'class="labelled red"' in html
            assert '<b class="cluster red">' in html
            assert "etcd://127.0.0.1:2379/clustermutex" in html
        tag = board.get("/").headers["ETag"]
        board.store.here = False
        assert "<title>etcd away · prod</title>" in board.html("/")
    with Board() as plain:
        assert "<title>Locks · ClusterMutex</title>" in plain.html("/")
        assert plain.get("/").headers["ETag"].split("-")[-2] != tag.split("-")[-2]


def test_a_stuck_lock_says_what_to_do_and_how_many_wait(board: Board) -> None:
    board.store.take("deploy/prod", uuid="u1", held_for=400, hostname="ci-3.example.com")
    for number in range(6):
        since = time.time() - 900 + number
        board.store.wait("deploy/prod", f"w{number}", hostname="h", pid=1, since=since)
    text = board.text("/lock/deploy%2Fprod")
    assert re.search(r"auto-unlock in 8 min \d+ s\. 6 wait, the longest 15 min \d+ s\.", text)
    for command in ("ssh ci-3.example.com", "ps -o", "py-spy dump --pid 4711", "-- deploy/prod"):
        assert command in text
    assert "docs/runbook.md#lockpastalert" in text
    assert "6 waiting · the longest 15 min" in board.text("/")
    board.store.take("well")
    assert "What to do" not in board.text("/lock/well")


def test_the_form_shows_the_evidence(board: Board) -> None:
    board.store.take("a", uuid="u1", held_for=2000)
    board.store.wait("a", "w1", hostname="h", pid=1, since=time.time() - 60)
    text = board.text("/locks/a/force-unlock?uuid=u1")
    for part in ("Overdue", "Taken 33 min", "Last sign of life 33 min", "One waits, for 1 min"):
        assert part in text


def test_back_at_the_form_after_a_force_unlock_it_says_that_it_was_done(board: Board) -> None:
    board.store.take("a", uuid="u2")
    board.store.removed("a", "u1", how="force-unlock", removed_by="ann", why="hung", removed_at=5.0)
    text = board.text("/locks/a/force-unlock?uuid=u1")
    assert "Done: the holder that you looked at does not have the lock any more." in text
    assert "Force-unlocked by ann" in text
    assert "Nothing was unlocked" not in text
    assert "Nothing was unlocked" in board.text("/locks/a/force-unlock?uuid=u0")
    assert "Which holder is to lose it?" in board.text("/locks/a/force-unlock")


def test_the_code_is_offered_where_there_is_one(board: Board) -> None:
    board.store.removed("with", "u1", backtrace=DEEP, removed_at=5.0)
    assert "The code that took it" in board.text("/removed")
    board.store.removed("without", "u2", backtrace=None, removed_at=6.0)
    assert "The code that took it" not in board.text("/removed?q=without")
    board.store.take("without")
    assert "The code that had taken it then" not in board.text("/lock/without")


def test_a_host_has_a_page_of_what_it_holds(board: Board) -> None:
    board.store.take("a", hostname="bill-3.example.com", pid=7, held_for=2000)
    board.store.take("b", hostname="bill-30.example.com")
    assert 'href="/host?name=bill-3.example.com"' in board.html("/")
    text = board.text("/host?name=bill-3.example.com")
    assert "Holds (1)" in text
    assert re.search(r"Process .* pid 7 ", text)
    assert "bill-3.example.com : 7" not in text, "each row would say the same"
    assert "bill-30" not in text


def test_waiters_are_sorted_the_most_first(board: Board) -> None:
    board.store.take("a")
    assert 'href="/?sort=-waiters"' in board.html("/")
    assert 'href="/?sort=waiters"' in board.html("/?sort=-waiters")


def test_what_a_search_was_taken_for_is_shown(board: Board) -> None:
    board.store.take("a", hostname="bill-3")
    text = board.text("/?q=host:bill+-nothing+4711")
    for part in ("host has “bill”", "not: anything has “nothing”", "1–1 of 1 lock"):
        assert part in text
    assert "anything has" not in board.text("/?q=bill")


def test_keys_are_told_only_where_there_are_rows(board: Board) -> None:
    assert "<kbd>" not in board.html("/")
    board.store.take("a")
    assert "<kbd>" in board.html("/")


def test_a_host_loses_its_domain_first_and_an_address_nothing() -> None:
    assert domain("bill-3.prod.example.com") == ("bill-3", ".prod.example.com")
    for name in ("10.20.30.40", "::1", "db", ".x"):
        assert domain(name) == (name, "")


@pytest.mark.parametrize("title", ["x" * 41, "a\u202eb", "a\nb"])
def test_a_title_is_short_and_seen(title: str) -> None:
    done = CliRunner().invoke(main, ["--title", title])
    assert done.exit_code == 2
    assert "--title must have at most 40 characters" in done.output
