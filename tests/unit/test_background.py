"""The process's one background thread: its jobs, the line's lease, and cleaning up."""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue

import pytest

from lockclient import background
from lockclient.background import Background, Line, clean_up
from lockclient.errors import StoreClosed, StoreError, StoreUnavailable
from lockclient.record import Holder
from lockclient.store import Event, Outcome, Request, Take, Withdraw
from lockclient.timing import Deadline
from tests.memory_store import MemoryStore
from tests.processes import wait_until


class TestJobs:
    def test_they_run_at_their_times(self) -> None:
        """The one that is due first runs first, whenever it was given."""
        jobs, ran = Background(), list[str]()
        for name, seconds in [("last", 0.3), ("first", 0.0), ("middle", 0.15)]:
            jobs.after(seconds, lambda name=name: ran.append(name))  # type: ignore[misc]
        wait_until(lambda: len(ran) == 3, 10)
        assert ran == ["first", "middle", "last"]

    def test_one_that_wants_to_runs_again(self) -> None:
        """It says in how many seconds, and None when it is done."""
        jobs, ran = Background(), list[float]()

        def job() -> float | None:
            ran.append(time.monotonic())
            return 0.02 if len(ran) < 4 else None

        jobs.after(0, job)
        wait_until(lambda: len(ran) == 4, 10)
        after = threading.Event()
        jobs.after(0.1, after.set)
        after.wait(10)
        assert len(ran) == 4

    def test_a_cancelled_one_runs_no_more(self) -> None:
        """Also when its time has come already."""
        jobs, ran = Background(), list[str]()
        task = jobs.after(0.05, lambda: ran.append("cancelled"))
        task.cancel()
        jobs.after(0.1, lambda: ran.append("other"))
        wait_until(lambda: ran, 10)
        assert ran == ["other"]

    def test_one_that_fails_does_not_stop_the_others(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged with its traceback, and the thread goes on."""
        jobs, ran = Background(), list[str]()

        def fail() -> float | None:
            raise ValueError("mine")

        with caplog.at_level(logging.ERROR):
            jobs.after(0, fail)
            jobs.after(0.01, lambda: ran.append("other"))
            wait_until(lambda: ran, 10)
        assert "A background job failed." in caplog.text
        assert "ValueError: mine" in caplog.text


class KeptStore(MemoryStore):
    """A store that counts how often its line was kept, and may say that it is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool | Exception] = []
        self.kept = 0

    def keep_line(self, deadline: Deadline) -> bool:
        """See `MutexStore.keep_line`."""
        self.kept += 1
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestLine:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(background, "LINE_INTERVAL", 0.1)

    def test_it_is_kept_while_somebody_waits(self) -> None:
        """And no longer: an idle process sends nothing."""
        store = KeptStore()
        line, inbox = Line(store), SimpleQueue[Event]()
        line.join(inbox)
        wait_until(lambda: store.kept >= 3, 10)
        line.leave(inbox)
        quiet = threading.Event()
        background.the_background().after(0.15, quiet.set)
        quiet.wait(10)
        kept = store.kept
        quiet.clear()
        background.the_background().after(0.3, quiet.set)
        quiet.wait(10)
        assert store.kept == kept
        assert inbox.empty()

    def test_who_is_woken_often_keeps_its_place(self) -> None:
        """Leaving and joining faster than the interval must not put the renewal off for ever."""
        store = KeptStore()
        line = Line(store)
        until = time.monotonic() + 10
        while store.kept < 3:
            assert time.monotonic() < until
            inbox = SimpleQueue[Event]()
            line.join(inbox)
            time.sleep(0.01)
            line.leave(inbox)

    def test_all_are_told_when_it_is_lost(self) -> None:
        """Each waiter looks for itself; the line goes on."""
        store = KeptStore()
        store.answers = [False]
        line, inboxes = Line(store), [SimpleQueue[Event]() for _ in range(3)]
        for each in inboxes:
            line.join(each)
        assert [each.get(timeout=10).missed for each in inboxes] == [True] * 3
        wait_until(lambda: store.kept >= 3, 10)

    @pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreError("no right")])
    def test_a_failure_is_no_loss(self, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
        """It is tried again soon, and nobody gives up a place that may still stand."""
        store = KeptStore()
        store.answers = [error]
        line, inbox = Line(store), SimpleQueue[Event]()
        line.join(inbox)
        wait_until(lambda: store.kept >= 2, 10)
        assert inbox.empty()
        assert f"could not be renewed, trying on: {error}" in caplog.text
        line.leave(inbox)


class FailingStore(MemoryStore):
    """A store that fails a few times before it withdraws."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        """See `MutexStore.ask`."""
        if isinstance(request, Withdraw) and self.failures:
            raise self.failures.pop(0)
        return super().ask(request, deadline)


class TestCleaningUp:
    def test_it_is_tried_until_it_is_done(self) -> None:
        """The ticket of a living process does not expire, so giving up is no choice."""
        store = FailingStore(*[StoreUnavailable("away")] * 3)
        store.ask(Take(Holder("x", "me", hostname="h")), Deadline.after(1))
        clean_up(store, Withdraw("x", "me"))
        wait_until(lambda: store.model.lock("x").holder is None, 20)

    def test_a_closed_store_ends_it(self, caplog: pytest.LogCaptureFixture) -> None:
        """It is not opened again, so trying on would go on for as long as the program."""
        caplog.set_level("INFO")
        store = FailingStore(StoreClosed("The connection was closed."))
        store.ask(Take(Holder("x", "me", hostname="h")), Deadline.after(1))
        clean_up(store, Withdraw("x", "me"))
        wait_until(lambda: "is not cleaned up: the store is closed" in caplog.text, 20)
        clean_up(store, Withdraw("y", "me"))
        wait_until(
            lambda: not background._clean_up_of(store).pending(), 20, "the end of all clean-up"
        )
        assert store.model.lock("x").holder is not None

    def test_it_tells_when_it_is_done(self) -> None:
        """So that the caller can wait for it."""
        store = MemoryStore()
        store.ask(Take(Holder("x", "me", hostname="h")), Deadline.after(1))
        finished = threading.Event()
        clean_up(store, Withdraw("x", "me"), finished.set)
        assert finished.wait(20)
        assert store.model.lock("x").holder is None


def test_short_jobs_do_not_wake_the_thread() -> None:
    """A lock that is released at once costs no thread switch: its cancelled job waits its time."""
    jobs = Background()
    jobs.after(0.5, lambda: None)
    wait_until(lambda: jobs._wakes_at > 0, 10, "the thread to sleep")
    wakes_at = jobs._wakes_at
    for _ in range(3000):
        jobs.after(1.0, lambda: None).cancel()
    assert jobs._wakes_at == wakes_at
    assert len(jobs._heap) < 1500, "cancelled ones are thrown away when there are many"
