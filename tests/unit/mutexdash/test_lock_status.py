"""The status of a lock in one word, and the facts of a client that it depends on."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.model.backtrace import FRAME_BYTES, innermost_frame
from lockclient.model.deadlocks import Deadlock
from lockclient.model.fields import size_of
from lockclient.model.holder import STATES
from lockclient.model.ticket import Ticket
from lockclient.mutex import ClusterMutex
from lockclient.overview.lock_status import LockStatus, status_of
from lockclient.stores.request_types import TakeOrQueue
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until


def test_a_mutex_writes_its_keepalive_and_max_hold() -> None:
    store = MemoryStore()
    with ClusterMutex("a", keepalive="2h", max_hold="4m", store=store) as held:
        holder = held.holder()
        assert holder is not None
        assert (holder.keepalive, holder.max_hold) == (True, 240.0)
        assert holder.locked_at is not None
        assert holder.too_long_at == holder.locked_at + 240
        assert status_of(holder, holder.locked_at + 241).verdict == "held-too-long"
    with ClusterMutex("a", store=store) as held:
        holder = held.holder()
        assert holder is not None
        assert (holder.keepalive, holder.max_hold, holder.too_long_at) == (None, None, None)
    with pytest.raises(ValueError, match="max_hold must be more than 0 s"):
        ClusterMutex("a", max_hold=0, store=store)


@pytest.mark.parametrize("captured", [True, False])
def test_a_ticket_has_the_calling_line_of_its_waiter(captured: bool) -> None:
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
def test_each_word_of_a_verdict_finds_it(state: str) -> None:
    for deadlock in (False, True):
        for late in (False, True):
            status = LockStatus(state, deadlock, late)
            assert status.verdict in status.words
            assert status.words[0] == state
            assert (status.verdict == "deadlock") == deadlock
    assert LockStatus("ok").verdict == "ok"


def test_a_long_cycle_is_described_from_the_asked_lock() -> None:
    circle = Deadlock(tuple(Ticket(name, "u") for name in "abcdefgh"))
    assert circle.seen_from("g") == ("g", "h", "a", "b", "c")
