"""What goes on beside the callers of one store, by threads that are the store's own.

A store makes one `Background` and ends it with its `close()`. The leases of tickets have a thread
to themselves and wait for nothing; pushes and clean-ups have a few each, so that a thousand of
either are late by no more than a store takes to answer them; and what the main thread asks is
asked by deputies. An idle store has no thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeVar

from lockclient.errors import StoreClosed, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.common.ticket_keeper import TicketKeeper
from lockclient.stores.protocol import ONE_ANSWER_S, MutexStore
from lockclient.stores.requests import Withdraw
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger, naming
from lockclient.threads.pool import WorkerPool
from lockclient.threads.reentry import run_inside
from lockclient.threads.scheduler import RETRY_S

log = get_logger(__name__)

Result = TypeVar("Result")

MAX_IN_FLIGHT = 8
"""Pushes of one store that are under way at once, and as many clean-ups."""
SIGNAL_CHECK_INTERVAL_S = 0.5
"""Seconds after which a waiting main thread looks for signals."""
THREAD_TRIES = 20
"""How often the system is asked, in `RETRY_S`, for the thread without which nothing goes."""
CLEAN_UP_TIMEOUT_S = 2.0
REFUSED_PAUSE_S = 30.0
_PAUSES = (0.2, 0.5, 1.0)
MAX_PAUSE_S = 2.0
"""Seconds between two tries of a clean-up that nobody answers."""
AT_EXIT_S = 1.0
"""Seconds that the end of the interpreter waits for clean-up; all in all it takes two at most."""


class Background:
    """The threads of one store.

    Args:
        store: whose they are.
    """

    def __init__(self, store: MutexStore) -> None:
        self.pushes = WorkerPool("push", MAX_IN_FLIGHT)
        self.tickets = TicketKeeper(store)
        self._store = store
        self._cleaners = WorkerPool("clean-up", MAX_IN_FLIGHT)
        self._shielded = WorkerPool("deputy", 1000)
        self._unfinished: dict[object, None] = {}

    def run_shielded(self, work: Callable[..., Result], *args: Any) -> Result:
        """Do what asks the store, where no signal can land; return its result.

        Python runs the handlers of signals in the main thread, between any two of its steps, and
        what they raise (Ctrl-C, a soft time limit) is raised there. In the middle of a call of
        gRPC's that leaves locks taken for good, and in the middle of our own steps it leaves what
        nobody knows of. So the main thread only waits, for a deputy that does the work. If
        something is raised while it waits, the deputy goes on: the caller is to tell it to stop.

        Other threads do their work themselves: by deputies a cycle costs 1.25 to 1.6 times the
        processor time, at 1, 16 and 64 threads, for exceptions that few programs raise in them.

        Raises:
            StoreUnavailable: the system gives no thread for it; nothing was done.
        """
        if sys.is_finalizing():  # no other thread runs any more: only releases are worth a wait
            raise _no_thread("the interpreter ends")
        if scheduler.shared.missing:
            self.ready()
        if threading.get_ident() != _main_thread:
            return run_inside(work, *args)
        ended = allocate_lock()  # free when it is done
        ended.acquire()
        result: Result | None = None
        error: BaseException | None = None
        begun = False

        def do() -> None:
            nonlocal begun, result, error
            self._unfinished[do] = None
            begun = True
            try:
                result = work(*args)
            except BaseException as raised:  # noqa: BLE001 - it is raised where it is waited for
                error = raised
            ended.release()
            self._unfinished.pop(do, None)

        self._shielded.submit(do)
        waited = 0.0
        # Not for ever in one go: a signal that comes just before the wait begins, or to another
        # thread, does not end it (seen with 3.13.0), and its handler would wait as long.
        while not ended.acquire(timeout=SIGNAL_CHECK_INTERVAL_S):
            waited += SIGNAL_CHECK_INTERVAL_S
            if not begun and waited >= ONE_ANSWER_S and self._shielded.refused:
                raise _no_thread("none could be started")
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it would hold itself by its traceback
        return result  # type: ignore[return-value]

    def ready(self) -> None:
        """See to it that what is to go on in the background will.

        Raises:
            StoreUnavailable: the system gives no thread for it.
        """
        tries = 0
        while True:
            try:
                return scheduler.shared.start()
            except RuntimeError as error:
                tries += 1
                if tries >= THREAD_TRIES:
                    raise _no_thread(error) from error
                time.sleep(RETRY_S / THREAD_TRIES)

    def clean_up(self, withdraw: Withdraw) -> None:
        """Leave nothing of an acquisition, for as long as that takes."""
        cleaning = _CleanUp(self._store, withdraw)
        # Before it is begun: were it the other way round, it might be done before it is noted.
        self._unfinished[cleaning] = None
        self._clean(cleaning)

    def _clean(self, cleaning: _CleanUp) -> None:
        def do() -> None:
            again = cleaning.run()
            if again is None:
                self._unfinished.pop(cleaning, None)
            else:
                scheduler.shared.after(again, partial(self._clean, cleaning))

        self._cleaners.submit(do)

    def unfinished(self) -> bool:
        """Tell whether something is to be cleaned up, or done for the main thread, still."""
        return bool(self._unfinished)

    def settle(self, seconds: float) -> None:
        """Wait until nothing is unfinished, but not longer than that."""
        deadline = Deadline.after(seconds)
        scheduler.shared.flush(seconds)
        while self._unfinished and not deadline.expired():
            self._cleaners.help_out()
            time.sleep(0.005)

    def close(self, patience: float) -> None:
        """Wake all waiters, who find the store closed; end all threads when they are done."""
        self.tickets.close()
        self.settle(patience)
        for pool in (self.pushes, self._cleaners, self._shielded):
            pool.close()


_main_thread = threading.main_thread().ident


def _be_the_main_thread() -> None:
    """After fork, in the child."""
    global _main_thread
    _main_thread = threading.get_ident()


os.register_at_fork(after_in_child=_be_the_main_thread)


def _no_thread(why: object) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store could not be asked: the system gives no thread for it ({why}).", unknown=False
    )


class _CleanUp:
    """One acquisition of which nothing is to be left.

    The ticket of a living process does not expire (kazoo #732), so it is tried until it is done.
    """

    def __init__(self, store: MutexStore, withdraw: Withdraw) -> None:
        self._store = store
        self._withdraw = withdraw
        self._pauses = chain(_PAUSES, repeat(MAX_PAUSE_S))
        self._refused = False

    def run(self) -> float | None:
        """Try it; return in how many seconds to try again, None: it is done."""
        withdraw = self._withdraw
        try:
            self._store.ask(withdraw, Deadline.after(CLEAN_UP_TIMEOUT_S))
        except StoreUnavailable:
            return next(self._pauses)
        except StoreClosed:
            log.warning(
                "What is left of %r stays until its auto-unlock: the store was closed before it "
                "could be taken back.",
                withdraw.name,
                extra=naming(withdraw),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, only success is an end
            if not self._refused:
                log.error(
                    *("Cleaning up after %r is refused; retrying: %s", withdraw.name, error),
                    extra=naming(withdraw),
                )
            self._refused = True
            self._without_mark()
            return REFUSED_PAUSE_S
        return None

    def _without_mark(self) -> None:
        """Delete at least: a store that is out of space takes that, but no mark.

        The mark is retried: what it disarms may arrive after there is space again.
        """
        if self._withdraw.tombstone:
            try:
                self._store.ask(
                    replace(self._withdraw, tombstone=False), Deadline.after(CLEAN_UP_TIMEOUT_S)
                )
            except Exception as error:  # noqa: BLE001 - it is all tried again
                log.debug(
                    *("What is left of %r stays for now: %s", self._withdraw.name, error),
                    extra=naming(self._withdraw),
                )
