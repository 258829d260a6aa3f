"""Runs tasks every few seconds, by APScheduler, made proof against jumps of the wall clock.

APScheduler plans by the wall clock. Left alone, it catches up run by run on a clock put forward
(for one put from 1970 to today: for ever), and stands still for an hour when one is put back by an
hour. An unlocker that stands still removes nothing early, but nothing in time either.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from lockclient.service.supervision import Loop, Pulse, first_trouble

_CLOCK_CHECK_INTERVAL_S = 1.0
"""Seconds between two looks whether the wall clock was put back."""


class _Every(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Fire a number of seconds after now, whatever was missed."""

    def __init__(self, seconds: float) -> None:
        self.interval = timedelta(seconds=seconds)

    def get_next_fire_time(self, _previous: datetime | None, now: datetime) -> datetime:
        """Return the moment of the next run."""
        return now + self.interval


class Jobs:
    """Tasks that run every so many seconds, each in one thread at a time."""

    def __init__(self) -> None:
        self._scheduler = BackgroundScheduler(
            timezone=timezone.utc,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._pulses: list[Pulse] = []
        self._guard = Loop("look at the wall clock", _CLOCK_CHECK_INTERVAL_S, self._check_clock)

    def every(
        self,
        seconds: float,
        task: Callable[[], None],
        name: str = "task",
        *,
        at_once: bool = True,
        vital: bool = True,
    ) -> None:
        """Run a task every so many seconds, from the start on or first after that time.

        Without `vital` it may hang: the service does its work without it.
        """
        now = datetime.now(timezone.utc)
        first = now if at_once else now + timedelta(seconds=seconds)
        pulse = Pulse(name, seconds)
        if vital:
            self._pulses.append(pulse)
        self._scheduler.add_job(partial(pulse.run, task), _Every(seconds), next_run_time=first)

    def trouble(self, limit: float) -> str | None:
        """Say in a sentence which task is late by more than `limit` seconds, if one is.

        It hangs, or the scheduler has ended, whose threads are out of our hands.
        """
        return self._guard.trouble(limit) or first_trouble(self._pulses, limit)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()
        self._guard.start()

    def stop(self) -> None:
        """End, when the runs that are under way have."""
        self._guard.stop()
        self._scheduler.shutdown(wait=True)

    def _check_clock(self) -> None:  # may fail: APScheduler's own threads change what is seen here
        now, slack = datetime.now(timezone.utc), timedelta(seconds=_CLOCK_CHECK_INTERVAL_S)
        for job in self._scheduler.get_jobs():
            # A run further away than its interval: the clock was put back since it was set.
            if job.next_run_time - now > job.trigger.interval + slack:
                job.modify(next_run_time=now)
        # It may have planned its sleep between a jump back and one forward: no run shows it.
        self._scheduler.wakeup()
