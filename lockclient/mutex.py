"""`ClusterMutex`: a lock that many processes on many hosts share, used like `threading.Lock`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ContextDecorator, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

from lockclient.driving import drive
from lockclient.errors import ClusterMutexError, LockLost
from lockclient.handle import CLEAN_UP, Handle, held_by
from lockclient.holding import Holding
from lockclient.record import Holder, Ticket
from lockclient.timing import Now

Function = TypeVar("Function", bound=Callable[..., Any])


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
        auto_unlock_after: seconds without `alive()` after which the unlocker removes the lock;
            None: never. Must exceed `expected_runtime`.
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
        now = Now.read()
        attempt = self._attempt(blocking, now)
        try:
            if drive(attempt.steps(now, deadline, SimpleQueue), attempt.store):
                self._hold(attempt)
                return True
            finished: SimpleQueue[None] = SimpleQueue()  # an Event is a condition, see `Background`
            if self._abandon(attempt, lambda: finished.put(None)):
                with suppress(Empty):
                    finished.get(timeout=CLEAN_UP)
            return False
        except BaseException:  # an interrupt may come between any two lines here
            self._abandon(attempt)
            raise

    def release(self) -> None:
        """Give the lock back.

        Raises:
            LockNotHeld: this object does not hold it.
            LockLost: it was removed, or its time ran out, before it was released.
            StoreUnavailable: the store did not answer; it is tried on in the background.
        """
        holding: Holding | None = None
        try:
            with self._gate:  # so that of two threads that release, one is told off
                holding, self._holding = self._holding, None
            if holding is not None:
                return drive(holding.releasing(), holding.store)
        except LockLost:
            raise
        except BaseException:  # no answer, or an interrupt between any two lines here
            if holding is not None:
                holding.abandon()
            raise
        raise self._not_held("release()")

    def __enter__(self) -> ClusterMutex:
        if not self.acquire():
            raise drive(self._timed_out(), self._store())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except ClusterMutexError as failure:
            self._left(failure, error)

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

    def alive(self, *, force: bool = False) -> None:
        """Say that the work goes on: push the alert and the auto-unlock into the future.

        Made for hot loops: within `min(1 s, expected_runtime / 50)` of the last push it only checks
        a flag. A store that does not answer is no error while the lock is still ours; with `force`
        it always pushes, and raises.

        Raises:
            LockNotHeld: this object does not hold the lock.
            LockLost: the lock was removed, or its time has run out.
            StoreUnavailable: with `force`, the store did not answer.
        """
        holding = self._holding
        if holding is None:
            raise self._not_held("alive()")
        acquisition = holding.acquisition
        if not force and acquisition.loss is None and monotonic() < acquisition.quiet_until:
            return
        holding.alive(force=force)

    # ------------------------------------------------------------ asking the store

    def holder(self) -> Holder | None:
        """Ask the store who has the lock now; None: nobody."""
        return held_by(drive(self._reading(), self._store()))

    def waiters(self) -> list[Ticket]:
        """Ask the store who is in line for the lock, the next one first."""
        return list(drive(self._reading(waiters=True), self._store()).waiters)
