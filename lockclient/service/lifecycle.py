"""Service lifecycle: serves and supervises until a signal comes, then ends within seconds."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from lockclient.model.clocks import monotonic
from lockclient.service.http_server import HttpServer
from lockclient.service.supervision import Supervisor, notify

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 4.0
"""Seconds to clean up in; the documents promise an end within 5."""


class EndSignal:
    """Catches SIGTERM, SIGINT and SIGHUP from its construction on; for the main thread.

    The handler may interrupt the main thread anywhere, also in `wait`. So it must not take the lock
    of an Event, which `wait` holds at moments: that would be a deadlock.
    """

    def __init__(self) -> None:
        self._coming = threading.Lock()
        self._coming.acquire()
        self._names: list[str] = []
        signal.signal(signal.SIGTERM, self._catch)
        signal.signal(signal.SIGINT, self._catch)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, self._catch)

    def _catch(self, number: int, _frame: Any) -> None:
        self._names.append(signal.Signals(number).name)
        with suppress(RuntimeError):  # an earlier signal has released it
            self._coming.release()

    def wait(self, seconds: float = math.inf) -> str | None:
        """Return the name of the first signal; None if none came within so many seconds."""
        until = monotonic() + seconds
        # With a timeout: a signal that the kernel hands to another thread does not wake a main
        # thread that waits for ever, and its handler would never run.
        while not self._names and monotonic() < until:
            self._coming.acquire(timeout=min(0.5, max(0.0, until - monotonic())))
        return self._names[0] if self._names else None


def end_process(clean_up: Callable[[], None], patience: float, status: int = 0) -> NoReturn:
    """Clean up, for `patience` seconds at most, and end the process with this status.

    The interpreter's own shutdown is skipped: it waits for every thread of a pool, also for one
    that hangs, and can itself deadlock in the `__del__` of a gRPC call, which needs a lock that a
    stopped gRPC thread may hold.
    """
    cleaner = threading.Thread(target=clean_up, name="clean-up", daemon=True)
    cleaner.start()
    cleaner.join(patience)
    if cleaner.is_alive():
        log.warning("The clean-up takes more than %g s and is abandoned.", patience)
    logging.shutdown()
    os._exit(status)


def serve(
    end: EndSignal, server: HttpServer, is_live: Callable[[], str | None], stop: Callable[[], None]
) -> NoReturn:
    """Answer HTTP until the signal comes or the service is not live; then end the process.

    Args:
        is_live: returns a sentence if a part has ended or hangs, else None.
        stop: stops the service's threads.
    """
    server.start()
    supervisor = Supervisor(lambda: is_live() or server.trouble())
    notify("READY=1")
    while (why := supervisor.check()) is None:
        if (name := end.wait(1.0)) is not None:
            log.info("Ending on %s.", name)
            break
    else:
        log.critical("Ending, to be restarted. %s", why)
    notify("STOPPING=1")
    end_process(stop, SHUTDOWN_TIMEOUT_S, status=0 if why is None else 1)
