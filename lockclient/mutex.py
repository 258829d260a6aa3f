"""`ClusterMutex`: a lock that many processes on many hosts share, used like `threading.Lock`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from lockclient.acquisition.base import BaseMutex, Named, held_by, reading, require_queue
from lockclient.acquisition.held_lock import BaseHeldLock, OnLost
from lockclient.acquisition.ownership import for_on_lost, taken_here
from lockclient.acquisition.steps import Steps, ThreadInbox, drive
from lockclient.acquisition.with_statement import LEFT, Exit, Statement, entering
from lockclient.errors import ClusterMutexError, LockLost, LockNotHeld, StoreUnavailable
from lockclient.model.clocks import Duration, require_timeout
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.protocol import MutexStore
from lockclient.threads import scheduler
from lockclient.threads.reentry import is_inside

Function = TypeVar("Function", bound=Callable[..., Any])
Params = ParamSpec("Params")
Result = TypeVar("Result")


class AsksStore:
    """What a program can ask the store about any lock, held or not."""

    __slots__ = ()

    def holder(self: Named) -> Holder | None:
        """Ask the store who has the lock now; None: nobody."""
        return held_by(run(reading(self.name), self._store()))

    def waiters(self: Named) -> list[Ticket]:
        """Ask the store for the lock's queue, the next waiter first.

        Raises:
            StoreError: the store keeps no queue.
        """
        store = self._store()
        require_queue(store)
        return list(run(reading(self.name, waiters=True), store).waiters)


def _leave(
    owner: HeldLock | ClusterMutex,
    statement: list[Statement],
    _kind: type[BaseException] | None,
    error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """Release what the block's `__enter__` took, unless it was released inside."""
    if statement[0].is_placeholder:  # it is called a second time
        return
    held = statement[0].held or owner._block_by_hand()
    if not isinstance(held, HeldLock):
        return
    statement[0].held = held
    try:
        if "end" in held._holding.still_to or held._holding.is_parents:
            held.release()
        statement[:] = LEFT  # nothing is to happen when its exit dies
    except ClusterMutexError as failure:
        held._left(failure, error)


class HeldLock(BaseHeldLock, AsksStore):
    """One acquisition of a lock, from `acquire` or `with` to its release.

    Any thread or callback may use it. It means this acquisition, whatever happens to the mutex:
    after its loss it says lost, after its release released. `with held:` releases it at the
    block's end, unless another block does so already.
    """

    __slots__ = ()

    def alive(self, *, force: bool = False) -> None:
        """Report progress: push the alert and the auto-unlock into the future.

        Within `min(1 s, expected_runtime / 50)` of the last push (in a bucket 1.2 s) it only checks
        a flag, so hot loops may call it. A store that does not answer is no error while the lock is
        still ours; with `force` it always pushes, and raises.

        Raises:
            LockNotHeld: it was released.
            LockLost: the lock was removed, or its time has run out.
            StoreUnavailable: with `force`, the store did not answer.
        """
        if force or self._push_due():
            self._require_held("alive()")
            try:
                run(self._holding.pushing(force=force), self._holding.store)
            except StoreUnavailable as error:  # without `force`: the system gives no thread
                if force:
                    raise
                self._holding.acquisition.last_push_error = str(error)

    def release(self, timeout: Duration | None = None) -> None:
        """Release the lock.

        Args:
            timeout: seconds to wait for the store's answer; None: ten. After that the background
                releases it, for as long as that takes.

        Raises:
            LockNotHeld: it was released already.
            LockLost: it was removed, or its time ran out, before it was released.
            StoreUnavailable: the store did not answer; the background tries again.
        """
        holding, undo = self._holding, scheduler.shared.undo
        seconds = None if timeout is None else require_timeout("timeout", timeout)
        try:
            if not holding.still_to.pop("end", False):  # two release it: one is refused
                self._require_held("release()")
                return
            if is_inside() or sys.is_finalizing():  # then no thread runs, and it stays locked
                undo(holding)
                holding.check()
                return
            store = holding.store
            store.background.run_shielded(drive, holding.releasing(seconds), store)
        except LockNotHeld:
            raise
        except BaseException:  # no answer, or an interrupt between any two lines here
            undo(holding)
            raise

    def __enter__(self) -> HeldLock:
        self._enter(entering(self))
        return self

    def _block_by_hand(self) -> HeldLock:
        return self

    __exit__ = Exit(_leave)

    def _call(self, on_lost: OnLost, lost: LockLost) -> None:
        for_on_lost(self, partial(on_lost, lost))()


def run(steps: Steps[Result], store: MutexStore) -> Result:
    """Drive steps in a thread in which no signal handler runs."""
    return store.background.run_shielded(drive, steps, store)  # type: ignore[no-any-return]


class ClusterMutex(BaseMutex[HeldLock], AsksStore):
    """A distributed lock that people can see.

        with ClusterMutex("nightly-report", reason="rebuild totals", expected_runtime=300) as held:
            for item in items:
                work(item)
                held.alive()

    `with` and `acquire()` give a `HeldLock`: one acquisition. The mutex itself describes the lock
    and may be shared by any number of threads, which then contend for it; it is not reentrant. A
    call on it, like `m.alive()`, means the caller's own newest unreleased acquisition (by thread,
    or by task in an event loop); else the object's only unreleased one; else it raises
    `LockNotHeld`: use the `HeldLock`. A lost acquisition is unreleased until it is released, or its
    owner acquires again by the same object; 16 at most are remembered.

    It can't stop a holder that goes on working after its loss. Call `alive()` or `check_health()`
    between steps, and give storage the `fencing_token` to refuse latecomers.

    Args:
        name: 1 to 255 bytes in UTF-8, no control characters. Of a subclass of `str`, like a member
            of `class Job(str, Enum)`, its value counts, here and in all other texts.
        timeout: how long to wait for the lock; None waits for ever. All durations are seconds, a
            `timedelta`, or text like "90s", "5m" or "1h30m".
        expected_runtime: the time without `alive()` after which people are alerted.
        auto_unlock_after: the time without `alive()` after which the unlocker removes the lock,
            more than `expected_runtime`; None: never; "auto": three times `expected_runtime`.
        reason: what the lock is used for, for people.
        identity: a name for this worker. When it crashed and comes back with the same identity, it
            takes its own lock over at once. Live processes on different machines, or in different
            containers (pid namespaces) of one, must not share one: each would take the lock from
            the other.
        keepalive: push from the background instead of by `alive()`; a duration limits for how long.
            A worker that hangs looks alive meanwhile.
        max_hold: how long the lock is held at most, however often it is pushed: beyond that people
            are alerted, and nothing is removed; None: no limit.
        on_lost: called with the `LockLost` once, in a thread of its own, when the lock is lost.
        capture_backtrace: whether to record the stack that acquired the lock.
        release_at_exit: whether to release what is still held as the interpreter ends; else the log
            names it. Only for programs whose other threads have ended by then.
        owner: a team or a service, for people; else what `setup` said.
        labels: further texts by their names, beside those of `setup`: at most 16, of 1,024 bytes in
            JSON all together.
        store: where locks live; else what `setup` said, else the environment.

    Raises:
        ValueError: a bad value (`InvalidLockName` for the name), before any I/O.
    """

    _held_type = HeldLock

    # ------------------------------------------------------------ threading.Lock

    def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> HeldLock | None:
        """Acquire the lock; wait in its queue unless `blocking` is False.

        Args:
            blocking: False tries once and does not wait.
            timeout: how long to wait (seconds, a `timedelta`, "5m"); None: without limit; -1: as
                long as the constructor's `timeout` says.

        Returns:
            The held lock; None: the time was up.

        Raises:
            StoreUnavailable: the store did not answer in time.
            StoreError: the store refuses: no right, no space.
        """
        undo = scheduler.shared.undo
        attempt = self._attempt(self._limit(blocking, timeout), ThreadInbox)
        store = attempt.store
        try:
            if store.background.run_shielded(drive, attempt.steps(), store):
                return self._adopt(attempt.holding, taken_here(), None)
            return None
        except BaseException:  # an interrupt may come between any two lines here, and another here
            undo(attempt)
            raise

    def release(self, timeout: Duration | None = None) -> None:
        """Release the caller's own acquisition, else the object's only one; see `HeldLock.release`.

        Raises:
            LockNotHeld: nothing is held, or several are and none is the caller's own.
        """
        self._acquisitions.meant("release()").release(timeout)

    def __enter__(self) -> HeldLock:
        statement, undo = entering(self), scheduler.shared.undo
        attempt = self._attempt(self._timeout, ThreadInbox)
        store = attempt.store
        try:
            if not store.background.run_shielded(drive, attempt.steps(), store):
                raise run(self._timed_out(), store)
            if statement is None:
                return self._adopt(attempt.holding, taken_here(), "hand")
            statement.held = held = self._adopt(attempt.holding, taken_here(), "statement")
            return held
        except BaseException:  # as in `acquire`
            undo(attempt)
            raise

    def _block_by_hand(self) -> HeldLock | None:
        return self._acquisitions.left()

    __exit__ = Exit(_leave)

    def __call__(self, function: Function) -> Function:
        """Use the mutex as a decorator: each call of `function` holds the lock.

        Raises:
            TypeError: its work would be done after the call: `async def`, a generator, an awaitable
                or a task as its result. Where that shows only at the call, the call raises it.
        """
        from lockclient.acquisition.decorated import holding  # few programs need it

        return holding(self, function)  # type: ignore[no-any-return]

    def skip_if_held(self, function: Callable[Params, Result]) -> Callable[Params, Result | None]:
        """Decorate a job: a call while another holder has the lock returns None, without a wait.

            @ClusterMutex("nightly-report", expected_runtime="5m").skip_if_held
            def report() -> None: ...

        Whether it ran, and else who has the lock, is logged at INFO.

        Raises:
            TypeError: as of the mutex as a decorator.
        """
        from lockclient.acquisition.decorated import holding

        return holding(self, function, skip=True)  # type: ignore[no-any-return]

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            """Say what to use."""
            raise TypeError("A ClusterMutex is for `with`: use AsyncClusterMutex for `async with`.")

        __aexit__ = __aenter__

    def alive(self, *, force: bool = False) -> None:
        """Report progress of the caller's own acquisition, see `HeldLock.alive`."""
        self._acquisitions.meant("alive()").alive(force=force)
