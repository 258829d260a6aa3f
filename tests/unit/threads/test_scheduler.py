"""The scheduler and worker pools: jobs, threads, and refused threads."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from pathlib import Path

import pytest

from lockclient.threads import pool
from lockclient.threads.pool import WorkerPool
from lockclient.threads.scheduler import Job, Scheduler
from tests.support.interrupts import raise_in
from tests.support.processes import wait_until


class TestJobs:
    def test_jobs_run_at_their_times(self) -> None:
        jobs, ran = Scheduler(), list[str]()
        for name, seconds in [("last", 0.3), ("first", 0.0), ("middle", 0.15)]:
            jobs.after(seconds, lambda name=name: ran.append(name))  # type: ignore[misc]
        wait_until(lambda: len(ran) == 3)
        assert ran == ["first", "middle", "last"]

    def test_a_job_that_returns_seconds_runs_again(self) -> None:
        jobs, ran = Scheduler(), list[float]()

        def job() -> float | None:
            ran.append(time.monotonic())
            return 0.02 if len(ran) < 4 else None

        jobs.after(0, job)
        wait_until(lambda: len(ran) == 4)
        after = threading.Event()
        jobs.after(0.1, after.set)
        after.wait(10)
        assert len(ran) == 4

    def test_a_cancelled_job_does_not_run(self) -> None:
        jobs, ran = Scheduler(), list[str]()
        task = jobs.after(0.05, lambda: ran.append("cancelled"))
        task.cancel()
        jobs.after(0.1, lambda: ran.append("other"))
        wait_until(lambda: ran)
        assert ran == ["other"]

    @pytest.mark.parametrize("kind", [ValueError, SystemExit])
    def test_a_failed_job_is_retried(
        self, kind: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs, tries, ran = Scheduler(), list[int](), list[str]()

        def fail() -> float | None:
            tries.append(1)
            if len(tries) < 3:
                raise kind("mine")
            return None

        with caplog.at_level(logging.ERROR):
            jobs.after(0, fail)
            jobs.after(0.01, lambda: ran.append("other"))
            wait_until(lambda: ran and len(tries) == 3)
        assert caplog.text.count(f"{kind.__name__}: mine") == 1

    def test_an_exception_from_outside_ends_no_job(self) -> None:
        """A program may raise in any thread, between any two of its steps."""
        jobs, threads, ran = Scheduler(), list[int](), list[str]()
        jobs.after(0, lambda: threads.append(threading.get_ident()))
        wait_until(lambda: threads, what="the thread")
        jobs.after(0.3, lambda: ran.append("earlier"))
        raise_in(threads[0], SystemExit)
        jobs.after(0, lambda: ran.append("later"))  # wakes it
        wait_until(lambda: len(ran) == 2)

    def test_short_ones_do_not_wake_the_thread(self) -> None:
        """A lock that is released at once costs no thread switch: its job waits its time."""
        jobs, threads = Scheduler(), list[int]()
        jobs.after(0, lambda: threads.append(threading.get_native_id()))
        jobs.after(600, lambda: None)
        wait_until(lambda: threads, what="the thread")
        shorts = weakref.WeakSet[Job]()
        before = switches_of(threads[0])
        for number in range(3000):
            shorts.add(job := lambda: None)
            jobs.after(600.5, job).cancel()
            if number < 200:
                time.sleep(0.001)  # in which a thread that is woken runs
        del job
        assert switches_of(threads[0]) - before < 50, "it looks at the clock every few seconds"
        jobs.after(0, lambda: None)
        wait_until(lambda: len(shorts) < 1500, what="most to be thrown away")


def switches_of(thread: int) -> int:
    """Return how often a thread has waited for something."""
    status = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii")
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


class TestThreads:
    def test_work_is_done_at_once_up_to_the_limit(self) -> None:
        workers, go, at_once, most = (
            WorkerPool("test", 4),
            threading.Event(),
            set[int](),
            list[int](),
        )

        def work() -> None:
            at_once.add(threading.get_ident())
            most.append(len(at_once))
            go.wait(10)

        for _ in range(20):
            workers.submit(work)
        wait_until(lambda: len(most) == 4)
        go.set()
        wait_until(lambda: len(most) == 20)
        assert max(most) == 4

    def test_idle_threads_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool, "IDLE_S", 0.05)
        workers, done = WorkerPool("test", 4), list[int]()
        for number in range(200):
            workers.submit(lambda number=number: done.append(number))
            if number % 50 == 49:
                wait_until(lambda: len(done) == number + 1 and not workers.threads())  # noqa: B023
        assert sorted(done) == list(range(200))

    def test_work_that_raises_does_not_end_the_thread(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        workers, done = WorkerPool("test", 1), list[int]()
        workers.submit(lambda: 1 / 0)
        workers.submit(lambda: done.append(1))
        wait_until(lambda: done)
        assert "ZeroDivisionError" in caplog.text

    def test_a_closed_workers_ends(self) -> None:
        """When it is done with what there is."""
        workers, done = WorkerPool("test", 2), list[int]()
        for _ in range(10):
            workers.submit(lambda: done.append(1))
        wait_until(lambda: len(done) == 10)
        workers.close()
        wait_until(lambda: not workers.threads(), 3, "the end, long before it would be idle")
