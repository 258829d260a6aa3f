"""Finalizers that the garbage collector runs in a thread of a store, on each store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from lockclient import ClusterMutex, ClusterMutexError
from tests.contract.subject import Subject
from tests.support.processes import wait_until

AT_ONCE_S = 1.0


class Finalized:
    """An object whose finalizer makes these calls, and adds their errors to `errors`."""

    def __init__(self, calls: list[Callable[[], object]], ended: threading.Event) -> None:
        self.calls = calls
        self.ended = ended
        self.errors: list[Exception | None] = []
        self.seconds: list[float] = []

    def __del__(self) -> None:
        for call in self.calls:
            began, error = time.monotonic(), None
            try:
                call()
            except ClusterMutexError as raised:
                error = raised
            self.seconds.append(time.monotonic() - began)
            self.errors.append(error)
        self.ended.set()


def test_a_finalizer_in_a_thread_of_the_library_waits_for_nothing(subject: Subject) -> None:
    """A call that would wait raises at once, also while another holder has the lock."""
    store = subject.store
    held = ClusterMutex("held", store=store).acquire()
    assert held is not None
    calls: list[Callable[[], object]] = [
        ClusterMutex("other", store=store).acquire,
        ClusterMutex("held", store=store).acquire,
        partial(held.alive, force=True),
        held.holder,
        held.release,
    ]
    garbage = [Finalized(calls, threading.Event())]
    ended, errors, seconds = garbage[0].ended, garbage[0].errors, garbage[0].seconds
    store.background.urgent.submit(garbage.clear)
    assert ended.wait(30)
    assert max(seconds) < AT_ONCE_S
    assert [error is not None for error in errors] == [True] * 4 + [False]
    wait_until(lambda: ClusterMutex("held", store=store).holder() is None, what="the release")
