"""Pushes that fail, and answers that come late: neither ends what follows, nor gives time."""

from __future__ import annotations

import time

from lockclient import ClusterMutex, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.outcomes import Outcome
from lockclient.stores.requests import Push, Request
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

LATE_S = 0.5


class SlowStore(MemoryStore):
    """Its answers to pushes come late, and the next so many never."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.pushed_at = 0.0

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        outcome = super().ask(request, deadline)
        if isinstance(request, Push):
            self.pushed_at = monotonic()
            time.sleep(LATE_S)
            self.failures -= 1
            if self.failures >= 0:
                raise StoreUnavailable("it does not answer")
        return outcome


def test_one_that_failed_ends_none_that_follow() -> None:
    """As in python-redis-lock, #85."""
    store = SlowStore()
    with ClusterMutex("x", store=store, keepalive=True, expected_runtime=2, auto_unlock_after=90):
        # Not sooner: whoever got its lock slowly pushes it until that is answered.
        store.failures = 1
        wait_until(lambda: store.failures < -1, what="pushes after the first")


def test_the_holder_s_time_counts_from_before_its_push_was_sent() -> None:
    """Else it would work on under a lock that the unlocker may have removed."""
    store = SlowStore()
    with ClusterMutex("x", store=store, expected_runtime=60, auto_unlock_after=90) as held:
        held.alive(force=True)
        assert held._acquisition.deadline <= store.pushed_at + 90
