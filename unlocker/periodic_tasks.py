"""Runs tasks every few seconds by APScheduler, and survives jumps of the wall clock.

APScheduler plans by the wall clock. When the clock is put forward, it would run every missed run
(from 1970 to today: without end). When the clock is put back by an hour, it would run nothing for
an hour, and the unlocker would remove nothing in time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from lockclient.service.supervision import Loop, Pulse, first_trouble

_CLOCK_CHECK_INTERVAL_S = 1.0
"""Seconds between two checks of whether the wall clock was put back."""


class _Every(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Fires a number of seconds from now; missed runs are skipped."""

    def __init__(self, seconds: float) -> None:
        self.interval = timedelta(seconds=seconds)

    def get_next_fire_time(self, _previous: datetime | None, now: datetime) -> datetime:
        """Return the moment of the next run."""
        return now + self.interval


class Jobs:
    """Tasks that run every few seconds, each in one thread at a time."""

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
        """Run a task every `seconds`, first at the start (`at_once`) or after that time.

        A task that is not `vital` may hang without making the service unhealthy.
        """
        now = datetime.now(timezone.utc)
        first = now if at_once else now + timedelta(seconds=seconds)
        pulse = Pulse(name, seconds)
        if vital:
            self._pulses.append(pulse)
        self._scheduler.add_job(partial(pulse.run, task), _Every(seconds), next_run_time=first)

    def trouble(self, limit: float) -> str | None:
        """Return a sentence if a vital task is overdue by more than `limit` seconds, else None.

        Such a task hangs, or APScheduler's thread has ended.
        """
        return self._guard.trouble(limit) or first_trouble(self._pulses, limit)

    def start(self) -> None:
        """Start the threads."""
        self._scheduler.start()
        self._guard.start()

    def stop(self) -> None:
        """Stop, after the current runs."""
        self._guard.stop()
        self._scheduler.shutdown(wait=True)

    def _check_clock(self) -> None:
        # May raise, as APScheduler's threads change the jobs meanwhile; the next check follows.
        now, slack = datetime.now(timezone.utc), timedelta(seconds=_CLOCK_CHECK_INTERVAL_S)
        for job in self._scheduler.get_jobs():
            # If the next run is further away than the interval, the clock was put back.
            if job.next_run_time - now > job.trigger.interval + slack:
                job.modify(next_run_time=now)
        # The clock may have jumped back and forward again: no run shows that, but the scheduler
        # may have computed a long sleep in between.
        self._scheduler.wakeup()
