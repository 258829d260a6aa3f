"""Notices a part of a service that has ended or hangs, and reports to systemd's watchdog.

The main thread of a service checks every part once a second and does nothing else. While all parts
work, it notifies systemd's watchdog. When a part has not moved for `LIMIT` seconds, `/healthz`
answers 503; if it stays so, the process ends with status 1 and a reason. Then systemd, Kubernetes
or a container's restart policy (which ignores an unhealthy container) starts it again. A restart is
safer than a repair from within, because a thread that hangs may hold locks.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable

from lockclient.model.clocks import monotonic
from lockclient.service.outage import Outage
from lockclient.text.durations import duration, period

log = logging.getLogger(__name__)

LIMIT = 60.0
"""Seconds without a run after which a part counts as hanging: more than the longest sweep takes."""
SURE = 10
"""Failed checks in a row, one a second, after which the process ends: in a process that was stopped
and continues, all parts fail the first checks."""


class Pulse:
    """The time of the last run of a repeated task, whether it succeeded or not.

    Args:
        name: of the task, in sentences.
        interval: seconds between two runs.
    """

    def __init__(self, name: str, interval: float) -> None:
        self.name = name
        self._interval = interval
        self._last = monotonic()
        self._outage = Outage(log, f"The {name} works again.")

    def beat(self) -> None:
        """Note that a run has ended."""
        self._last = monotonic()

    def run(self, work: Callable[[], object]) -> None:
        """Run the task once; an exception is logged and does not leave this call."""
        try:
            work()
            self._outage.succeeded()
        except Exception as error:  # noqa: BLE001 - one run's bug does not end the next runs
            self._outage.failed("The %s failed, and is tried again.", self.name, error=error)
        finally:
            self.beat()

    def trouble(self, limit: float) -> str | None:
        """Return a sentence if a run is overdue by more than `limit` seconds, else None."""
        ago = monotonic() - self._last
        if ago <= self._interval + limit:
            return None
        return (
            f"The {self.name} hangs, or its thread has ended: the last one ended {duration(ago)} "
            f"ago, and there should be one every {period(self._interval)}."
        )


def first_trouble(pulses: Iterable[Pulse], limit: float) -> str | None:
    """Return the sentence of the first task that is overdue by more than `limit` seconds."""
    return next((why for pulse in pulses if (why := pulse.trouble(limit)) is not None), None)


class Loop:
    """Repeats a task in a thread of its own, whatever the task raises.

    Args:
        name: of the task, in sentences.
        seconds: from the end of a run to the next one.
        work: the task.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        self._seconds = seconds
        self._work = work
        self._pulse = Pulse(name, seconds)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        """Start the thread; the first run begins after `seconds`."""
        self._pulse.beat()
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its current run; does not wait."""
        self._stopping.set()

    def trouble(self, limit: float = LIMIT) -> str | None:
        """Return a sentence if it was started and a run is overdue by more than `limit` seconds."""
        return None if self._thread.ident is None else self._pulse.trouble(limit)

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            self._pulse.run(self._work)


class Supervisor:
    """Checks a service.

    Args:
        trouble: returns a sentence if a part has ended or hangs, else None.
    """

    def __init__(self, trouble: Callable[[], str | None]) -> None:
        self._trouble = trouble
        self._failed_checks = 0

    def check(self) -> str | None:
        """Check once; return why the process must end, or None."""
        try:
            why = self._trouble()
        except Exception as error:  # noqa: BLE001 - a check that fails counts as trouble
            why = f"Whether this still works can't be checked ({type(error).__name__}: {error})."
        if why is None:
            self._failed_checks = 0
            notify("WATCHDOG=1")
            return None
        self._failed_checks += 1
        return why if self._failed_checks >= SURE else None


def notify(state: str) -> None:
    """Send a state to systemd if it has started us and listens: see `sd_notify(3)`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)  # a systemd that does not read must not stop us
            channel.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
    except OSError as error:
        log.debug("Can't notify systemd of %s: %s", state, error)
