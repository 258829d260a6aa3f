"""Bounds of memory and time with very many locks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from lockclient.model.holder import Holder
from lockclient.overview.rows import Row, Transition
from tests.support.fake_clock import FakeClock
from unlocker.deadlines import Deadlines
from unlocker.rate_limit import WINDOW_S, RateLimit

WALL = 1_800_000_000.0


def pushed(name: str, at: float = 0.0, *, found: bool = False, revision: int = 0) -> Transition:
    """Return the news of a push; the alert comes 30 s after it, the removal 60 s."""
    holder = Holder(
        *(name, "u", "host"),
        stamp_revisions=(revision, revision),
        alert_at=WALL + at + 30,
        auto_unlock_at=WALL + at + 60,
        expected_runtime=30.0,
        auto_unlock_after=60.0,
    )
    return Transition(name, None, Row(holder, at, found), live=True)


def gone(name: str) -> Transition:
    return Transition(name, None, None, live=True)


def names(deadlines: Deadlines, now: float) -> tuple[list[str], list[str]]:
    """Go on in time and return the names of alerts, and of locks that are due."""
    alerts, due = deadlines.pop_due(now)
    return [item.row.holder.name for item in alerts], [item.row.holder.name for item in due]


def kept_bytes(work: Callable[[], object]) -> int:
    """Return how much memory is in use after some work that was not before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_ended_locks_leave_nothing_in_memory() -> None:
    deadlines = Deadlines()
    deadlines.update([pushed("kept")])

    def push() -> None:
        for number in range(10_000):
            deadlines.update([pushed("kept", number / 1000)])

    def come_and_go() -> None:
        for number in range(10_000):
            deadlines.update([pushed(f"{number}", found=True)])
            deadlines.update([gone(f"{number}")])

    assert kept_bytes(push) < 30_000
    assert kept_bytes(come_and_go) < 800_000
    assert names(deadlines, 41) == (["kept"], [])


def test_counted_auto_unlocks_are_forgotten_without_a_limit_too() -> None:
    clock = FakeClock()
    limit = RateLimit(None, clock)

    def count() -> None:
        for number in range(10_000):
            limit.count([(f"lock {number}", "uuid")])
            clock.now += WINDOW_S / 10

    assert kept_bytes(count) < 100_000


def test_only_locks_without_a_push_come_due() -> None:
    deadlines = Deadlines()
    deadlines.update([pushed("a"), pushed("b")])
    assert not deadlines.has_due(29)
    deadlines.update([pushed("a", 20.0), gone("b")])
    assert not deadlines.has_due(49)
    assert deadlines.has_due(51)
    assert deadlines.has_due(51)
    assert names(deadlines, 51) == (["a"], [])
    assert not deadlines.has_due(79)
    assert deadlines.has_due(81)
    assert names(deadlines, 81) == ([], ["a"])
    assert not deadlines.has_due(1000)


def test_a_lock_restored_to_an_earlier_push_repeats_no_alert() -> None:
    deadlines = Deadlines()
    deadlines.update([pushed("a", 9, revision=7)])
    assert names(deadlines, 40) == (["a"], [])
    deadlines.update([pushed("a", found=True, revision=5)])
    assert names(deadlines, 61) == ([], ["a"])
