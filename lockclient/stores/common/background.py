"""The threads of one store: a pool each for urgent work, patient work, clean-ups and deputies.

An idle store has no thread.
"""

from __future__ import annotations

import math
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

from lockclient.errors import StoreClosed, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.ticket_leases import TicketLeases
from lockclient.stores.mutex_store import MutexStore
from lockclient.stores.request_types import Withdraw
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger, naming
from lockclient.threads.pool import Repeating, WorkerPool
from lockclient.threads.reentrancy import run_inside
from lockclient.threads.scheduler import RETRY_S

log = get_logger(__name__)

Result = TypeVar("Result")

MAX_URGENT = 40
"""Threads for heartbeats, releases and polls of held locks. With answers after 50 ms, 32 threads
poll 1,280 held locks in two seconds."""
MAX_PATIENT = 32
"""Threads for takes, waiters' polls and the polls of services."""
MAX_LEASE_REQUESTS = 8
"""Threads for the leases and tokens of event loops: the first answer serves all waiting loops, so
further requests at the same time are wasted."""
MAX_CLEAN_UPS = 8
"""Threads for withdrawals in the background: a flood of them delays no heartbeat."""
SIGNAL_CHECK_INTERVAL_S = 0.5
"""Seconds after which a waiting main thread runs the handlers of signals."""
CLEAN_UP_TIMEOUT_S = 2.0
"""Seconds for the answer to one try of a clean-up."""
MAX_PAUSE_S = 5.0
"""Seconds between two tries of a clean-up that failed: many refusals pass within seconds."""
MIN_PAUSE_S = 1.0
"""Seconds between two tries, if the second one begins because another request succeeded."""
MAX_OWED = 10_000
"""Unanswered clean-ups, of a kilobyte each, at which no acquisition begins. None may be dropped:
its lock or ticket may stand in the store, or still arrive there."""
AT_EXIT_S = 1.0
"""Seconds that the end of the interpreter waits for clean-ups."""


class Background:
    """The threads of one store. No work waits for other work of its own pool.

    Attributes:
        urgent: heartbeats, polls of held locks, and those requests of event loops that extend or
            end a lock.
        patient: takes of event loops, waiters' polls, polls of services.
        leases: leases for the tickets of event loops.
    """

    def __init__(self, store: MutexStore) -> None:
        self.urgent = WorkerPool("urgent", MAX_URGENT)
        self.patient = WorkerPool("patient", MAX_PATIENT)
        self.leases = WorkerPool("lease", MAX_LEASE_REQUESTS)
        self.tickets = TicketLeases(store)
        self.overload = ""
        """The reason why no acquisition may begin; empty: one may."""
        self.store = store
        self.cleaners = WorkerPool("clean-up", MAX_CLEAN_UPS, self._put_off)
        self._deputies = WorkerPool("deputy", 1000, lambda work, error: work(error))
        self._unfinished: dict[object, None] = {}
        self.failed: dict[_CleanUp, None] = {}
        """Clean-ups whose last try failed."""

    def run_shielded(self, work: Callable[..., Result], *args: Any) -> Result:
        """Call `work` where no exception of a signal handler can land; return its result.

        Python runs signal handlers in the main thread, between any two of its steps, and raises
        their exceptions (Ctrl-C, a soft time limit) there. Inside a call of gRPC such an exception
        leaves gRPC's locks taken. So in the main thread a deputy thread does the work, and the main
        thread waits. An exception ends that wait, and not the work: the caller has to withdraw.

        Other threads do the work themselves. With deputies an acquisition and release takes 1.25 to
        1.6 times the processor time (1, 16, 64 threads), and few programs raise in other threads.

        Raises:
            StoreUnavailable: the system gives no thread for it; nothing was done.
        """
        if sys.is_finalizing():  # no other thread runs any more
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
        # In short waits: a signal just before a wait, or in another thread, does not end the wait
        # (seen with 3.13.0), and Python runs the signal's handler only after it.
        while not ended.acquire(timeout=SIGNAL_CHECK_INTERVAL_S):
            pass
        if error is not None:
            try:
                raise error
            finally:
                del error  # else its traceback refers to it
        return result  # type: ignore[return-value]

    def ready(self) -> None:
        """Start the scheduler's thread; raise `StoreUnavailable` if the system gives none."""
        try:
            scheduler.shared.start()
        except RuntimeError as error:
            raise no_thread(error) from error

    def clean_up(self, withdraw: Withdraw) -> None:
        """Withdraw an acquisition; retry until the store confirms it.

        The ticket of a living process does not expire (kazoo #732).
        """
        clean_up = _CleanUp(self, withdraw)
        self._unfinished[clean_up] = None
        self._note_load()
        clean_up.repeating.run_within(0)

    def retry(self) -> None:
        """Repeat the failed clean-ups now: a request has succeeded."""
        with suppress(KeyError):
            while True:
                self.failed.popitem()[0].run_soon()  # atomic: `failed` is shared with other threads

    def finish(self, clean_up: _CleanUp) -> None:
        """Forget a clean-up that needs no further try, and repeat the others."""
        self._unfinished.pop(clean_up, None)
        self._note_load()
        self.retry()

    def _note_load(self) -> None:
        self.overload = _OVERLOAD if len(self._unfinished) >= MAX_OWED else ""

    def _put_off(self, work: Callable[[], object], error: RuntimeError) -> None:
        """Called by the scheduler's thread with a clean-up for which there is no thread."""
        if "shutdown" in str(error):  # the interpreter's end (Python 3.12): nothing else waits
            work()
        else:
            scheduler.shared.after(RETRY_S, partial(self.cleaners.submit, work))

    def unfinished(self) -> bool:
        """Return whether a clean-up, or work for the main thread, is not done yet."""
        return bool(self._unfinished)

    def settle(self, seconds: float) -> None:
        """Wait until nothing is unfinished, at most for `seconds`."""
        deadline = Deadline.after(seconds)
        scheduler.shared.flush(seconds)
        while self._unfinished and not deadline.expired():
            time.sleep(0.005)

    def close(self, patience: float) -> None:
        """Wake all waiters, which find the store closed; end each thread after its work."""
        self.tickets.close()
        self.settle(patience)
        for pool in (self.urgent, self.patient, self.leases, self.cleaners, self._deputies):
            pool.close()


class _CleanUp:
    """A withdrawal that is repeated until the store confirms it. One try runs at a time."""

    def __init__(self, background: Background, withdraw: Withdraw) -> None:
        self.repeating = Repeating(background.cleaners.submit, self.run)
        self._background = background
        self._withdraw = withdraw
        self._pause_s = 0.05
        self._is_refused = False
        self._tried_at = -math.inf

    def run(self) -> float | None:
        """Try once; return the seconds until the next try, None: it is done."""
        self._tried_at = monotonic()
        withdraw, store = self._withdraw, self._background.store
        try:
            store.ask(withdraw, Deadline.after(CLEAN_UP_TIMEOUT_S))
        except StoreClosed:
            log.warning(
                "What is left of %r stays until its auto-unlock: the store was closed before "
                "it could be taken back.",
                withdraw.name,
                extra=naming(withdraw),
            )
        except Exception as error:  # noqa: BLE001 - only success ends it
            if not (self._is_refused or isinstance(error, StoreUnavailable)):
                self._is_refused = True
                text = "Cleaning up after %r is refused; retrying: %s"
                log.error(text, withdraw.name, error, extra=naming(withdraw))
            if withdraw.tombstone and not isinstance(error, StoreUnavailable):
                # A store that is out of space deletes the ticket, and writes no tombstone. The
                # tombstone is retried: the take may arrive when there is space again.
                with suppress(Exception):
                    delete = replace(withdraw, tombstone=False)
                    store.ask(delete, Deadline.after(CLEAN_UP_TIMEOUT_S))
            self._background.failed[self] = None
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            return self._pause_s
        self._background.finish(self)
        return None

    def run_soon(self) -> None:
        """Begin the next try now, or `MIN_PAUSE_S` after the last one.

        The pause bounds the tries of a withdrawal that the store keeps refusing, for example for
        want of a right on its name, while it answers other requests.
        """
        self.repeating.run_within(max(0.0, self._tried_at + MIN_PAUSE_S - monotonic()))


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
