"""Service lifecycle: serve until a signal ends it, supervise meanwhile, end within seconds."""

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
"""Seconds to end in: 5 are promised."""


class EndSignal:
    """SIGTERM, SIGINT or SIGHUP, caught from now on. For the main thread.

    Its handler runs in the midst of whatever the main thread does, its `wait` included. So it takes
    no lock: an Event's own, which `wait` holds for moments, would be waited for in vain, for ever.
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
        with suppress(RuntimeError):  # another one has come, and nobody has seen it yet
            self._coming.release()

    def wait(self, seconds: float = math.inf) -> str | None:
        """Wait for it, but not longer than that, and return its name; None if it did not come."""
        until = monotonic() + seconds
        # With a timeout: a signal that the kernel hands to another thread does not wake a main
        # thread that waits for ever, and its handler would never run.
        while not self._names and monotonic() < until:
            self._coming.acquire(timeout=min(0.5, max(0.0, until - monotonic())))
        return self._names[0] if self._names else None


def end_process(clean_up: Callable[[], None], patience: float, status: int = 0) -> NoReturn:
    """Clean up, for `patience` seconds at most, and end the process with this status.

    Without the interpreter's own end: that waits for every thread of a pool, a request that hangs
    included, and can itself hang for ever in the `__del__` of a gRPC call, which wants a lock that
    a gRPC thread held at the moment when the end stopped all threads.
    """
    cleaner = threading.Thread(target=clean_up, name="clean-up", daemon=True)
    cleaner.start()
    cleaner.join(patience)
    if cleaner.is_alive():
        log.warning("Cleaning up took more than %g s and was left at that.", patience)
    logging.shutdown()
    os._exit(status)


def serve(
    end: EndSignal, server: HttpServer, is_live: Callable[[], str | None], stop: Callable[[], None]
) -> NoReturn:
    """Answer HTTP until the signal comes or the service is not live; then end the process.

    Args:
        is_live: see `Supervisor`.
        stop: ends the service in good order.
    """
    server.start()
    supervisor = Supervisor(lambda: is_live() or server.trouble())
    notify("READY=1")
    while (why := supervisor.look()) is None:
        if (name := end.wait(1.0)) is not None:
            log.info("Ending on %s.", name)
            break
    else:
        log.critical("Ending, to be restarted. %s", why)
    notify("STOPPING=1")
    end_process(stop, SHUTDOWN_TIMEOUT_S, status=0 if why is None else 1)
