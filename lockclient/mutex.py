"""`ClusterMutex`: a lock that many processes on many hosts share, used like `threading.Lock`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, TypeVar

from lockclient.acquisition.attempt import Attempt
from lockclient.acquisition.base import Handle, held_by
from lockclient.acquisition.holding import Holding
from lockclient.acquisition.steps import Steps, ThreadInbox, drive
from lockclient.acquisition.with_statement import Exit, Statement, entered
from lockclient.errors import ClusterMutexError, LockNotHeld
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.protocol import MutexStore
from lockclient.threads import scheduler

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


class ClusterMutex(Handle, ContextDecorator):
    """A distributed lock that people can see.

        with ClusterMutex("nightly-report", reason="rebuild totals", expected_runtime=300) as m:
            for item in items:
                work(item)
                m.alive()

    It follows `threading.Lock`: one object may be shared by threads, which then contend for it;
    any thread may release it; it is not reentrant.

    What it does not do: stop a holder that goes on working after it lost the lock. Call `alive()`
    or `check_health()` between steps, and give storage the `fencing_token` to refuse latecomers.

    Args:
        name: 1 to 255 bytes in UTF-8, no control characters.
        timeout: seconds to wait for the lock; None waits for ever.
        expected_runtime: seconds without `alive()` after which people are alerted.
        auto_unlock_after: seconds without `alive()` after which the unlocker removes the lock, more
            than `expected_runtime`; None: never; "auto": three times `expected_runtime`.
        reason: what the lock is used for, for the people who see it.
        identity: a name for this worker: when it crashed and comes back with the same identity, it
            takes its own lock over at once. Two live processes on different machines must not
            share one: each would take the lock from the other.
        keepalive: push from the background instead of by `alive()`. A worker that hangs then looks
            alive for ever.
        on_lost: called with the `LockLost` once, in a thread of its own, when the lock is lost.
        capture_backtrace: whether to record the stack that took the lock.
        store: where locks live; else what `setup` said, else the environment.

    Raises:
        ValueError: a bad value (`InvalidLockName` for the name), before any I/O.
    """

    # ------------------------------------------------------------ threading.Lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; wait for it in line unless `blocking` is False.

        Args:
            blocking: False tries once and does not wait.
            timeout: seconds to wait; -1 waits as long as the constructor's `timeout` says.

        Returns:
            Whether the lock is held now.

        Raises:
            StoreUnavailable: the store did not answer in time.
            StoreError: the store refuses: no right, no space.
        """
        blocking, deadline = self._limit(blocking, timeout)
        now, undo = Now.read(), scheduler.shared.undo
        attempt = self._attempt(blocking, now, ThreadInbox)
        try:
            return self._go(attempt, now, deadline)
        except BaseException:  # an interrupt may come between any two lines here, and another here
            undo(attempt)
            raise

    def _go(self, attempt: Attempt, now: Now, deadline: Deadline) -> bool:
        store = attempt.store
        if not store.background.run_shielded(drive, attempt.steps(now, deadline), store):
            return False
        self._adopt(attempt.holding)
        return True

    def release(self) -> None:
        """Give the lock back: what the calling thread took, or else what this object holds.

        Raises:
            LockNotHeld: this object does not hold it.
            LockLost: it was removed, or its time ran out, before it was released.
            StoreUnavailable: the store did not answer; it is tried on in the background.
        """
        self._release(self._current(), "release()")

    def _release(self, holding: Holding | None, what: str) -> None:
        undo = scheduler.shared.undo
        try:
            if holding is None or not holding.end():  # of two threads that release, one is told off
                raise self._not_held(what)
            if self._holding is holding:
                self._holding = None
            holding.store.background.run_shielded(drive, holding.releasing(), holding.store)
        except LockNotHeld:
            raise
        except BaseException:  # no answer, or an interrupt between any two lines here
            undo(holding)
            raise

    def __enter__(self) -> ClusterMutex:
        blocking, deadline = self._limit(True, -1)
        now, undo = Now.read(), scheduler.shared.undo
        attempt = self._attempt(blocking, now, ThreadInbox)
        try:
            if not self._go(attempt, now, deadline):
                raise self._away(self._timed_out(), attempt.store)
            entered(self, attempt.holding)
            return self
        except BaseException:  # as in `acquire`
            undo(attempt)
            raise

    def _leave(
        self,
        statement: list[Statement],
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Give back what the statement took."""
        taken = statement[0].holding if statement else self._current()
        if taken is None or taken.ended:  # released inside, and perhaps taken again
            taken = self._own()
        try:
            self._release(taken, "the end of a block")
            statement.clear()  # it has done its work: nothing is to happen when its exit dies
        except ClusterMutexError as failure:
            self._left(failure, error)

    __exit__ = Exit(_leave)

    def __call__(self, function: Function) -> Function:
        """Use the mutex as a decorator: each call of `function` holds the lock."""
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise TypeError(
                f"{function!r} runs after its call has returned, when the lock would be released "
                "already: use `with` inside it."
            )
        return super().__call__(function)

    # ------------------------------------------------------------ signs of life

    def _away(self, steps: Steps[Result], store: MutexStore) -> Result:
        return store.background.run_shielded(drive, steps, store)  # type: ignore[no-any-return]

    def alive(self, *, force: bool = False) -> None:
        """Say that the work goes on: push the alert and the auto-unlock into the future.

        By an object that threads share, a thread pushes what it took itself. One that took nothing
        pushes what the object has at that moment, whichever thread took it.

        Made for hot loops: within `min(1 s, expected_runtime / 50)` of the last push, in a bucket
        within 1.2 s, it only checks a flag. A store that does not answer is no error while the lock
        is still ours; with `force` it always pushes, and raises.

        Raises:
            LockNotHeld: this object does not hold the lock.
            LockLost: the lock was removed, or its time has run out.
            StoreUnavailable: with `force`, the store did not answer.
        """
        holding = self._held("alive()")
        acquisition = holding.acquisition
        if not force and acquisition.loss is None and monotonic() < acquisition.quiet_until:
            return
        self._away(holding.pushing(force=force), holding.store)

    # ------------------------------------------------------------ asking the store

    def holder(self) -> Holder | None:
        """Ask the store who has the lock now; None: nobody."""
        return held_by(self._away(self._reading(), self._store()))

    def waiters(self) -> list[Ticket]:
        """Ask the store who is in line for the lock, the next one first.

        Raises:
            StoreError: the store keeps no line.
        """
        self._need_line()
        return list(self._away(self._reading(waiters=True), self._store()).waiters)
