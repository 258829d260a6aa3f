"""The verdict on a lock: a deadlock is none that is OK, and neither is what is held too long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.cli.operate.show import lock_lines
from lockclient.model.backtrace import FRAME_BYTES, innermost_frame
from lockclient.model.deadlocks import Deadlock
from lockclient.model.fields import size_of
from lockclient.model.holder import STATES
from lockclient.model.ticket import Ticket
from lockclient.mutex import ClusterMutex
from lockclient.overview.verdict import Standing
from lockclient.stores.requests import TakeOrQueue
from tests.support.dashboard_fakes import Board
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

FRAME = "/srv/app/jobs.py:41 in rebuild"


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        yield started


def embrace(board: Board, *, held_for: float = 0) -> None:
    """Have two that hold a lock each wait for the other one's."""
    for name, actor, waits_for in (("x", "A", "y"), ("y", "B", "x")):
        board.store.take(name, actor=actor, held_for=held_for)
        board.store.wait(waits_for, f"w{actor}", actor=actor, hostname=f"h{actor}", frame=FRAME)


def names(board: Board, query: str) -> list[str]:
    return [lock["name"] for lock in board.get(f"/api/locks{query}").json["locks"]]


def test_a_deadlock_is_the_verdict_that_people_see_everywhere(board: Board) -> None:
    """Its pill has a sign of its own, and no tick; the JSON has the five states, and `deadlock`."""
    board.store.take("fine")
    embrace(board)
    html = board.html("/")
    assert html.count('<tr class="deadlock"') == html.count('<span class="badge deadlock"') == 2
    assert html.count('href="#i-ok"') - html.partition("<main")[0].count('href="#i-ok"') == 1
    assert '<a class="tile deadlock"' in html
    board.shows("/", "2in a deadlock?")
    assert names(board, "") == ["y", "x", "fine"], "above all that is well"
    for query in ("?state=deadlock", "?q=state:deadlock", "?q=state:d"):
        assert sorted(names(board, query)) == ["x", "y"]
    assert names(board, "?q=-state:deadlock") == ["fine"]
    board.shows("/lock/x", "Deadlock?", "This may be a deadlock, see below.")
    page = board.html("/lock/x").partition('class="heading"')[2]
    assert "badge ok" not in page
    uuid = board.get("/api/locks/x").json["uuid"]
    board.shows(f"/locks/x/force-unlock?uuid={uuid}", "Deadlock?")
    for path, circle in (("/api/locks?q=lock:y", ["y", "x"]), ("/api/locks/y", ["y", "x"])):
        said = board.get(path).json
        lock = said.get("locks", [said])[0]
        assert (lock["state"], lock["deadlock"]) == ("ok", circle)
        assert lock["state"] in STATES
    assert board.get("/api/locks/fine").json["deadlock"] == []


def test_an_overdue_lock_in_a_deadlock_is_still_overdue_and_both_is_said(board: Board) -> None:
    embrace(board, held_for=2000)
    assert names(board, "?state=overdue") == names(board, "?state=deadlock") == ["y", "x"]
    board.shows("/lock/x", "Deadlock?", "Overdue")
    assert 'title="Deadlock?, overdue"' in board.html("/")
    assert board.get("/api/locks/x").json["state"] == "overdue"


def test_no_forged_deadlock_buries_an_overdue_lock(board: Board) -> None:
    """And a lock past its alert that thirty wait for stands above a broken one of nobody's."""
    board.store.take("overdue", held_for=2000)
    board.store.take("broken", alert_at="soon")
    board.store.take("waited-for", held_for=400)
    embrace(board)
    for number in range(40):
        board.store.wait("x", f"forged-{number}")
    for number in range(30):
        board.store.wait("waited-for", f"real-{number}")
    assert names(board, "") == ["overdue", "x", "waited-for", "y", "broken"]


def test_what_is_held_for_longer_than_it_says_is_shown_whoever_pushes(board: Board) -> None:
    board.store.take("bounded", held_for=3000, max_hold=3001.5, keepalive=True)
    board.store.take("unbounded", held_for=3000)
    for name in ("bounded", "unbounded"):
        board.store.push(name)
    board.shows("/lock/bounded", but=("Held too long",))
    board.ahead += 2
    text = board.shows("/lock/bounded", "Held too long:", "over its limit of 50 min 1 s (max_hold)")
    assert "lockheldtoolong" in text.lower()
    assert names(board, "?state=held-too-long") == ["bounded"]
    assert names(board, "") == ["bounded", "unbounded"]
    board.shows("/", "1held too long")
    lock = board.get("/api/locks/bounded").json
    assert (lock["state"], lock["held_too_long"], lock["max_hold"]) == ("ok", True, 3001.5)
    board.shows("/lock/unbounded", but=("Held too long", "lockheldtoolong"))


def test_who_is_kept_alive_in_the_background_has_a_badge(board: Board) -> None:
    board.store.take("bg", keepalive=True)
    board.store.take("fg")
    badge = "Kept alive in the background: a hung worker looks healthy"
    board.shows("/lock/bg", badge, "in the background: a hung worker looks healthy")
    board.shows("/lock/fg", but=("Kept alive",))
    assert board.html("/").count(badge) == 1
    assert board.get("/api/locks/bg").json["keepalive"] is True


def test_a_mutex_writes_how_it_is_held() -> None:
    store = MemoryStore()
    with ClusterMutex("a", keepalive="2h", max_hold="4m", store=store) as held:
        holder = held.holder()
        assert holder is not None
        assert (holder.keepalive, holder.max_hold) == (True, 240.0)
        assert holder.locked_at is not None
        assert holder.too_long_at == holder.locked_at + 240
        lines = [click.unstyle(line) for line in lock_lines(holder, (), holder.locked_at + 241)]
        assert lines[0] == "a  held-too-long"
    with ClusterMutex("a", store=store) as held:
        holder = held.holder()
        assert holder is not None
        assert (holder.keepalive, holder.max_hold, holder.too_long_at) == (None, None, None)
    with pytest.raises(ValueError, match="max_hold must be more than 0 s"):
        ClusterMutex("a", max_hold=0, store=store)


def test_many_waiters_catch_the_eye_right_beside_the_name(board: Board) -> None:
    board.store.take("a")
    for number in range(5):
        assert "c-waiters many" not in board.html("/")
        board.store.wait("a", f"w{number}")
    html = board.html("/")
    assert "c-waiters many" in html
    head = html.partition("<thead")[2].partition("</thead")[0]
    assert head.index("c-name") < head.index("c-waiters") < head.index("c-hostname")


# ---------------------------------------------------------------- where each one waits


def test_a_deadlock_s_page_shows_where_each_one_waits(board: Board) -> None:
    embrace(board)
    for name in "xy":
        assert board.text(f"/lock/{name}").count(f"Waits at {FRAME}") == 2
    board.shows("/waiting", f"waits at {FRAME}")
    assert board.get("/api/locks/x").json["queue"][0]["frame"] == FRAME


@pytest.mark.parametrize("captured", [True, False])
def test_a_ticket_has_the_line_that_waits_unless_no_backtrace_is_wanted(captured: bool) -> None:
    store = MemoryStore()
    waiter = ClusterMutex("a", store=store, capture_backtrace=captured)

    def the_code_that_waits() -> None:
        with waiter:
            pass

    def tickets() -> list[Ticket]:
        return [request.ticket for request in store.asked if isinstance(request, TakeOrQueue)]

    with ClusterMutex("a", store=store):
        thread = threading.Thread(target=the_code_that_waits)
        thread.start()
        wait_until(tickets, what="the ticket")
    thread.join(60)
    frame = tickets()[0].frame
    assert (frame is not None) == captured
    assert frame is None or frame.endswith(" in the_code_that_waits")
    assert ("frame" in tickets()[0].value()) == captured


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n")))
def test_a_frame_has_200_bytes_at_most_and_its_end_is_kept(path: str) -> None:
    frame = innermost_frame(f'  File "/{path}", line 7, in main\n    x()\n')
    if frame is not None:
        assert size_of(frame) <= FRAME_BYTES
        assert frame.endswith(":7 in main")
        ticket = Ticket.read("a", "u", Ticket("a", "u", frame=frame).value().encode(), 1)
        assert ticket.frame == frame
    long = Ticket("a", "u", frame="x" * 201).value().encode()
    assert Ticket.read("a", "u", long, 1).frame is None, "of a client that keeps to nothing"


# ---------------------------------------------------------------- words


@pytest.mark.parametrize("state", STATES)
def test_a_verdict_is_one_word_and_every_word_finds_it(state: str) -> None:
    for deadlock in (False, True):
        for late in (False, True):
            standing = Standing(state, deadlock, late)
            assert standing.verdict in standing.words
            assert standing.words[0] == state
            assert (standing.verdict == "deadlock") == deadlock
    assert Standing("ok").verdict == "ok"


def test_a_long_circle_is_told_from_the_lock_on_that_it_is_asked_of() -> None:
    circle = Deadlock(tuple(Ticket(name, "u") for name in "abcdefgh"))
    assert circle.seen_from("g") == ("g", "h", "a", "b", "c")
