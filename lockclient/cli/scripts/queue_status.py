"""What `run` and `lock` say while they wait, of their place in the queue and of the holder.

On a terminal that is one line, which is written anew; elsewhere what the library's log has.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lockclient.acquisition import wait_report
from lockclient.acquisition.wait_report import ordinal
from lockclient.cli.output import cut_end, cut_process
from lockclient.cli.scripts.warning_log import StderrHandler
from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.protocol import MutexStore
from lockclient.stores.requests import Read
from lockclient.text.escaping import plain
from lockclient.text.timestamps import utc
from lockclient.threads import log_queue

FIRST_SHOWN_AFTER_S = 1.0
"""Seconds of waiting after which a person begins to wonder."""
REFRESH_INTERVAL_S = 2.0
"""Seconds between two looks at the line."""
READ_TIMEOUT_S = 5.0
"""Seconds for the store to say who waits."""
TIME_ALONE_FOR_S = 12 * 3600.0
"""Seconds for which a time of the day says enough."""
MIN_HOST_CHARS, MIN_NAME_CHARS = 12, 24
"""Characters that are left at least of a host, and of "Waiting for" with the lock's name."""
TERMINAL_TIMEOUT_S = 0.2
"""Seconds to wait for a terminal that takes nothing."""


@contextmanager
def showing_queue_status(
    store: MutexStore, name: str, uuid: Callable[[], str | None]
) -> Iterator[None]:
    """Say on stderr, as long as this lasts, what is waited for.

    Args:
        store: is asked for the line.
        name: of the lock.
        uuid: returns that of the ticket, once it is known.
    """
    if not (sys.stderr and sys.stderr.isatty()):
        with _printing_reports():
            yield
        return
    line = StatusLine()
    thread = threading.Thread(
        target=_refresh, args=(store, name, uuid, line), name="waiting-line", daemon=True
    )
    with suppress(RuntimeError):  # no thread to be had: it is a convenience
        thread.start()
    try:
        yield
    finally:
        line.end()


@contextmanager
def _printing_reports() -> Iterator[None]:
    """Print what the log says of the wait, soon after its begin and then each minute."""
    reports = logging.getLogger(wait_report.__name__)
    if logging.getLogger().handlers:  # --debug shows all
        yield
        return
    handler, before = StderrHandler(), (reports.level, reports.propagate)
    reports.addHandler(handler)
    reports.setLevel(logging.INFO)
    reports.propagate = False
    try:
        yield
    finally:
        log_queue.flush(TERMINAL_TIMEOUT_S)  # that the lock is had
        reports.removeHandler(handler)
        reports.setLevel(before[0])
        reports.propagate = before[1]


class StatusLine:
    """A line of the terminal, into which nothing is written once the wait is over.

    The thread that asks is not waited for: a store that is slow to say who else waits must not
    keep the lock from being used.
    """

    def __init__(self) -> None:
        self.over = threading.Event()
        self._writing = threading.Lock()
        self._shown = False

    def show(self, text: str) -> None:
        """Write the line anew."""
        with self._writing:
            if not self.over.is_set():
                _write(text)
                self._shown = True

    def end(self) -> None:
        """Take the line away."""
        self.over.set()
        # A terminal that takes nothing (Ctrl-S) holds the writer up, but not the lock's user.
        if self._writing.acquire(timeout=TERMINAL_TIMEOUT_S):
            with suppress(OSError):
                if self._shown:
                    _write("")
            self._writing.release()


def _refresh(
    store: MutexStore, name: str, uuid: Callable[[], str | None], line: StatusLine
) -> None:
    wait = FIRST_SHOWN_AFTER_S
    # A terminal that is gone, or a store that does not answer: the wait itself says so.
    with suppress(OSError):
        while not line.over.wait(wait):
            wait = REFRESH_INTERVAL_S
            with suppress(ClusterMutexError):
                seen = store.ask(Read(name, waiters=True), Deadline.after(READ_TIMEOUT_S))
                assert isinstance(seen, ReadResult)
                width = shutil.get_terminal_size().columns - 1  # in the last one some wrap
                line.show(sentence(name, seen, uuid(), width))


def _write(text: str) -> None:
    # In a shell's background a terminal may stop whoever writes there (stty tostop): no ticket
    # outlives that.
    if os.tcgetpgrp(sys.stderr.fileno()) != os.getpgrp():
        return
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def sentence(name: str, seen: ReadResult, uuid: str | None, width: int = 1000) -> str:
    """Say in one line what is waited for, where in line, and who has it.

    Where that is wider than the terminal what the lock is used for is left out, then the holder's
    domain, the date, and of the lock's name as much as it takes: never the pid, nor since when.
    """
    start, place, of_all = f"Waiting for {plain(name)}", "", ""
    places = [ticket.uuid for ticket in seen.waiters]
    if uuid in places:
        place, of_all = f", {ordinal(places.index(uuid) + 1)} in line", f" of {len(places)}"
    if (holder := seen.holder) is None:
        return cut_end(f"{start}{place}{of_all}", width)
    full = f"{start}{place}{of_all}, held by {plain(holder.describe())}"
    if len(full) <= width:
        return full
    moment = utc(holder.locked_at)
    if holder.locked_at is not None and 0 <= time.time() - holder.locked_at < TIME_ALONE_FOR_S:
        moment = moment.partition(" ")[2]
    host, pid = plain(holder.hostname or "unknown"), f"{holder.pid or 'unknown'}"
    others = len(f"{start}{place}, held by , since {moment}")
    process = cut_process(f"{host}:{pid}", max(width - others, len(pid) + MIN_HOST_CHARS))
    end = f"{place}, held by {process}, since {moment}"
    return cut_end(f"{cut_end(start, max(MIN_NAME_CHARS, width - len(end)))}{end}", width)
