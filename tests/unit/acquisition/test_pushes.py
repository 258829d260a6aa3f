"""Failed pushes and late answers neither end later pushes nor extend the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lockclient import ClusterMutex, LockLost, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Push, Request
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until


class SlowStore(MemoryStore):
    """Its answers to pushes come late, and the next so many never."""

    def __init__(self, late_s: float = 0.5) -> None:
        super().__init__()
        self.late_s = late_s
        self.failures = 0
        self.pushed_at = 0.0

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        outcome = super().ask(request, deadline)
        if isinstance(request, Push):
            self.pushed_at = monotonic()
            time.sleep(self.late_s)
            self.failures -= 1
            if self.failures >= 0:
                raise StoreUnavailable("it does not answer")
        return outcome


def test_a_failed_push_does_not_end_later_pushes() -> None:
    store = SlowStore()
    with ClusterMutex("x", store=store, keepalive=True, expected_runtime=2, auto_unlock_after=90):
        # Not sooner: after a slow take the holder pushes until a push is answered.
        store.failures = 1
        wait_until(lambda: store.failures < -1, what="pushes after the first")


def test_the_holder_s_time_counts_from_before_its_push_was_sent() -> None:
    store = SlowStore(late_s=1.5)
    with ClusterMutex("x", store=store, expected_runtime=1, auto_unlock_after=2) as held:
        held.alive(force=True)
        lost_at = wait_until(lambda: not held.healthy and monotonic(), what="its end")
        assert lost_at < store.pushed_at + 3.2
        with pytest.raises(LockLost):
            held.release()


def test_no_quiet_time_reaches_beyond_the_deadline() -> None:
    """A push that failed puts the next one off, but not what `alive()` says at the deadline."""
    store = SlowStore(late_s=0.05)
    held = ClusterMutex("x", store=store, expected_runtime=1, auto_unlock_after=1.5).acquire()
    assert held is not None
    deadline, store.failures = monotonic() + 1.5, 1_000_000
    with pytest.raises(StoreUnavailable):
        held.alive(force=True)
    before = 0.0
    try:
        while before < deadline:
            before = monotonic()
            held.alive()
            time.sleep(0.002)
    except LockLost:
        return
    pytest.fail("it says that all is well after its deadline")


def test_alive_in_a_hot_loop_asks_nothing_and_force_always_pushes() -> None:
    store = MemoryStore()
    with ClusterMutex("x", store=store) as held:
        asked = len(store.asked)
        for _ in range(100):
            held.alive()
        assert len(store.asked) == asked
        for _ in range(3):
            held.alive(force=True)
        assert len(store.asked) == asked + 3


class GapsStore(MemoryStore):
    """Its watches, begun slowly, can be told of gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.notifiers: list[Callable[[WatchEvent], None]] = []

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Any:
        time.sleep(0.2)
        self.notifiers.append(notify)
        return super().watch(target, revision, notify)


def test_two_gaps_of_a_watch_leave_no_watch_behind() -> None:
    """Both of its streams may miss changes."""
    store = GapsStore()
    with ClusterMutex("x", store=store):
        wait_until(lambda: store.watching() == 1, what="the watch")
        for _ in range(2):
            store.notifiers[0](WatchEvent(0, gap=True))
        wait_until(lambda: len(store.notifiers) > 1, what="the new watch")
        time.sleep(0.5)
        assert store.watching() == 1
    assert store.watching() == 0
