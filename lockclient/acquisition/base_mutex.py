"""`BaseMutex`: the common part of `ClusterMutex` and `AsyncClusterMutex`; nothing here waits."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from datetime import timedelta
from functools import partial
from typing import Generic, NoReturn, Protocol, TypeVar
from uuid import uuid4

from lockclient import default_store
from lockclient.acquisition.acquire import Attempt
from lockclient.acquisition.heartbeat_and_loss import Holding, held_by_process
from lockclient.acquisition.held_lock import NO_FENCING, NO_GUARD, BaseHeldLock, Block, OnLost
from lockclient.acquisition.shared_mutex import Acquisitions, CallerLocks, this_thread
from lockclient.acquisition.state_machine import Acquisition
from lockclient.acquisition.thread_driver import Steps
from lockclient.default_store import defaults
from lockclient.errors import ClusterMutexError, LockTimeout, StoreUnavailable
from lockclient.model.backtrace import calling_line, capture
from lockclient.model.clocks import (
    AUTO,
    AutoUnlockAfter,
    Deadline,
    Duration,
    Now,
    Runtime,
    require_seconds,
    require_timeout,
    to_seconds,
)
from lockclient.model.fields import MAX_OWNER_BYTES, require_callable, require_labels, require_text
from lockclient.model.holder import NO_PROBLEMS, Holder
from lockclient.model.lock_name import check_name
from lockclient.model.process_identity import (
    container,
    fingerprint,
    process_token,
    user_name,
)
from lockclient.model.version import __version__
from lockclient.stores import timeouts
from lockclient.stores.mutex_store import Guard, Inbox, MutexStore
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.request_types import Read
from lockclient.threads.log_queue import get_logger
from lockclient.threads.reentrancy import is_inside, is_own_thread, own_thread_error

log = get_logger(__name__)

HOLDER_ANSWER_S = 1.0
"""Seconds in which the holder is read for the text of a `LockTimeout`."""

_CLIENT = f"clustermutex/{__version__} python/{'.'.join(map(str, sys.version_info[:3]))}"


Held = TypeVar("Held", bound=BaseHeldLock)


class BaseMutex(Generic[Held]):
    """A lock's name, the options of its acquisitions, and this object's acquisitions."""

    _held_type: type[Held]
    _caller = staticmethod(this_thread)
    _has_loop = False

    def __init__(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        expected_runtime: Duration = 300.0,
        auto_unlock_after: AutoUnlockAfter = AUTO,
        reason: str = "",
        identity: str | None = None,
        keepalive: bool | Duration = False,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
        capture_backtrace: bool = True,
        release_at_exit: bool = False,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        store: MutexStore | None = None,
    ) -> None:
        self.name = check_name(name)
        self._runtime = Runtime.of(expected_runtime, auto_unlock_after)
        seconds = require_timeout("timeout", timeout)
        self._timeout = math.inf if seconds is None else seconds
        self._reason = require_text("reason", reason)
        self._identity = None if identity is None else require_text("identity", identity, 1)
        self._owner = None if owner is None else require_text("owner", owner, 1, MAX_OWNER_BYTES)
        self._labels = require_labels("labels", labels)
        self._max_hold = None if max_hold is None else require_seconds("max_hold", max_hold)
        self._keepalive = None if keepalive is False else True
        if on_lost is not None:
            require_callable("on_lost", on_lost, may_be_async=self._has_loop)
        self._capture_backtrace = capture_backtrace
        if store is None:
            default_store.prepare()
        else:
            default_store.require_store(store)
        # Called here, so that the first acquisition finds the results cached.
        process_token(), user_name(os.geteuid()), container()
        self._given_store = store
        self._on_lost = on_lost
        self._acquisitions: Acquisitions[Held] = Acquisitions(self.name)
        self._holding_of = partial(
            Holding,
            keepalive=None if keepalive is False else self._runtime.expected / 8,
            keepalive_for=math.inf
            if isinstance(keepalive, bool)
            else require_seconds("keepalive", keepalive),
            release_at_exit=release_at_exit,
        )

    # The error of an unknown keyword names this; `aio` has a copy with its own name.
    __init__.__qualname__ = "ClusterMutex.__init__"

    setup = staticmethod(default_store.setup)

    def locked(self) -> bool:
        """Return whether this object holds the lock, for any thread; no request."""
        return any(held.healthy for _, held in self._acquisitions.unreleased())

    @property
    def healthy(self) -> bool:
        """True if the caller holds the lock, see `HeldLock.healthy`; it never raises."""
        held = self._acquisitions.find()
        return held is not None and held.healthy

    def check_health(self) -> None:
        """Raise `LockLost` if the lock was lost, `LockNotHeld` if it is not held; no request."""
        self._acquisitions.require_own("check_health()").check_health()

    @property
    def fencing_token(self) -> int:
        """See `HeldLock.fencing_token`."""
        self._store().can.require("fencing", NO_FENCING)
        return self._acquisitions.require_own("fencing_token").fencing_token

    @property
    def uuid(self) -> str:
        """The id of the caller's acquisition."""
        return self._acquisitions.require_own("uuid").uuid

    @property
    def record(self) -> Holder:
        """See `HeldLock.record`."""
        return self._acquisitions.require_own("record").record

    @property
    def guard(self) -> Guard:
        """See `HeldLock.guard`."""
        self._store().can.require("guard", NO_GUARD)
        return self._acquisitions.require_own("guard").guard

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        state = "locked" if self.locked() else "unlocked"
        return f"<{state} {kind} object {self.name!r} at {id(self):#x}>"

    # ------------------------------------------------------------ inside

    def _limit(self, blocking: bool, timeout: Duration | None) -> float:
        """Return how many seconds to wait; the arguments are those of `threading.Lock`."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if not blocking:
            return 0.0
        if timeout == -1:  # not `timedelta(seconds=-1)`, which is an error below
            return self._timeout
        if timeout is None:
            return math.inf
        if isinstance(timeout, str | timedelta):
            timeout = to_seconds("timeout", timeout)
        if not timeout >= 0:  # NaN, too
            raise ValueError("timeout value must be a non-negative number")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        return timeout

    def _attempt(
        self,
        limit: float,
        inbox: Callable[[], Inbox],
        waiters: Hashable = None,
        backtrace: str | None = None,
    ) -> Attempt:
        if is_inside() and is_own_thread():
            raise own_thread_error()
        now, store = Now.read(), self._given_store or default_store.default_store()
        if store.background.overload:
            raise StoreUnavailable(store.background.overload, unknown=False)
        observer = defaults.observer
        observation = None if observer is None else observer.observe(self.name)
        context = None if observation is None else observation.about
        acquisition = Acquisition(
            self._new_holder(now, backtrace, context),
            self._runtime,
            queue=limit > 0,
            has_ticket_lease=store.has_ticket_lease(waiters),
            own=held_by_process,
            has_queue=store.can.queue,
        )
        attempt = Attempt(store, acquisition, inbox, self._holding_of, now, limit)
        attempt.observation = observation
        return attempt

    def _adopt(self, holding: Holding | None, locks: CallerLocks, block: Block) -> Held:
        """Return the held lock of an acquisition that has succeeded, as the caller's own."""
        assert holding is not None
        if not self._capture_backtrace:
            holding.line = calling_line()
        held = self._held_type(holding, self._on_lost, block)
        owner, uuids = locks
        self._acquisitions.add(held, owner)
        uuids.append(holding.acquisition.uuid)
        return held

    def _new_holder(
        self, now: Now, backtrace: str | None, context: Mapping[str, str] | None
    ) -> Holder:
        pid = os.getpid()
        runtime = self._runtime
        stamps = runtime.stamps(now.wall)
        thread, actor = self._caller()
        return Holder(
            self.name,
            str(uuid4()),
            hostname=_hostname,
            pid=pid,
            thread=thread,
            actor=actor,
            identity=self._identity,
            process=fingerprint(pid) if self._identity is not None else None,
            owner=self._owner or defaults.owner,
            labels={**defaults.labels, **self._labels} or None,
            context=context or None,
            user=user_name(os.geteuid()),
            container=container(),
            reason=self._reason,
            locked_at=round(now.wall, 3),
            alert_at=stamps.alert_at,
            auto_unlock_at=stamps.auto_unlock_at,
            expected_runtime=runtime.expected,
            auto_unlock_after=runtime.auto_unlock,
            max_hold=self._max_hold,
            keepalive=self._keepalive,
            backtrace=backtrace or (capture() if self._capture_backtrace else None),
            client=_CLIENT,
            problems=NO_PROBLEMS,
        )

    def _store(self) -> MutexStore:
        return self._given_store or default_store.default_store()

    def _timeout_error(self) -> Steps[LockTimeout]:
        """Return the error, with the holder if the store answers at once."""
        limit, seen = self._timeout, None
        # A store that does not answer gets this time; one that refuses connections gets none.
        at_once = Deadline.after(0.0).within(HOLDER_ANSWER_S, HOLDER_ANSWER_S)
        try:
            seen = yield from reading(self.name, at_once, waiters=True)
        except ClusterMutexError as error:
            extra = {"lock": self.name}
            log.debug("The holder of %r could not be read: %s", self.name, error, extra=extra)
        if seen is None:
            return LockTimeout.after(limit, self.name)
        waiting = len(seen.waiters) if self._store().can.queue else None
        return LockTimeout.after(limit, self.name, held_by(seen), waiting)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} can't be copied or pickled, because it may hold a lock: "
            f"make another one with the same name, {self.name!r}."
        )


class Named(Protocol):
    """A mutex or a held lock: an object with the name of a lock and its store."""

    @property
    def name(self) -> str:
        """The lock's name."""

    def _store(self) -> MutexStore:
        """Where the lock lives."""


def reading(
    name: str, limit: Deadline | None = None, *, waiters: bool = False
) -> Steps[ReadResult]:
    """Read a lock from the store, with its queue if `waiters` is set."""
    limit = limit or Deadline.after(timeouts.STORE_TIMEOUT_S)
    seen = yield Read(name, waiters=waiters), limit
    if not isinstance(seen, ReadResult):
        raise TypeError(f"the store answered {seen!r} to Read")
    return seen


def require_queue(store: MutexStore) -> None:
    """Raise `StoreError` if the store keeps no queue."""
    store.can.require(
        "queue",
        "keeps no queue: its waiters poll, so they can't be listed.",
    )


def held_by(seen: ReadResult) -> Holder | None:
    """Return the lock's holder; None: the lock is free, or broken (it has no uuid)."""
    return seen.holder if seen.holder is not None and seen.holder.uuid is not None else None


_hostname = socket.gethostname()
