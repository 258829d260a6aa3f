"""Ended locks: rows that stay briefly, lanes of the timeline, updated snapshots."""

from __future__ import annotations

import gc
import json
import random
import re
import time
import tracemalloc
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote, unquote

import pytest

from tests.support.board import Board, DashboardStore
from tests.support.processes import wait_until


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        # A machine that is busy for seconds must not have rows go that are about to be looked at.
        started.stopped = time.time()
        yield started


def shown(board: Board, query: str = "") -> list[tuple[str, str]]:
    """Return the rows of the list, each with how it ended."""
    rows = re.findall(r'<tr[^>]* data-key="(\S+)%20(.*?)</tr>', board.html(f"/{query}"), re.DOTALL)
    ends = [re.search(r'<span class="went" title="([^"]*)"', row) for _, row in rows]
    return [
        (unquote(name), unescape(end[1]) if end else "held")
        for (name, _), end in zip(rows, ends, strict=True)
    ]


def wait_for(board: Board, *ended: str) -> None:
    """The table tells what went a moment after it shows that it has."""
    for name in ended:
        row = f'<tr class="ended" data-key="{quote(name)}%20'
        wait_until(lambda: row in board.html(f"/?q=lock:{name}"), what="the history")  # noqa: B023


def removal(board: Board, name: str, uuid: str, **facts: Any) -> list[Any]:
    """Return what is written when a lock is deleted with a record, in one step."""
    record = json.dumps({"removed_at": board.now() - 0.001, **facts}).encode()
    return [*board.store.gone(name), ("removed", name, uuid, record)]


# ---------------------------------------------------------------- rows that went


def test_a_row_stays_briefly_after_its_lock_ended(board: Board) -> None:
    for number, name in enumerate(("released", "auto", "forced")):
        board.store.take(name, uuid=name, held_for=100 + number)
    board.html("/")
    board.store.release("released")
    board.store.write(
        *removal(board, "auto", "auto", how="auto-unlock", removed_by="dog:7", why="no heartbeat")
    )
    board.store.write(
        *removal(board, "forced", "forced", how="force-unlock", removed_by="ann", why="it hangs")
    )
    wait_for(board, "released", "auto", "forced")

    assert shown(board) == [
        ("forced", "Force-unlocked by ann: it hangs"),
        ("auto", "Auto-unlocked by dog:7: no heartbeat"),
        ("released", "Released"),
    ]
    board.shows("/", "0held 0overdue")
    answer = board.get("/api/locks")
    assert answer.json["locks"] == []
    board.ahead += 6.5
    assert shown(board) == []
    assert board.get("/api/locks").headers["ETag"] != answer.headers["ETag"]


def test_an_ended_row_keeps_its_place_and_is_not_counted(board: Board) -> None:
    every = [f"lock-{number:03}" for number in range(220)]
    for name in every:
        board.store.take(name, held_for=0)
    board.html("/")
    went = ("lock-005", "lock-100", "lock-219")
    for name in went:
        board.store.release(name)
    wait_for(board, *went)

    def page(number: int, sort: str) -> list[str]:
        return [name for name, _ in shown(board, f"?sort={sort}&page={number}")]

    first, second, third = (page(number, "name") for number in (1, 2, 3))
    # 217 are held, 100 a page; those that went stand behind their neighbour, on its page.
    assert (first, third[-2:]) == (every[:102], ["lock-218", "lock-219"])
    assert first + second + third == every
    assert page(1, "-name") + page(2, "-name") + page(3, "-name") == every[::-1]
    board.shows("/", "1–100 of 217 locks")


def test_the_row_of_the_next_holder_replaces_the_ended_one(board: Board) -> None:
    for name in ("a", "b"):
        board.store.take(name, uuid="u1")
    board.html("/")
    board.store.release("a")
    board.store.take("a", uuid="u2")
    board.store.release("b")
    wait_for(board, "b")
    assert sorted(shown(board)) == [("a", "held"), ("b", "Released")]


def test_filters_apply_to_ended_rows(board: Board) -> None:
    board.store.take("late", held_for=400)
    board.store.take("fine")
    board.html("/")
    board.store.release("late")
    board.store.release("fine")
    wait_for(board, "late", "fine")
    assert shown(board, "?state=alert") == [("late", "Released")]
    assert shown(board, "?q=FINE") == [("fine", "Released")]
    assert shown(board, "?state=waiters") == []


def test_locks_that_ended_before_the_start_are_not_shown() -> None:
    store = DashboardStore()
    store.removed("a", "u1", how="auto-unlock")
    store.take("b")
    with Board(store=store) as board:
        assert shown(board) == [("b", "held")]
        board.shows("/timeline", but=("auto-unlocked by",))


def test_a_removal_during_a_lost_watch_is_shown_from_its_record(board: Board) -> None:
    board.store.take("a", uuid="u1")
    board.html("/")
    facts = {"how": "auto-unlock", "removed_by": "dog", "why": "late"}
    board.store.write_unseen(*removal(board, "a", "u1", **facts))
    wait_for(board, "a")
    assert shown(board) == [("a", "Auto-unlocked by dog: late")]


# ---------------------------------------------------------------- a picture made of the one before


def test_an_updated_snapshot_equals_a_new_one(board: Board) -> None:
    chance, waiting = random.Random(3), set[tuple[str, str]]()

    def step(number: int) -> None:
        nonlocal waiting
        name = f"lock-{chance.randrange(60)}"
        match chance.randrange(6):
            case 0:
                board.store.release(name)
            case 1:
                waiter = (name, f"w{chance.randrange(3)}")
                leaves = waiter in waiting and chance.randrange(2)
                board.store.write(("queue", *waiter, None if leaves else b"{}"))
                waiting = waiting - {waiter} if leaves else waiting | {waiter}
            case 2:
                board.ahead += chance.choice((1, 50, -20))
            case 3:
                stamp = chance.choice(("x", "1", "9e9"))
                board.store.take(name, uuid=f"u{number}", alert_at=stamp)
            case _:
                how = {"held_for": chance.randrange(1000), "unlock": chance.choice((900, 301))}
                board.store.take(name, uuid=f"u{number}", **how)

    def seen(of: Board) -> Any:
        counts = re.findall(r"^mutexdash_(?:locks|waiters).*", of.html("/metrics"), re.MULTILINE)
        return of.get("/api/locks?per_page=1000").json["locks"], counts

    for number in range(150):
        step(number)
        board.get("/api/locks")
        if number % 10 == 0:
            with Board(store=board.store) as fresh:
                fresh.stopped, fresh.ahead = board.stopped, board.ahead
                assert seen(board) == seen(fresh)


def test_old_snapshots_are_dropped(board: Board) -> None:
    """A rendered template is a cycle, and keeps its picture until the collector comes by."""
    for number in range(3000):
        board.store.take(f"lock-{number}")
    board.html("/?state=alert")
    gc.collect()
    gc.disable()
    tracemalloc.start()
    for number in range(20):
        board.store.take(f"another-{number}")
        board.html("/?state=alert")
    taken, _ = tracemalloc.get_traced_memory()
    gc.enable()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(40):
        board.store.take(f"more-{number}")
        board.html("/?state=alert")
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 4_200_000, "the rows of one picture and not of twenty"
    assert after - before < 900_000, "no picture is referred to once the next one is there"


# ---------------------------------------------------------------- lanes


def lanes(board: Board, query: str = "") -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the lanes of the timeline: each lock with the positions and the texts of its spans."""
    rows = re.findall(
        r'<tr data-key="(\S+)">(.*?)</tr>', board.html(f"/timeline{query}"), re.DOTALL
    )
    span = r'<title>([^<]*)</title>\s*<svg x="([\d.]+)%" width="([\d.]+)%"'
    return [
        (
            unquote(name),
            [
                (f"{float(left):.0f} {float(width):.0f}", unescape(text))
                for text, left, width in re.findall(span, row)
            ],
        )
        for name, row in rows
    ]


def test_lanes_show_each_holder_and_how_its_time_ended(board: Board) -> None:
    board.store.take("a", uuid="u1", held_for=1800)
    board.store.take("zz", uuid="u2", held_for=7200, alert=300, unlock=None)
    board.html("/")
    board.store.write(
        *removal(board, "a", "u1", how="force-unlock", removed_by="ann", why="it hangs")
    )
    wait_for(board, "a")
    board.store.take("a", uuid="u3", held_for=0)

    (first, whole), (second, spans) = lanes(board)
    assert (first, second) == ("zz", "a"), "as the list has them"
    ((place, text),) = whole
    assert (place, text.endswith(", still held")) == ("0 100", True)
    (before, why), (after, now) = spans
    assert (before, after) == ("50 50", "100 0")
    assert why.endswith(", force-unlocked by ann: it hangs")
    assert now.endswith(", still held")
    assert [name for name, _ in lanes(board, "?q=ZZ")] == ["zz"]


def test_lanes_are_bounded_and_half_of_them_show_ended_locks(board: Board) -> None:
    gone = [f"gone-{number:02}" for number in range(60)]
    for number in range(60):
        board.store.take(f"held-{number:02}", unlock=100)
        board.store.take(gone[number], uuid=f"u{number}", unlock=9000)
    board.html("/")
    for name in gone:
        board.store.release(name)
        wait_for(board, name)
    board.store.take("gone-59", uuid="u", unlock=9000)
    found = lanes(board)
    assert len(found) == 50
    assert [name for name, _ in found if name.startswith("gone")] == gone[:34:-1]
    board.shows("/timeline", "70 more locks were held in this time")
    (spans,) = [spans for name, spans in found if name == "gone-59"]
    assert [text.rpartition(", ")[2] for _, text in spans] == ["released", "still held"]


def test_a_lane_counts_the_waiters_that_it_omits(board: Board) -> None:
    board.store.take("a")
    for number in range(14):
        board.store.wait("a", f"w{number}", since=time.time() - 60, pid=number)
    assert board.html("/timeline").count('class="lane wait" ') == 5
    board.shows("/timeline", "9 more wait")


def test_each_colour_of_a_lane_is_in_the_legend(board: Board) -> None:
    board.store.take("late", held_for=3000, max_hold=2000, alert=9000, unlock=9999)
    legend, _, found = board.html("/timeline").partition("<tbody")
    assert 'class="span held held-too-long"' in found
    for verdict in ["ok", "alert", "overdue", "undecided", "broken", "deadlock", "held-too-long"]:
        assert f'<g class="span held {verdict}">' in legend
    style = board.html("/static/style.css")
    tones = re.findall(r"^\.(?:alert|held-too-long)\b[^{]*\{ (--tone: [^;]+)", style, re.MULTILINE)
    assert len(set(tones)) == 2


def test_the_newest_two_thousand_ended_holds_are_kept(board: Board) -> None:
    for number in range(2010):
        board.store.take("a", uuid=f"u{number}", pid=number)
    board.store.take("a", uuid="last")

    def ended() -> list[str]:
        return [text for _, text in lanes(board)[0][1] if text.endswith("released")]

    wait_until(lambda: f"worker-1 : {number}," in ended()[-1], what="the last one's end")
    assert len(ended()) == 2000
    assert ended()[0].startswith("worker-1 : 10,")
