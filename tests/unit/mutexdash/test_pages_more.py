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
    text = board.shows("/", "1–1 of 1 lock")
    assert re.search(r"Force-unlocked went .* ago by ann: it hangs", text)
    assert '<tr class="ended" data-key="went' in board.html("/")
    board.ahead = 60
    board.shows("/", but=("Force-unlocked",))


def test_tiles_are_filters_that_are_taken_back_by_a_second_click(board: Board) -> None:
    board.store.take("quiet")
    board.store.take("wanted")
    for number in range(3):
        board.store.wait("wanted", f"w{number}")
    assert 'href="/?state=waiters"' in unescape(board.html("/"))
    board.shows("/", "waiting for 1 lock")
    chosen = unescape(board.html("/?state=waiters"))
    assert re.search(r'class="tile waiters" href="/" aria-current="true"', chosen)
    board.shows("/?state=waiters", "wanted", but=("quiet",))


# ---------------------------------------------------------------- one lock


def test_the_backtrace_has_own_frames_first_and_the_innermost_marked(board: Board) -> None:
    board.store.take("a", backtrace=DEEP)
    text = board.shows("/lock/a", "Through 1 library call, folded below.")
    order = [
        *("/srv/invoices.py:214", "acquired here", "stack.enter_context(mutex)"),
        *("/srv/run.py:88", "2 library frames", "contextlib.py:502", "Full traceback"),
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert DEEP in unescape(board.html("/lock/a"))
    foreign = "goroutine 1 [running]:\nmain.main()\n\t/srv/main.go:7"
    board.store.take("b", backtrace=foreign)
    assert foreign in board.html("/lock/b"), "as it came"


def test_a_lock_links_to_its_alert_its_removals_and_its_lane(board: Board) -> None:
    board.store.take('odd "name"\\')
    html = unescape(board.html("/lock?name=odd%20%22name%22%5C"))
    for path in ("/removed", "/timeline"):
        names = ('odd+"name"\\', "odd+%22name%22%5C")
        assert any(f'href="{path}?q={name}"' in html for name in names)
    assert "Prometheus" not in html
    assert "ALERTS%7Bname%3D%22odd+%5C%22name%5C%22%5C%5C%22%7D" in alert_query('odd "name"\\')


# ---------------------------------------------------------------- force-unlock


def test_the_form_is_for_the_holder_that_was_looked_at_and_for_no_other(board: Board) -> None:
    board.store.take("a", uuid="u1", hostname="old-host", held_for=2000)
    board.store.wait("a", "w1", hostname="next-host", pid=7, since=time.time() - 60)
    assert 'href="/locks/a/force-unlock?uuid=u1"' in board.html("/lock/a")
    form = "/locks/a/force-unlock?uuid=u1"
    html = board.html(form)
    assert '<form class="card force" method="post" action="/locks/a/force-unlock"' in html
    assert 'name="uuid_hex" value="7531"' in html
    assert re.search(r'name="csrf" value="\w{20,}"', html)
    evidence = ("Overdue", "Taken 33 min", "Last heartbeat 33 min", "1 waiter, for 1 min")
    board.shows(form, *evidence, "gets it at once: next-host : 7.")
    changed = board.html("/locks/a/force-unlock?uuid=u0")
    assert ("<form class" in changed, "old-host" in changed) == (False, True)
    board.shows("/locks/b/force-unlock?uuid=u0", "Nobody holds it now.")
    board.shows("/locks/a/force-unlock", "No holder chosen.")
    board.store.here = False
    assert re.search(r'class="danger" disabled', board.html(form))
    board.shows("/lock/a", "Force-unlock is disabled while this page is out of date")
    assert "/locks/a/force-unlock" not in board.html("/lock/a")


def test_a_dashboard_that_only_shows_has_no_form() -> None:
    with Board() as board:
        board.store.take("a", uuid="u1")
        assert "Force-unlock" not in board.html("/lock/a")
        assert "<form class" not in board.html("/locks/a/force-unlock?uuid=u1")
        board.shows("/locks/a/force-unlock?uuid=u1", "--allow-force-unlock")


def test_back_at_the_form_after_a_force_unlock_it_says_that_it_was_done(board: Board) -> None:
    board.store.take("a", uuid="u2")
    board.store.removed("a", "u1", how="force-unlock", removed_by="ann", why="hung", removed_at=5.0)
    done = "Done: that holder no longer has the lock."
    nothing = "Nothing was unlocked"
    board.shows("/locks/a/force-unlock?uuid=u1", done, "Force-unlocked by ann", but=(nothing,))
    board.shows("/locks/a/force-unlock?uuid=u0", nothing)


# ---------------------------------------------------------------- removals and lanes


def test_a_removal_is_shown_with_the_dead_holders_backtrace(board: Board) -> None:
    facts = {"how": "auto-unlock", "removed_by": "dog", "why": "silent", "hostname": "dead"}
    board.store.removed("..", "u 1", **facts, backtrace=DEEP, removed_at=5.0)
    assert 'href="/removal?name=..&uuid=u+1"' in unescape(board.html("/removed"))
    parts = ("Auto-unlocked", "dog", "silent", "dead", "/srv/invoices.py:214")
    board.shows("/removal?name=..&uuid=u+1", *parts)
    html = board.html("/removed?q=dead")
    for kind in ("csv", "json"):
        assert f'href="/removed.{kind}?q=dead" download' in html


def test_the_timeline_has_a_lane_for_each_lock_and_words_for_each_colour(board: Board) -> None:
    board.shows("/timeline", "No lock was held in this time.")
    board.store.take("held", held_for=100)
    board.store.take("went", held_for=100, uuid="u2")
    board.text("/")
    board.store.release("went")
    html = board.html("/timeline?span=900")
    assert re.search(r'aria-label="worker-1 : 4711, from .* for 1 min \d+ s, still held"', html)
    assert re.search(r'aria-label="worker-1 : 4711, from .* for 1 min \d+ s, released"', html)
    assert re.search(r'class="span released" href="/lock/went" [^>]*>\s*<title>worker-1 : ', html)
    board.store.take("late", held_for=400)
    board.store.wait("late", "w", hostname="h", pid=3, since=time.time() - 60)
    html = board.html("/timeline?span=900")
    assert re.search(r'class="span held alert" href="/lock/late"', html)
    assert re.search(r'aria-label="h : 3 has waited for 1 min', html)
    order = [html.index(f'data-key="{name}"') for name in ("late", "held", "went")]
    assert order == sorted(order), "as the list has them"
    words = ("15 min ago", "10 min ago", "now", "held", "released", "auto-unlocked")
    board.shows("/timeline?span=900", *words)
    board.shows("/timeline?q=nothing", "No lock matches.")
    for same in ("15m", "900s", "15+min"):
        board.shows(f"/timeline?span={same}", "15 min ago")
    for other in ("1", "soon", "15m15m"):
        said = f"must be one of 15 min, 1 h, 6 h, 24 h; it is '{other}'"
        board.shows(f"/timeline?span={other}", said, code=400)


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
    assert said == "h : 5, start unknown, still held"


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
            "/nothing": "Page not found · prod",
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
        assert "<title>etcd unreachable · prod</title>" in board.html("/")
    with Board() as plain:
        assert "<title>Locks · ClusterMutex</title>" in plain.html("/")
        assert plain.get("/").headers["ETag"].split("-")[-2] != tag.split("-")[-2]


def test_a_stuck_lock_says_what_to_do_and_how_many_wait(board: Board) -> None:
    board.store.take("deploy/prod", uuid="u1", held_for=400, hostname="ci-3.example.com")
    for number in range(6):
        since = time.time() - 900 + number
        board.store.wait("deploy/prod", f"w{number}", hostname="h", pid=1, since=since)
    commands = ("ssh ci-3.example.com", "ps -o", "py-spy dump --pid 4711", "-- deploy/prod")
    text = board.shows("/lock/deploy%2Fprod", *commands, "LockPastAlert")
    assert re.search(
        r"auto-unlock in 8 min \d+ s\. 6 waiters, the longest for 15 min \d+ s\.", text
    )
    board.shows("/", "6 waiting · the longest 15 min")
    board.store.take("well")
    board.shows("/lock/well", but=("What to do",))


def test_the_code_is_offered_where_there_is_one(board: Board) -> None:
    board.store.removed("with", "u1", backtrace=DEEP, removed_at=5.0)
    board.shows("/removed", "Where it was acquired")
    board.store.removed("without", "u2", backtrace=None, removed_at=6.0)
    board.shows("/removed?q=without", but=("Where it was acquired",))
    board.store.take("without")
    board.shows("/lock/without", but=("Where it was acquired",))


def test_a_host_has_a_page_of_what_it_holds(board: Board) -> None:
    board.store.take("a", hostname="bill-3.example.com", pid=7, held_for=2000)
    board.store.take("b", hostname="bill-30.example.com")
    assert 'href="/host?name=bill-3.example.com"' in board.html("/")
    others = ("bill-30", "bill-3.example.com : 7")  # each row would say the same
    text = board.shows("/host?name=bill-3.example.com", "Holds (1)", but=others)
    assert re.search(r"Process .* pid 7 ", text)


def test_what_a_list_says_of_itself(board: Board) -> None:
    """Keys where there are rows; waiters are sorted the most first; what a search was taken for."""
    assert "<kbd>" not in board.html("/")
    board.store.take("a", hostname="bill-3")
    assert "<kbd>" in board.html("/")
    assert 'href="/?sort=-waiters"' in board.html("/")
    assert 'href="/?sort=waiters"' in board.html("/?sort=-waiters")
    parts = ("host has “bill”", "not: anything has “nothing”", "1–1 of 1 lock")
    board.shows("/?q=host:bill+-nothing+4711", *parts)
    board.shows("/?q=bill", but=("anything has",))


def test_a_host_loses_its_domain_first_and_an_address_nothing() -> None:
    assert domain("bill-3.prod.example.com") == ("bill-3", ".prod.example.com")
    for name in ("10.20.30.40", "::1", "db", ".x"):
        assert domain(name) == (name, "")


@pytest.mark.parametrize("title", ["x" * 41, "a\u202eb", "a\nb"])
def test_a_title_is_short_and_seen(title: str) -> None:
    done = CliRunner().invoke(main, ["--title", title])
    assert done.exit_code == 2
    assert "--title must have at most 40 characters" in done.output
