"""`HeldLock`: the object that `acquire()` returns; everything in it that sends no request.

The mutex refers to the HeldLock, and the HeldLock to `on_lost`. Background threads refer to the
HeldLock weakly. So a HeldLock that the program can't release any more is garbage-collected. Then
its heartbeats end, the lock stays in the store until its auto-unlock, and a warning names the line
that acquired it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from weakref import ref

from lockclient.acquisition import leaked_locks
from lockclient.errors import ClusterMutexError, LockLost, LockNotHeld
from lockclient.model.clocks import monotonic
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger, naming

if TYPE_CHECKING:
    from lockclient.acquisition.heartbeat_and_loss import Holding
    from lockclient.model.holder import Holder
    from lockclient.stores.mutex_store import Guard, MutexStore

log = get_logger(__name__)

OnLost = Callable[[LockLost], object]
Block = Literal["statement", "manual"] | None
"""The block that releases the lock: a `with`, a manual `__enter__()` of the mutex, or none."""

NO_FENCING = (
    "has no number that only grows, so it can't tell an earlier holder from a later one: "
    "fence by the lock's uuid, or by storage's own conditions, or use etcd."
)
NO_GUARD = (
    "has no transactions over several objects, so no transaction of yours can depend on a lock: "
    "call check_health() before each write, or use etcd."
)


class Handle(ref["BaseHeldLock"]):
    """A weak reference; its callback notifies the scheduler when the HeldLock is collected."""

    __slots__ = ("holding",)

    holding: Holding

    def clean_up(self) -> None:
        """Called by the scheduler's thread after the HeldLock was garbage-collected."""
        leaked_locks.on_collected(self.holding)


class _ThreadLife:
    """An object in thread-local storage: freed with its thread, as a weak reference shows."""


_thread = threading.local()


class BaseHeldLock:
    """The base of `HeldLock` and `AsyncHeldLock`."""

    __slots__ = ("__weakref__", "_acquisition", "_block", "_holding", "_mutex", "_on_lost")

    def __init__(self, holding: Holding, on_lost: OnLost | None, block: Block) -> None:
        self._holding = holding
        self._acquisition = holding.acquisition
        self._on_lost = on_lost
        self._mutex: Callable[[], object] = lambda: None  # the `Acquisitions` of its mutex
        self._block = block
        handle = Handle(self, scheduler.shared.clean_up)
        handle.holding = holding
        holding.handle = handle
        if holding.keepalive is not None:
            holding.thread = ref(vars(_thread).setdefault("life", _ThreadLife()))
        if holding.acquisition.loss is not None:  # lost already: schedule its report
            holding.loss()

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._acquisition.name

    @property
    def uuid(self) -> str:
        """The id of this acquisition."""
        return self._acquisition.uuid

    @property
    def fencing_token(self) -> int:
        """The store's revision at which this holder acquired the lock; it only ever grows.

        Send it to the storage with every write, and let the storage refuse any token lower than the
        highest that it has seen.

        Raises:
            StoreError: the store has no number that only grows.
        """
        self._holding.store.can.require("fencing", NO_FENCING)
        return self._acquisition.token

    @property
    def guard(self) -> Guard:
        """A comparison for your own transaction on the same etcd.

        The key `guard.key` has the value `guard.value` as long as this holder has the lock.

        Raises:
            StoreError: the store has no transactions.
        """
        self._holding.store.can.require("guard", NO_GUARD)
        return self._holding.store.guard(self.name, self.uuid)

    @property
    def record(self) -> Holder:
        """The record as the store last confirmed it."""
        return self._acquisition.holder

    @property
    def healthy(self) -> bool:
        """True if the lock is held and not lost, as far as is known without a request."""
        return self._holding.healthy

    def check_health(self) -> None:
        """Raise `LockLost` if the lock was lost, `LockNotHeld` if it was released; no request."""
        self._require_held("check_health()")

    def _push_due(self) -> bool:
        """Return whether `alive()` has to do anything; hot loops call this."""
        acquisition = self._acquisition
        return (
            monotonic() >= acquisition.quiet_until
            or acquisition.loss is not None
            or "release" not in self._holding.one_time  # as `ended`, without a call
        )

    def _store(self) -> MutexStore:
        return self._holding.store

    def _require_held(self, what: str) -> None:
        self._holding.check()
        if self._holding.ended:
            raise self._not_held(what)

    def _not_held(self, what: str) -> LockNotHeld:
        why = f"is not held any more: it was released before {what}"
        if self._holding.is_inherited:
            pid = self._acquisition.holder.pid
            why = f"belongs to process {pid}, of which this one is a fork: acquire it here"
        return LockNotHeld(f"The lock {self.name!r} {why}.", name=self.name, uuid=self.uuid)

    def __repr__(self) -> str:
        loss, ended = self._acquisition.loss, self._holding.ended
        state = "lost" if loss is not None else "released" if ended else "held"
        return f"<{state} {type(self).__name__} {self.name!r} uuid={self.uuid}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} can't be copied or pickled: it is one acquisition, of this "
            "process."
        )

    def _release_in_background(self) -> None:
        if not self._holding.ended:
            self._holding.release_in_background()

    def _call_on_lost(self, lost: LockLost) -> None:
        """Call `on_lost` in this thread; the callback may block it."""
        if self._on_lost is not None:
            self._call(self._on_lost, lost)

    def _call(self, on_lost: OnLost, lost: LockLost) -> None:
        raise NotImplementedError

    def _log_failed_call(self) -> None:
        """Log the exception that is being handled: the program's `on_lost` raised it."""
        text = "on_lost of the lock %r failed."
        log.error(text, self.name, exc_info=True, extra=naming(self))  # noqa: LOG014 - an except block calls it

    # ------------------------------------------------------------ as a context manager

    def _enter(self, statement: Any) -> None:
        """Register this lock with the block that begins; RuntimeError if a block has it already."""
        self._require_held("the block")
        if self._block is not None:
            raise RuntimeError(
                f"The held lock {self.name!r} is in a block already, whose end releases it."
            )
        self._block = "statement"
        if statement is not None:
            statement.held = self

    def _raise_exit_error(self, failure: ClusterMutexError, error: BaseException | None) -> None:
        """Handle `failure`, which the release at the end of a block raised.

        - The body raised nothing (`error` is None): raise `failure`.
        - The body raised, and the store failed: log `failure`.
        - The body raised another Exception than a loss, and the release shows that the lock is
          lost: raise the loss from the body's error.
        - Otherwise return, so that the body's error propagates.
        """
        if error is None:
            raise failure
        if not isinstance(failure, LockLost | LockNotHeld):
            log.warning("Releasing %r failed; retrying: %s", self.name, failure, extra=naming(self))
        elif isinstance(error, Exception) and not isinstance(error, LockLost | LockNotHeld):
            raise failure from error
