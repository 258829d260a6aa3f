"""The library's log on stderr: reports of a wait, then warnings while a command holds a lock."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue

from lockclient.acquisition import wait_report
from lockclient.cli.scripts.errors import print_message
from lockclient.threads import log_queue

STDERR = 2
TERMINAL_TIMEOUT_S = 0.2
"""Seconds to wait for a terminal that takes nothing (Ctrl-S)."""


class WarningLog(QueueHandler):
    """What the library warns of (an outage, a loss), on stderr, a line each.

    By a thread of its own: where nobody reads stderr (a pager, a terminal after Ctrl-S), whoever
    writes there waits, and the library's thread must go on pushing and noticing losses.

    While we wait for the lock it is told only after `QUIET_PERIOD_S`: before, the error that
    ends the wait says it all.
    """

    QUIET_PERIOD_S = 10.0

    def __init__(self) -> None:
        super().__init__(SimpleQueue())
        self.setLevel(logging.WARNING)
        self._listener: QueueListener | None = None
        if logging.getLogger().handlers:
            return  # --debug shows all
        logger = logging.getLogger("lockclient")
        logger.handlers, logger.propagate = [self], False
        timer = threading.Timer(self.QUIET_PERIOD_S, self.start)
        timer.daemon = True
        timer.start()

    def start(self) -> None:
        """Tell what was kept, and from now on everything at once."""
        with self.lock or nullcontext():
            if self._listener is None:
                self._listener = QueueListener(self.queue, StderrHandler())
                self._listener.start()
                atexit.register(self.end)

    def say(self, text: str) -> None:
        """Tell the user something, after what was told before."""
        self.enqueue(logging.makeLogRecord({"msg": text}))

    def end(self) -> None:
        """Wait until all is told; no more after that."""
        log_queue.flush(log_queue.AT_EXIT_S)
        with self.lock or nullcontext():
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()


class StderrHandler(logging.Handler):
    """Prints records for the user of a command, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one."""
        print_message(record.getMessage())


class _ReportHandler(StderrHandler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print one, except from a shell's background.

        There a terminal may stop the job that writes (`stty tostop`), and its ticket goes.
        """
        with suppress(OSError):  # no job control
            if os.isatty(STDERR) and os.tcgetpgrp(STDERR) != os.getpgrp():
                return
        super().emit(record)


@contextmanager
def printing_wait_reports() -> Iterator[None]:
    """Print what a waiting `acquire` logs."""
    reports = logging.getLogger(wait_report.__name__)
    if logging.getLogger().handlers:  # --debug shows all
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
