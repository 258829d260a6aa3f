"""`ClusterMutex`: a lock that many processes on many hosts share, used like `threading.Lock`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from lockclient.acquisition.base_mutex import BaseMutex, Named, held_by, reading, require_queue
from lockclient.acquisition.held_lock import BaseHeldLock, OnLost
from lockclient.acquisition.shared_mutex import caller_locks, for_on_lost
from lockclient.acquisition.thread_driver import Steps, ThreadInbox, drive
from lockclient.acquisition.with_statement import LEFT, Exit, Statement, entering
from lockclient.errors import ClusterMutexError, LockLost, LockNotHeld, StoreUnavailable
from lockclient.model.clocks import Duration, require_timeout
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.mutex_store import MutexStore
from lockclient.threads import scheduler
from lockclient.threads.reentrancy import is_inside, is_own_thread, own_thread_error

Function = TypeVar("Function", bound=Callable[..., Any])
Params = ParamSpec("Params")
Result = TypeVar("Result")


class AsksStore:
    """The methods that read the lock's holder and its waiters from the store."""

    __slots__ = ()

    def holder(self: Named) -> Holder | None:
        """Read the lock; return its holder, or None if it is free."""
        return held_by(run(reading(self.name), self._store()))

    def waiters(self: Named) -> list[Ticket]:
        """Ask the store for the lock's queue, the next waiter first.

        Raises:
            StoreError: the store keeps no queue.
        """
        store = self._store()
        require_queue(store)
        return list(run(reading(self.name, waiters=True), store).waiters)


def _exit_block(
    owner: HeldLock | ClusterMutex,
    slot: list[Statement],
    _kind: type[BaseException] | None,
    error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    """Release what the block's `__enter__` acquired, unless the block released it."""
    if slot[0].is_placeholder:  # `__exit__` was called before
        return
    held = slot[0].held or owner._find_manual_block()  # taken by a manual `__enter__()`
    if not isinstance(held, HeldLock):
        return
    slot[0].held = held  # if an interrupt ends this function, `Statement.clean_up` releases it
    try:
        # "release": not `ended`, without a call.
        if "release" in held._holding.one_time or held._holding.is_inherited:
            held.release()  # in a fork's child it raises `LockNotHeld`
        slot[:] = LEFT  # frees the Statement, so that its clean-up does not run
    except ClusterMutexError as failure:
        held._raise_exit_error(failure, error)


class HeldLock(BaseHeldLock, AsksStore):
    """One acquisition of a lock, from `acquire` or `with` to its release.

    Any thread or callback may use it. After a loss its methods raise `LockLost`, after its release
    `LockNotHeld`, even if the mutex holds the lock again. `with held:` releases it at the end of
    the block, and raises RuntimeError if it is in a block already.
    """

    __slots__ = ()

    def alive(self, *, force: bool = False) -> None:
        """Report progress: push the alert and the auto-unlock into the future.

        Within `min(1 s, expected_runtime / 50)` of the last push (in a bucket: within 1.2 s) it
        only compares the clock, so hot loops may call it. If the store does not answer, `alive()`
        waits at most 2 s, and raises nothing before the lock's deadline. With `force` it always
        sends a heartbeat, and raises `StoreUnavailable` if the store does not answer.

        Raises:
            LockNotHeld: it was released.
            LockLost: the lock was removed, or its time has run out.
            StoreUnavailable: with `force`, the store did not answer.
        """
        if force or self._push_due():
            self._require_held("alive()")
            try:
                run(self._holding.pushing(force=force), self._holding.store)
            except StoreUnavailable as error:  # no thread could be started: nothing was sent
                if force:
                    raise
                self._holding.acquisition.last_push_error = str(error)

    def release(self, timeout: Duration | None = None) -> None:
        """Release the lock.

        Args:
            timeout: seconds to wait for the store's answer; None: ten. After that a background
                thread repeats the release until the store answers.

        Raises:
            LockNotHeld: it was released already.
            LockLost: it was removed, or its time ran out, before it was released.
            StoreUnavailable: the store did not answer; a background thread repeats the release.
        """
        holding, clean_up = self._holding, scheduler.shared.clean_up
        seconds = None if timeout is None else require_timeout("timeout", timeout)
        try:
            if not holding.one_time.pop("release", False):  # atomic: one caller releases
                self._require_held("release()")
                return
            # If a signal handler or a finalizer interrupted this library's code, waiting here could
            # deadlock, so a background thread releases the lock. While the interpreter ends, no
            # background thread runs, and the lock stays until its auto-unlock.
            if is_inside() or sys.is_finalizing():
                clean_up(holding)
                holding.check()
                return
            store = holding.store
            store.background.run_shielded(drive, holding.releasing(seconds), store)
        except LockNotHeld:
            raise
        except BaseException:  # no answer, or an interrupt between any two lines here
            clean_up(holding)
            raise

    def __enter__(self) -> HeldLock:
        self._enter(entering(self))
        return self

    def _find_manual_block(self) -> HeldLock:
        return self

    __exit__ = Exit(_exit_block)

    def _call(self, on_lost: OnLost, lost: LockLost) -> None:
        for_on_lost(self, partial(on_lost, lost))()


def run(steps: Steps[Result], store: MutexStore) -> Result:
    """Run the steps to their end; return their result.

    If the main thread calls this, a worker thread runs the steps, because an exception that a
    signal handler raises must not interrupt gRPC. Any other thread runs them itself.

    Raises:
        ClusterMutexError: a finalizer called in a thread of this library.
    """
    if is_inside() and is_own_thread():
        raise own_thread_error()
    return store.background.run_shielded(drive, steps, store)  # type: ignore[no-any-return]


class ClusterMutex(BaseMutex[HeldLock], AsksStore):
    """A distributed lock that people can see.

        with ClusterMutex("nightly-report", reason="rebuild totals", expected_runtime=300) as held:
            for item in items:
                work(item)
                held.alive()

    `with` and `acquire()` give a `HeldLock`: one acquisition. The mutex itself describes the lock
    and may be shared by any number of threads, which then contend for it; it is not reentrant. A
    call like `m.alive()` applies to the newest acquisition that the calling thread (or the task in
    an event loop) has not released. If the caller has none, and the mutex has exactly one
    unreleased acquisition, the call applies to that one. Otherwise it raises `LockNotHeld`: then
    call the method of the `HeldLock`. A lost acquisition counts as unreleased until it is
    released or its owner acquires again through this mutex. The mutex remembers 16 lost ones.

    It can't stop a holder that keeps working after its loss. Call `alive()` or `check_health()`
    between steps, and give storage the `fencing_token` to refuse an earlier holder's writes.

    Args:
        name: 1 to 255 bytes in UTF-8, no control characters. For a `str` subclass, like a member of
            `class Job(str, Enum)`, the string value is used, in all text arguments.
        timeout: how long to wait for the lock; None waits for ever. All durations are seconds, a
            `timedelta`, or text like "90s", "5m" or "1h30m".
        expected_runtime: the time without `alive()` after which people are alerted.
        auto_unlock_after: the time without `alive()` after which the unlocker removes the lock,
            more than `expected_runtime`; None: never; "auto": three times `expected_runtime`.
        reason: what the lock is used for, for people.
        identity: a name for this worker. A worker that restarts with the same identity takes over
            its predecessor's lock at once. Live processes on different machines, or in different
            containers (pid namespaces) of one, must not share one: each would take the lock from
            the other.
        keepalive: push from the background instead of by `alive()`; a duration limits for how long.
            A worker that hangs looks alive meanwhile.
        max_hold: how long the lock is held at most, however often it is pushed: beyond that people
            are alerted, and nothing is removed; None: no limit.
        on_lost: called with the `LockLost` once, in a thread of its own, when the lock is lost.
        capture_backtrace: whether to record the stack that acquired the lock.
        release_at_exit: whether to release locks that are still held as the interpreter ends;
            else the log names them. Use it only if all other threads end before that.
        owner: a team or a service, for people; default: `setup(owner=…)`.
        labels: further texts by their names, in addition to those of `setup`: at most 16, of
            1,024 bytes in JSON all together.
        store: where locks live; default: that of `setup`, else of the environment.

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
            The held lock; None: the timeout passed, or it is not free and `blocking` is False.

        Raises:
            StoreUnavailable: the store did not answer in time.
            StoreError: the store refuses: no right, no space.
        """
        clean_up = scheduler.shared.clean_up
        attempt = self._attempt(self._limit(blocking, timeout), ThreadInbox)
        store = attempt.store
        try:
            if store.background.run_shielded(drive, attempt.steps(), store):
                return self._adopt(attempt.holding, caller_locks(), None)
            return None
        except BaseException:  # `clean_up` is one C call, so a second interrupt can't skip it
            clean_up(attempt)
            attempt.is_open = True
            raise

    def release(self, timeout: Duration | None = None) -> None:
        """Release the caller's own acquisition, else the object's only one; see `HeldLock.release`.

        Raises:
            LockNotHeld: nothing is held, or several are and none is the caller's own.
        """
        self._acquisitions.require_own("release()").release(timeout)

    def __enter__(self) -> HeldLock:
        statement, clean_up = entering(self), scheduler.shared.clean_up
        attempt = self._attempt(self._timeout, ThreadInbox)
        store = attempt.store
        try:
            if not store.background.run_shielded(drive, attempt.steps(), store):
                raise run(self._timeout_error(), store)
            if statement is None:
                return self._adopt(attempt.holding, caller_locks(), "manual")
            statement.held = held = self._adopt(attempt.holding, caller_locks(), "statement")
            return held
        except BaseException:  # as in `acquire`
            clean_up(attempt)
            attempt.is_open = True
            raise

    def _find_manual_block(self) -> HeldLock | None:
        return self._acquisitions.manual_block()

    __exit__ = Exit(_exit_block)

    def __call__(self, function: Function) -> Function:
        """Use the mutex as a decorator: each call of `function` holds the lock.

        Raises:
            TypeError: `function` is async or a generator, or (raised by the call) returns an
                awaitable: its work would run after the release.
        """
        from lockclient.acquisition.decorator import holding  # few programs need it

        return holding(self, function)  # type: ignore[no-any-return]

    def skip_if_held(self, function: Callable[Params, Result]) -> Callable[Params, Result | None]:
        """Decorate a job: a call while another holder has the lock returns None, without a wait.

            @ClusterMutex("nightly-report", expected_runtime="5m").skip_if_held
            def report() -> None: ...

        Each call logs at INFO that it ran, or the lock's holder.

        Raises:
            TypeError: see `__call__`.
        """
        from lockclient.acquisition.decorator import holding

        return holding(self, function, skip=True)  # type: ignore[no-any-return]

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            """Raise TypeError."""
            raise TypeError("A ClusterMutex is for `with`: use AsyncClusterMutex for `async with`.")

        __aexit__ = __aenter__

    def alive(self, *, force: bool = False) -> None:
        """Report progress of the caller's own acquisition, see `HeldLock.alive`."""
        self._acquisitions.require_own("alive()").alive(force=force)
