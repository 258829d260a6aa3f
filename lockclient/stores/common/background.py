"""The threads of one store: a pool each for urgent work, patient work, clean-ups and deputies.

An idle store has no thread.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from lockclient.errors import LockNotHeld, StoreClosed, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores import timeouts
from lockclient.stores.common.ticket_leases import TicketLeases
from lockclient.stores.mutex_store import MutexStore
from lockclient.stores.request_types import Withdraw
from lockclient.threads import ending, scheduler
from lockclient.threads.daemon_thread import is_interpreter_end
from lockclient.threads.log_queue import get_logger, naming
from lockclient.threads.pool import Repeating, WorkerPool
from lockclient.threads.reentrancy import DeputyCall, run_inside, this_deputy

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
STUCK_CHECKS = 3
"""Checks in a row after the deadline of its request by which a deputy counts as stuck: for a second
at least, in which this process runs. After a stop of the process (Ctrl-Z) the first one is late."""


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
        self.cleaners = WorkerPool("clean-up", MAX_CLEAN_UPS)
        self._deputies = WorkerPool("deputy", 1000, lambda work, error: work(error))
        self.acquisitions: dict[ending.Part, None] = {}
        """Running acquisitions, and locks until their release is confirmed or a withdrawal."""
        self.clean_ups: dict[_CleanUp, None] = {}
        """Withdrawals that the store has not confirmed."""
        self._jobs: dict[object, None] = {}
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
        If the interpreter ends and starts no thread, the main thread does the work, too.

        A deputy can hang: the garbage collector may run a finalizer there that waits for a lock of
        the main thread. So the wait ends a second after the deadline of the request in flight.

        Raises:
            StoreUnavailable: the system gives no thread for it, and nothing was done; or the deputy
                hangs, and the outcome is unknown.
            LockNotHeld: this process is the child of a fork during the call.
        """
        if sys.is_finalizing():  # no other thread runs any more
            raise no_thread("the interpreter ends")
        is_shielded = not scheduler.shared.missing or self.ready()
        if not is_shielded or threading.get_ident() != _main_thread:
            return run_inside(work, *args)
        call = DeputyCall()
        late_checks = 0
        if args and isinstance(args[-1], Deadline):
            call.until = args[-1]
        elif self.store in args:  # `drive`, which gives the deadline of each request
            call.until = monotonic() + timeouts.STORE_TIMEOUT_S
        ended = allocate_lock()  # free when it is done
        ended.acquire()
        result: Result | None = None
        error: BaseException | None = None

        def do(refused: RuntimeError | None = None) -> None:
            nonlocal result, error
            this_deputy.call, call.thread = call, threading.get_ident()
            try:
                if refused is not None:
                    raise no_thread(refused)
                result = work(*args)
            except BaseException as raised:  # noqa: BLE001 - raised in the main thread
                error = raised
            ended.release()

        self._deputies.submit(do)
        # In short waits: a signal just before a wait, or in another thread, does not end the wait
        # (seen with 3.13.0), and Python runs the signal's handler only after it.
        while not ended.acquire(timeout=SIGNAL_CHECK_INTERVAL_S):
            if self.store.background is not self:  # a signal's handler has forked
                raise _inherited_error()
            late_checks = late_checks + 1 if monotonic() > call.until else 0
            if late_checks == STUCK_CHECKS:
                raise _stuck_error(call.thread)
        if isinstance(error, NoThread) and is_interpreter_end(error):
            return run_inside(work, *args)
        if error is not None:
            try:
                raise error
            finally:
                del error  # else its traceback refers to it
        return result  # type: ignore[return-value]

    def ready(self) -> bool:
        """Start the scheduler's thread; return False if the interpreter ends and starts none.

        Raises:
            StoreUnavailable: the system gives no thread.
        """
        try:
            scheduler.shared.start()
        except RuntimeError as error:
            if is_interpreter_end(error):
                return False
            raise no_thread(error) from error
        return True

    def clean_up(self, withdraw: Withdraw) -> None:
        """Withdraw an acquisition; retry until the store confirms it.

        The ticket of a living process does not expire (kazoo #732).
        """
        clean_up = _CleanUp(self, withdraw)
        self.clean_ups[clean_up] = None
        self._note_load()
        clean_up.repeating.run_within(0)

    def retry(self) -> None:
        """Repeat the failed clean-ups now: a request has succeeded."""
        with suppress(KeyError):
            while True:
                self.failed.popitem()[0].run_soon()  # atomic: `failed` is shared with other threads

    def finish(self, clean_up: _CleanUp) -> None:
        """Forget a clean-up that needs no further try, and repeat the others."""
        self.clean_ups.pop(clean_up, None)
        self.failed.pop(clean_up, None)
        self._note_load()
        self.retry()

    def _note_load(self) -> None:
        self.overload = _OVERLOAD if len(self.clean_ups) >= MAX_OWED else ""

    def run(self, work: Callable[[], object]) -> None:
        """Have a thread work; `settle` waits for it."""

        def do() -> None:
            try:
                work()
            finally:
                self._jobs.pop(do, None)

        self._jobs[do] = None
        self.cleaners.submit(do)

    def parts(self) -> list[ending.Part]:
        """Return all that ends with the store."""
        return [*list(self.acquisitions), *list(self.clean_ups)]

    def unfinished(self) -> bool:
        """Return whether a release or a withdrawal is not confirmed yet."""
        return bool(self._jobs) or any(part.is_open for part in self.parts())

    def settle(self, seconds: float) -> None:
        """Wait until nothing is unfinished, at most for `seconds`."""
        deadline = Deadline.after(seconds)
        scheduler.shared.flush(seconds)
        while self.unfinished() and not deadline.expired():
            time.sleep(0.005)

    def close(self) -> None:
        """End each thread after its work; `ending.end` has woken the waiters."""
        self.tickets.close()
        for pool in (self.urgent, self.patient, self.leases, self.cleaners, self._deputies):
            pool.close()


class _CleanUp(ending.Part):
    """A withdrawal that is repeated until the store confirms it. One try runs at a time."""

    is_open = True

    def __init__(self, background: Background, withdraw: Withdraw) -> None:
        self.repeating = Repeating(background.cleaners.submit, self.run)
        self.name, self.uuid = withdraw.name, withdraw.uuid
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
            store.ask(withdraw, ending.state.within(CLEAN_UP_TIMEOUT_S))
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
                    store.ask(delete, ending.state.within(CLEAN_UP_TIMEOUT_S))
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

    def end(self) -> None:
        """Try again now."""
        self.repeating.run_within(0)

    def left_over(self) -> str | None:
        """See `ending.Part`; a ticket alone expires soon."""
        withdraw = self._withdraw
        if withdraw.record is None:
            return None
        write = ending.while_acquiring if withdraw.tombstone else ending.while_releasing
        return write(withdraw.record)


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


def _inherited_error() -> LockNotHeld:
    return LockNotHeld(
        "A signal's handler forked this process while its parent waited for the store: the child "
        "must acquire locks by calls of its own."
    )


def _stuck_error(thread: int) -> StoreUnavailable:
    """Log the stack of a deputy that hangs; return the error of the caller."""
    frame = sys._current_frames().get(thread)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "It has not begun.\n"
    log.error("A thread that asks the store for the main thread hangs:\n%s", stack)
    return StoreUnavailable(
        "A thread that asks the store hangs, so the outcome is unknown. A finalizer that the "
        "garbage collector runs there may wait for a lock of the main thread; the log has its "
        "stack."
    )


class NoThread(StoreUnavailable):
    """The system gives no thread for a request; nothing was sent."""


def no_thread(why: object) -> NoThread:
    """Return the error of a request for which the system gives no thread."""
    text = f"The store could not be asked: the system gives no thread for it ({why})."
    return NoThread(text, unknown=False, refused=True)
