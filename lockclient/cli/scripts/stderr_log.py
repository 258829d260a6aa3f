"""The library's log on stderr: reports of a wait, then warnings while a command holds a lock."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

from lockclient.acquisition import wait_report
from lockclient.cli.scripts.script_errors import print_message
from lockclient.threads import log_queue

STDERR = 2
TERMINAL_TIMEOUT_S = 0.2
"""Seconds to wait for a terminal that is stopped (Ctrl-S)."""


class WarningLog(logging.Handler):
    """Prints the library's warnings (an outage, a loss) on stderr, a line each.

    The library's log thread prints, because a writer blocks while stderr is not read (a pager, a
    terminal after Ctrl-S), and the main thread must not.

    Until `start`, or for `QUIET_PERIOD_S`, warnings are kept: if the wait for the lock fails, its
    error is enough.
    """

    QUIET_PERIOD_S = 10.0

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[str] | None = []
        if logging.root.handlers:
            return  # --debug shows all
        logger = logging.getLogger("lockclient")
        logger.handlers, logger.propagate = [self], False
        timer = threading.Timer(self.QUIET_PERIOD_S, self.start)
        timer.daemon = True
        timer.start()

    def start(self) -> None:
        """Print the kept warnings, and from now on each at once."""
        with self.lock or nullcontext():
            kept, self._kept = self._kept, None
            for text in kept or ():
                self.print(text)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning, or keep it; its handler's lock is held."""
        if self._kept is None:
            self.print(record.getMessage())
        else:
            self._kept.append(record.getMessage())

    def print(self, text: str) -> None:
        """Queue a line for the user, which the log thread prints after all earlier ones."""
        log_queue.shared.put(partial(print_message, text))

    def end(self) -> None:
        """Wait until all lines are printed."""
        log_queue.flush(-1)


class _ReportHandler(logging.Handler):
    """Prints reports of a wait, except from a shell's background.

    There a terminal may stop the job that writes (`stty tostop`), and its ticket goes.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a report."""
        with suppress(OSError):  # no job control
            if os.isatty(STDERR) and os.tcgetpgrp(STDERR) != os.getpgrp():
                return
        print_message(record.getMessage())


@contextmanager
def printing_wait_reports() -> Iterator[None]:
    """Print what a waiting `acquire` logs."""
    reports = logging.getLogger(wait_report.__name__)
    if logging.root.handlers:  # --debug shows all
        yield
        return
    handler, before = _ReportHandler(), (reports.level, reports.propagate)
    reports.addHandler(handler)
    reports.setLevel(logging.INFO)
    reports.propagate = False
    try:
        yield
    finally:
        log_queue.flush(TERMINAL_TIMEOUT_S)  # so that the last line is there before the command's
        reports.removeHandler(handler)
        reports.setLevel(before[0])
        reports.propagate = before[1]
