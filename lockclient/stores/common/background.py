"""The threads of one store: urgent and patient work, clean-ups and deputies have a pool each.

An idle store has no thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from lockclient.errors import StoreClosed, StoreFull, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.common.ticket_leases import TicketLeases
from lockclient.stores.protocol import MutexStore
from lockclient.stores.requests import Withdraw
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger, naming
from lockclient.threads.pool import WorkerPool
from lockclient.threads.reentry import run_inside
from lockclient.threads.scheduler import RETRY_S

log = get_logger(__name__)

Result = TypeVar("Result")

MAX_URGENT = 40
"""Threads for what keeps or ends a lock. With answers after 50 ms, 32 of them poll 1,280 held locks
in two seconds."""
MAX_PATIENT = 32
"""Threads for takes, waiters' polls and other work that may be late."""
MAX_LEASE_REQUESTS = 8
"""Threads for the leases and tokens of event loops: the first answer serves all that wait, and the
more ask at once, the more are granted in vain."""
MAX_CLEAN_UPS = 8
"""Threads for withdrawals in the background: a flood of them delays no heartbeat."""
SIGNAL_CHECK_INTERVAL_S = 0.5
"""Seconds after which a waiting main thread looks for signals."""
CLEAN_UP_TIMEOUT_S = 2.0
MAX_PAUSE_S = 2.0
"""Seconds between two tries of a clean-up that the store does not answer, or has no space for."""
REFUSED_PAUSE_S = 30.0
"""Seconds between two tries of a clean-up that the store refuses, for want of a right."""
MAX_OWED = 10_000
"""Unanswered clean-ups, a kilobyte each, at which no acquisition begins any more. None of them may
be dropped: its lock or ticket may stand in the store, or still arrive there."""
AT_EXIT_S = 1.0
"""Seconds that the end of the interpreter waits for clean-up; all in all it takes two at most."""


class Background:
    """The threads of one store, which makes this and closes it.

    No work waits for other work of its own pool.

    Attributes:
        urgent: heartbeats, polls of held locks, and the requests of event loops that keep or end a
            lock.
        patient: takes of event loops, and waiters' polls.
        leases: leases for the tickets of event loops.
    """

    def __init__(self, store: MutexStore) -> None:
        self.urgent = WorkerPool("urgent", MAX_URGENT)
        self.patient = WorkerPool("patient", MAX_PATIENT)
        self.leases = WorkerPool("lease", MAX_LEASE_REQUESTS)
        self.tickets = TicketLeases(store)
        self.overload = ""
        """The reason why no acquisition may begin; empty: one may."""
        self._store = store
        self._cleaners = WorkerPool("clean-up", MAX_CLEAN_UPS, self._put_off)
        self._deputies = WorkerPool("deputy", 1000, lambda work, error: work(error))
        self._unfinished: dict[object, None] = {}

    def run_shielded(self, work: Callable[..., Result], *args: Any) -> Result:
        """Ask the store where no signal handler's exception can land; return the result.

        Signal handlers run in the main thread, between any two of its steps, and raise there what
        they raise (Ctrl-C, a soft time limit). In a call of gRPC's that leaves gRPC's locks taken.
        So the main thread only waits, for a deputy that does the work. If a handler raises
        meanwhile, the deputy goes on: the caller has to tell it to stop.

        Other threads do their work themselves: by deputies a cycle costs 1.25 to 1.6 times the
        processor time, at 1, 16 and 64 threads, for exceptions that few programs raise in them.

        Raises:
            StoreUnavailable: the system gives no thread for it; nothing was done.
        """
        if sys.is_finalizing():  # no other thread runs any more: only releases are worth a wait
            raise no_thread("the interpreter ends")
        if scheduler.shared.missing:
            self.ready()
        if threading.get_ident() != _main_thread:
            return run_inside(work, *args)
        ended = allocate_lock()  # free when it is done
        ended.acquire()
        result: Result | None = None
        error: BaseException | None = None

        def do(refused: RuntimeError | None = None) -> None:
            nonlocal result, error
            self._unfinished[do] = None
            try:
                if refused is not None:
                    raise no_thread(refused)
                result = work(*args)
            except BaseException as raised:  # noqa: BLE001 - raised in the main thread
                error = raised
            ended.release()
            self._unfinished.pop(do, None)

        self._deputies.submit(do)
        # Not for ever in one go: a signal that comes just before the wait begins, or to another
        # thread, does not end it (seen with 3.13.0), and its handler would wait as long.
        while not ended.acquire(timeout=SIGNAL_CHECK_INTERVAL_S):
            pass
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it would hold itself by its traceback
        return result  # type: ignore[return-value]

    def ready(self) -> None:
        """Start the scheduler's thread; raise `StoreUnavailable` if the system gives none."""
        try:
            scheduler.shared.start()
        except RuntimeError as error:
            raise no_thread(error) from error

    def clean_up(self, withdraw: Withdraw) -> None:
        """Withdraw an acquisition, for as long as that takes.

        The ticket of a living process does not expire (kazoo #732).
        """
        pause, refused = 0.1, False

        def run() -> float | None:
            nonlocal pause, refused
            try:
                self._store.ask(withdraw, Deadline.after(CLEAN_UP_TIMEOUT_S))
            except StoreUnavailable:
                pause = min(2 * pause, MAX_PAUSE_S)
                return pause
            except StoreClosed:
                log.warning(
                    "What is left of %r stays until its auto-unlock: the store was closed before "
                    "it could be taken back.",
                    withdraw.name,
                    extra=naming(withdraw),
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, only success is an end
                if not refused:
                    text = "Cleaning up after %r is refused; retrying: %s"
                    log.error(text, withdraw.name, error, extra=naming(withdraw))
                refused = True
                if withdraw.tombstone:
                    # A store that is out of space deletes the ticket, and writes no tombstone. That
                    # is retried: the take that it disarms may arrive after there is space again.
                    with suppress(Exception):
                        delete = replace(withdraw, tombstone=False)
                        self._store.ask(delete, Deadline.after(CLEAN_UP_TIMEOUT_S))
                passing = isinstance(error, StoreFull) or getattr(error, "passing", False)
                return MAX_PAUSE_S if passing else REFUSED_PAUSE_S
            self._unfinished.pop(run, None)
            self._note_load()
            return None

        self._unfinished[run] = None
        self._note_load()
        self._cleaners.repeat(run)

    def _note_load(self) -> None:
        self.overload = _OVERLOAD if len(self._unfinished) >= MAX_OWED else ""

    def _put_off(self, work: Callable[[], object], error: RuntimeError) -> None:
        """Called by the scheduler's thread with a clean-up that has no thread."""
        if "shutdown" in str(error):  # the interpreter's end (Python 3.12): nothing else waits
            work()
        else:
            scheduler.shared.after(RETRY_S, partial(self._cleaners.submit, work))

    def unfinished(self) -> bool:
        """Tell whether something is still to be cleaned up, or done for the main thread."""
        return bool(self._unfinished)

    def settle(self, seconds: float) -> None:
        """Wait until nothing is unfinished, at most for `seconds`."""
        deadline = Deadline.after(seconds)
        scheduler.shared.flush(seconds)
        while self._unfinished and not deadline.expired():
            time.sleep(0.005)

    def close(self, patience: float) -> None:
        """Wake all waiters, which find the store closed; end all threads when they are done."""
        self.tickets.close()
        self.settle(patience)
        for pool in (self.urgent, self.patient, self.leases, self._cleaners, self._deputies):
            pool.close()


_OVERLOAD = (
    f"The store has not confirmed {MAX_OWED:,} withdrawals of earlier acquisitions: until it does, "
    "none begins."
)
_main_thread = threading.main_thread().ident


def _reset_after_fork() -> None:
    """In the child, whose only thread is its main thread."""
    global _main_thread
    _main_thread = threading.get_ident()


os.register_at_fork(after_in_child=_reset_after_fork)


class NoThread(StoreUnavailable):
    """The system gives no thread for a request; nothing was sent."""


def no_thread(why: object) -> NoThread:
    """Return the error of a request for which the system gives no thread."""
    text = f"The store could not be asked: the system gives no thread for it ({why})."
    return NoThread(text, unknown=False, refused=True)
