"""A store that is polled tells what a watch would tell: what no store of the contract shows of it.

That its followers see all is in `tests/contract`; that a poll without news is one request, and what
a refusal does, in `tests/integration/test_bucket_table.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Queue

import pytest

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.polling import Key, KnownItem, Polling, StoreClock, StoredItem
from lockclient.stores.mutex_store import Subscription
from lockclient.stores.service_store import Batch
from lockclient.threads.pool import WorkerPool
from tests.support.processes import wait_until

WEEK = Deadline.after(7 * 86400)


class Source:
    """A store that has removal records alone, and whose clock a test moves."""

    def __init__(self) -> None:
        self.records_written: list[StoredItem] = []
        self.wall = 1_800_000_000.0
        self.polls = 0
        self.error: Exception | None = None
        self.takes_s = 0.0

    def put(self, uuid: str) -> None:
        version = (1 << 60) - 7 * len(self.records_written)  # like a bucket's, they need not grow
        said = {uuid: (b"{}", version)}
        self.records_written.append(StoredItem("removed", "a", uuid, version, self.wall, said))

    def live(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        del deadline, known
        self.polls += 1
        time.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        yield []

    def records(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        del deadline, known
        yield self.records_written

    def record_version(self) -> int:
        return len(self.records_written)

    def now(self) -> float:
        return self.wall


class Follower:
    """Follows locks and removals, and polls when the test says so."""

    def __init__(self, polling: Polling) -> None:
        polling.interval_s = 3600.0
        self.batches: Queue[Batch] = Queue()
        *_, last = polling.load(("locks", "removed"), WEEK)
        self.following = polling.follow(last.revision + 1, self.batches.put)
        self._polling = polling

    def next(self) -> Batch:
        self._polling.poll_soon()
        return self.batches.get(timeout=30)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def polling(source: Source) -> Iterator[Polling]:
    pool = WorkerPool("polling", 1)
    made = Polling(source, pool)
    yield made
    made.close()
    pool.close()


def test_found_records_are_in_the_order_of_their_writing(source: Source, polling: Polling) -> None:
    """By the store's time: a first reader knows no other one."""
    for number in (3, 1, 2):
        source.wall = 1_800_000_000.0 + number
        source.put(f"{number}")
    source.wall += 60
    changes = [change for batch in polling.load(("removed",), WEEK) for change in batch.changes]
    assert [change.part for change in sorted(changes, key=lambda each: each.created)] == [*"123"]


def test_a_reported_record_is_not_new_after_a_full_read(source: Source, polling: Polling) -> None:
    follower = Follower(polling)
    source.wall += 3600
    source.put("1")
    source.wall -= 3600
    batch = follower.next()
    wait_until(lambda: polling.snapshot.revision == batch.revision)
    follower.following.close()
    again = [batch for batch in polling.load(("locks", "removed"), WEEK) if batch.changes]
    assert again[0].changes[0].created <= batch.revision


def test_an_unexpected_error_causes_a_full_read(source: Source, polling: Polling) -> None:
    follower = Follower(polling)
    source.error = RuntimeError("oh")
    batch = follower.next()
    assert (batch.gap, batch.refused) == (True, "")


def test_its_clock_is_never_ahead_of_the_store_s() -> None:
    """An answer tells whole seconds, a while ago: of the last ones the latest tells most."""
    real = monotonic()
    heard = [100.9, 101.2, 101.1]
    clock = StoreClock(lambda: monotonic() - real + heard[0])
    ahead = []
    while heard:
        ahead.append(clock.ahead() + real)
        heard.pop(0)
    assert [round(seconds, 1) for seconds in ahead] == [100.9, 101.2, 101.2]


class Hints:
    """Calls its listeners at each hint; a closed one is called no more."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []

    def listen(self, notify: Callable[[], None]) -> Subscription:
        hints = self

        class Listener:
            def close(self) -> None:
                hints.listeners.remove(notify)

        self.listeners.append(notify)
        return Listener()


def test_slow_polls_are_not_hastened_much(source: Source) -> None:
    """Hints without end make it poll for a quarter of the time, not more."""
    hints, ended = Hints(), threading.Event()
    pool = WorkerPool("polling", 1)
    polling = Polling(source, pool, hints.listen)
    follower = Follower(polling)
    source.takes_s = 0.1

    def hint() -> None:
        while not ended.wait(0.001):
            for listener in [*hints.listeners]:
                listener()

    thread = threading.Thread(target=hint)
    thread.start()
    try:
        follower.batches.get(timeout=60)
        began = monotonic()
        for _ in range(3):
            follower.batches.get(timeout=60)
        assert monotonic() - began >= 3 * 4 * source.takes_s - 0.1
    finally:
        ended.set()
        thread.join()
        polling.close()
        pool.close()
    wait_until(lambda: not hints.listeners, what="the end of the follower's listener")
