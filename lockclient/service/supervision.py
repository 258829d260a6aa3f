"""No part of a service may end or hang unnoticed: looked at each second, and told to systemd.

The main thread of a service does nothing else. As long as all goes on, systemd's watchdog is told
so; when a part has not moved for `LIMIT` seconds, `/healthz` says 503, and if it stays so the
process ends with status 1 and a reason. Its supervisor starts it anew: systemd, a container's
restart policy (which restarts nothing that is merely unhealthy), Kubernetes. That is more often
right than mending it from within: nobody knows what a thread that hangs holds.
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
"""Seconds that a part may be late: far more than the budget of the longest sweep."""
SURE = 10
"""Looks in a row, one a second, that must find it so: all is late in a process that was stopped
and goes on, for a moment."""


class Pulse:
    """When something that is done again and again was last done, well or not.

    Args:
        name: what it is, for a sentence.
        interval: seconds from one time to the next.
    """

    def __init__(self, name: str, interval: float) -> None:
        self.name = name
        self._interval = interval
        self._last = monotonic()
        self._outage = Outage(log, f"The {name} works again.")

    def beat(self) -> None:
        """Take note that it was done."""
        self._last = monotonic()

    def run(self, work: Callable[[], object]) -> None:
        """Do it once; an exception is logged and does not leave this call."""
        try:
            work()
            self._outage.succeeded()
        except Exception as error:  # noqa: BLE001 - one run's bug does not end the next runs
            self._outage.failed("The %s failed, and is tried again.", self.name, error=error)
        finally:  # that it hangs is what nobody would see
            self.beat()

    def trouble(self, limit: float) -> str | None:
        """Say in a sentence that it is late by more than `limit` seconds, if so."""
        ago = monotonic() - self._last
        if ago <= self._interval + limit:
            return None
        return (
            f"The {self.name} hangs, or its thread has ended: the last one ended {duration(ago)} "
            f"ago, and there should be one every {period(self._interval)}."
        )


def first_trouble(pulses: Iterable[Pulse], limit: float) -> str | None:
    """Return what the first of them says that is late by more than `limit` seconds."""
    return next((why for pulse in pulses if (why := pulse.trouble(limit)) is not None), None)


class Loop:
    """Work that is done again and again in a thread of its own, whatever it raises.

    Args:
        name: what it is, for a sentence.
        seconds: from the end of one time to the next.
        work: what is done.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        self._seconds = seconds
        self._work = work
        self._pulse = Pulse(name, seconds)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        """Begin, after the first `seconds`."""
        self._pulse.beat()
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; work that is under way goes on to its end."""
        self._stopping.set()

    def trouble(self, limit: float = LIMIT) -> str | None:
        """Say in a sentence that it was started and is late by more than `limit` seconds, if so."""
        return None if self._thread.ident is None else self._pulse.trouble(limit)

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            self._pulse.run(self._work)


class Supervisor:
    """Looks after a service.

    Args:
        sick: says in a sentence what of it has ended or hangs; None: all goes on.
    """

    def __init__(self, sick: Callable[[], str | None]) -> None:
        self._sick = sick
        self._found = 0

    def look(self) -> str | None:
        """Look once; return why the process has to end, if it has."""
        try:
            why = self._sick()
        except Exception as error:  # noqa: BLE001 - who can't tell is not well
            why = f"Whether this still works can't be checked ({type(error).__name__}: {error})."
        if why is None:
            self._found = 0
            notify("WATCHDOG=1")
            return None
        self._found += 1
        return why if self._found >= SURE else None


def notify(state: str) -> None:
    """Tell systemd, if it has started us and wants to hear: see `sd_notify(3)`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)  # a systemd that does not read must not stop us
            channel.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
    except OSError as error:
        log.debug("Can't notify systemd of %s: %s", state, error)
