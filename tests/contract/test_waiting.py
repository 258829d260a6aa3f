"""Reports and errors of a program that waits for a lock, with both drivers."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex
from lockclient.acquisition import wait_report
from lockclient.model.backtrace import innermost
from lockclient.stores.request_types import Read
from tests.contract.drivers import InThreads, Make, Mutex
from tests.contract.subject import Subject
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

LOGGER = "lockclient.acquisition"
pytestmark = pytest.mark.any_store


@contextmanager
def waiting(mutexes: list[Mutex]) -> Iterator[None]:
    """Have each of these wait, in a thread; at the end of the block each gets its turn."""

    def wait(mutex: Mutex) -> None:
        mutex.acquire()
        mutex.release_held()

    threads = [threading.Thread(target=wait, args=(mutex,)) for mutex in mutexes]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def said(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.name.startswith(LOGGER)]
    return [text for text in texts if text.startswith(start)]


def test_a_wait_is_logged_with_the_holder_and_its_end(
    subject: Subject, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    holder = ClusterMutex("x", store=subject.store, reason="totals")
    holder.acquire()
    with waiting([make("x") for _ in range(3)]):
        wait_until(lambda: len(said(caplog, "Waiting")) == 3, what="each to say it")
        texts = said(caplog, "Waiting for the lock 'x' for ")
        for text in texts:
            where = re.escape(socket.gethostname())
            who = rf"it is held by {where}, pid {os.getpid()}, for 'totals', since "
            assert re.match(rf"Waiting for the lock 'x' for \d+ s now; {who}", text)
        holder.release()
    wait_until(lambda: len(said(caplog, "Got the lock 'x' after ")) == 3, what="each to have it")


@pytest.mark.parametrize(("level", "reads"), [(logging.INFO, 1), (logging.WARNING, 0)])
def test_each_waiter_reads_once_a_minute_and_without_info_in_the_log_not_at_all(
    level: int, reads: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level, LOGGER)
    store = MemoryStore()
    holder = ClusterMutex("x", store=store)
    holder.acquire()
    with waiting([InThreads("x", store=store) for _ in range(3)]):
        assert ClusterMutex("x", store=store).acquire(timeout=3.5) is None
        assert sum(isinstance(request, Read) for request in store.asked) == 4 * reads
        assert len(said(caplog, "Waiting for the lock 'x' for ")) == 4 * reads
        holder.release()


def test_a_wait_is_logged_again_each_interval(
    subject: Subject, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wait_report, "INTERVAL_S", 0.5)
    caplog.set_level(logging.INFO, LOGGER)
    holder = ClusterMutex("x", store=subject.store)
    holder.acquire()
    with waiting([make("x")]):
        wait_until(lambda: len(said(caplog, "Waiting")) >= 3, what="it to be said again")
        holder.release()


class TestWaitingForOwnLock:
    """The waiter's own thread or task holds the lock."""

    def test_waiting_for_an_own_lock_is_logged_at_once(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        mutex = ClusterMutex("x", store=subject.store)
        with mutex as outer:
            assert mutex.acquire(timeout=2) is None
            self._is_told(caplog, outer.record.backtrace)

    def test_a_task_is_warned_as_well(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def block() -> str | None:
            mutex = AsyncClusterMutex("x", store=subject.store)
            async with mutex as outer:
                assert await mutex.acquire(timeout=2) is None
                return outer.record.backtrace

        self._is_told(caplog, asyncio.run(block()))

    @staticmethod
    def _is_told(caplog: pytest.LogCaptureFixture, backtrace: str | None) -> None:
        line = innermost(backtrace)
        assert line is not None
        assert line.startswith(__file__)
        start = f"Waiting for the lock 'x', which this thread or task itself acquired at {line}."
        wait_until(lambda: len(said(caplog, start)) == 1, what="the warning")

    def test_another_thread_may_release_an_own_lock(self, subject: Subject) -> None:
        with ClusterMutex("x", store=subject.store) as outer:
            releasing = threading.Timer(0.5, outer.release)
            releasing.start()
            with ClusterMutex("x", store=subject.store):
                assert not outer.healthy
            releasing.join()

    def test_other_threads_and_tasks_are_not_warned(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        mutex = ClusterMutex("x", store=subject.store)

        async def tasks() -> None:
            async with AsyncClusterMutex("x", store=subject.store) as held:
                other = AsyncClusterMutex("x", store=subject.store)

                async def wait() -> None:
                    assert await other.acquire(timeout=0.3) is None

                await asyncio.create_task(wait())
                assert held.healthy

        asyncio.run(tasks())
        with mutex, ThreadPoolExecutor(1) as pool:
            assert pool.submit(mutex.acquire, timeout=0.3).result() is None
        assert not said(caplog, "Waiting for the lock 'x', which this thread")
