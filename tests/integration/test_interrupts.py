"""Ctrl-C in the middle of a request, over a real etcd, harms no other caller."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.stores.service_store import ServiceStore
from tests.support.processes import wait_until


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM raises as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    set_alarm(0)
    signal.signal(signal.SIGALRM, before)


def set_alarm(seconds: float) -> None:
    """Send SIGALRM, and again after 5 s: if the handler raises while a callback of the garbage
    collector runs (Hypothesis has one), Python only warns and goes on. 0: send none any more."""
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)


SWALLOWED = "ignore::pytest.PytestUnraisableExceptionWarning"


@pytest.mark.filterwarnings(SWALLOWED)
@pytest.mark.usefixtures("alarm")
def test_other_threads_get_their_answers(settings: Settings) -> None:
    """gRPC's locks may stay taken after an interrupt: the other threads must never need them."""
    choose = random.Random(5)
    store = open_store(settings)
    mutex = ClusterMutex("x", store=store, capture_backtrace=False)
    for _ in range(60):
        with contextlib.suppress(KeyboardInterrupt):
            set_alarm(choose.uniform(0.001, 0.006))
            while True:
                mutex.holder()
        set_alarm(0)
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(mutex.waiters()), daemon=True)  # noqa: B023
        thread.start()
        thread.join(60)
        assert answers == [[]], "a thread waits for ever for a lock of gRPC's"
    thread = threading.Thread(target=store.close, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.filterwarnings(SWALLOWED)
@pytest.mark.usefixtures("alarm")
def test_a_holder_outlives_many_interrupts(store: ServiceStore) -> None:
    """Its pushes in the background and the watch for its loss go on."""
    choose = random.Random(6)
    held = ClusterMutex(
        "held", store=store, expected_runtime=1, auto_unlock_after=30, keepalive=True
    )
    held.acquire()
    wait_until(store.connected, what="the watch for its loss")
    for _ in range(40):
        mutex = ClusterMutex("x", store=store)
        with contextlib.suppress(KeyboardInterrupt):
            set_alarm(choose.uniform(0.001, 0.006))
            while True:
                mutex.acquire()
                mutex.release()
        set_alarm(0)
        if mutex.locked():
            mutex.release()
    pushed = held.record.alive_at or 0
    wait_until(lambda: (held.record.alive_at or 0) > pushed, what="another push")
    held.check_health()
    held.release()
    wait_until(lambda: mutex.holder() is None, what="the last trace to go")
