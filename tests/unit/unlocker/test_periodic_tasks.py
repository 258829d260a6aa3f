"""Periodic tasks run on whatever the wall clock does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo

import pytest
from apscheduler.schedulers import base

from tests.support.processes import wait_until
from unlocker import periodic_tasks
from unlocker.periodic_tasks import Jobs


class WallClock:
    """The wall clock as APScheduler and the jobs see it, to be put forward and back."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    WallClock.ahead = timedelta()
    monkeypatch.setattr(base, "datetime", WallClock)
    monkeypatch.setattr(periodic_tasks, "datetime", WallClock)
    found = Jobs()
    yield found
    found.stop()


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(days=20_000)])
def test_a_jump_of_the_wall_clock_stops_nothing(running: Jobs, jump: timedelta) -> None:
    """20,000 days are a machine that boots in 1970 and then learns the time."""
    runs: list[float] = []
    running.every(0.1, lambda: runs.append(time.monotonic()))
    running.start()
    wait_until(lambda: len(runs) > 2, what="the first runs")
    WallClock.ahead = jump
    seen = len(runs)
    wait_until(lambda: len(runs) > seen + 10, what="runs after the jump")


def test_a_failed_task_runs_again(running: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    def fail() -> None:
        runs.append(1)
        raise RuntimeError("a bug")

    running.every(0.05, fail)
    running.start()
    wait_until(lambda: len(runs) > 2, what="the third run")
    assert caplog.text.count("RuntimeError: a bug") == 1, "it is logged once, as long as it goes on"


def test_a_slow_task_does_not_run_twice_at_a_time(running: Jobs) -> None:
    inside, most, go_on = 0, 0, threading.Event()

    def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        go_on.wait(0.3)
        inside -= 1

    others: list[int] = []
    running.every(0.05, work)
    running.every(0.05, lambda: others.append(1))
    running.start()
    wait_until(lambda: len(others) > 10, what="the other task, which goes on meanwhile")
    go_on.set()
    assert most == 1
