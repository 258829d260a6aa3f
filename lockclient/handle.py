"""What the mutexes of threads and of asyncio have in common: all that needs no waiting."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from lockclient import config, driving
from lockclient.background import clean_up
from lockclient.backtrace import capture
from lockclient.driving import ONE_TRY, Ask, Inbox, Steps
from lockclient.engine import Acquisition
from lockclient.errors import ClusterMutexError, LockLost, LockNotHeld, LockTimeout
from lockclient.holding import Holding, OnLost
from lockclient.process import fingerprint, thread_name
from lockclient.record import Holder, check_name
from lockclient.settings import made_of
from lockclient.store import Guard, MutexStore, Read, Seen
from lockclient.timing import Deadline, Now, Runtime, require_timeout
from lockclient.version import __version__
from lockclient.waiting import Pursuit

log = logging.getLogger(__name__)

CLEAN_UP = 1.0
"""Seconds that an `acquire` that was too late waits for its clean-up, which goes on without it."""

_CLIENT = f"clustermutex/{__version__} python/{'.'.join(map(str, sys.version_info[:3]))}"


class Attempt:
    """One call of `acquire`, which an interrupt or a cancellation may end between any two lines."""

    def __init__(self, store: MutexStore, acquisition: Acquisition) -> None:
        self.store = store
        self.acquisition = acquisition
        self.holding: Holding | None = None

    def steps(self, now: Now, deadline: Deadline, inbox: Callable[[], Inbox]) -> Steps[bool]:
        """Go for the lock; see `Pursuit`."""
        step = self.acquisition.begin(now)
        return Pursuit(self.store, self.acquisition, inbox).steps(step, deadline)


class Handle:
    """A lock's name, how it is to be held, and what this process knows of it."""

    def __init__(
        self,
        name: str,
        *,
        timeout: float | None = None,
        expected_runtime: float = 300.0,
        auto_unlock_after: float | None = 900.0,
        reason: str = "",
        identity: str | None = None,
        keepalive: bool = False,
        on_lost: OnLost | None = None,
        capture_backtrace: bool = True,
        store: MutexStore | None = None,
    ) -> None:
        self.name = check_name(name)
        self._runtime = Runtime(expected_runtime, auto_unlock_after)
        self._timeout = require_timeout("timeout", timeout)
        self._reason = _require_text("reason", reason)
        self._identity = None if identity is None else _require_text("identity", identity, 1)
        self._keepalive = expected_runtime / 8 if keepalive else None
        if on_lost is not None and not callable(on_lost):
            raise ValueError(f"on_lost must be callable, not {on_lost!r}.")
        self._on_lost = on_lost
        self._capture_backtrace = capture_backtrace
        if store is not None and not hasattr(store, "ask"):
            raise ValueError(f"store must be what open_store() returns, not {store!r}.")
        self._given_store = store
        self._holding: Holding | None = None
        self._gate = threading.Lock()  # so that of two threads that release, one is told off
        _handles.add(self)

    @staticmethod
    def setup(
        url: str | None = None,
        *,
        endpoints: list[str] | tuple[str, ...] | None = None,
        client: Any = None,
        **settings: Any,
    ) -> None:
        """Say once per process where the locks live, for mutexes that name no store.

        Args:
            url: like `etcd://host1:2379,host2:2379/clustermutex`.
            endpoints: like `["host1:2379", "host2:2379"]`, `https://` in front for TLS.
            client: an `etcd3` client that you have already: its connection is used, with its TLS
                and its token. `etcd3` never renews that; with `user` and `password` it is renewed.
            settings: fields of `lockclient.Settings`: root, cacert, cert, key, user, password, …

        What is not said comes from the environment (`CLUSTERMUTEX_URL`, `ETCDCTL_*`).

        Raises:
            ValueError: a value is malformed, or a setting is unknown.
        """
        if client is not None and (url is not None or endpoints is not None):
            raise ValueError("Give the client, or where the members are, not both.")
        made = made_of(url, endpoints, settings)
        if client is not None:  # it has its own token: the environment's user is somebody else
            made = replace(made, user=settings.get("user"), password=settings.get("password"))
        config.set_default(made, client)

    # ------------------------------------------------------------ what is known

    def locked(self) -> bool:
        """Tell whether this object holds the lock, as far as it knows."""
        return self._holding is not None

    @property
    def healthy(self) -> bool:
        """Whether the lock is held and not lost, as far as anyone can know without asking."""
        holding = self._holding
        return holding is not None and holding.loss() is None

    def check_health(self) -> None:
        """Raise `LockLost` if the lock was lost, `LockNotHeld` if it is not held; no request."""
        lost = self._held("check_health()").loss()
        if lost is not None:
            raise copy(lost)

    @property
    def fencing_token(self) -> int:
        """The store's revision at which this holder got the lock; it only ever grows.

        Hand it to storage with every write, and let storage refuse a lower one than it has seen.
        """
        return self._held("fencing_token").acquisition.token

    @property
    def uuid(self) -> str:
        """The id of this acquisition."""
        return self._held("uuid").acquisition.uuid

    @property
    def record(self) -> Holder:
        """What this holder has written into the store, as far as it was confirmed."""
        return self._held("record").acquisition.holder

    @property
    def guard(self) -> Guard:
        """The comparison that holds as long as this holder has the lock.

        Put it into your own transaction on the same etcd: the key `guard.key` has the value
        `guard.value`.
        """
        return self._store().guard(self.name, self._held("guard").acquisition.uuid)

    def __repr__(self) -> str:
        state = "locked" if self.locked() else "unlocked"
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{state} {kind} object {self.name!r} at {id(self):#x}>"

    # ------------------------------------------------------------ inside

    def _limit(self, blocking: bool, timeout: float) -> tuple[bool, Deadline]:
        """Return whether to wait, and until when; the arguments are those of `threading.Lock`."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if not (timeout >= 0 or timeout == -1):  # not a number, too
            raise ValueError("timeout value must be a non-negative number")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        limit: float | None = self._timeout if timeout == -1 else timeout
        blocking = blocking and limit != 0
        return blocking, Deadline.after(limit if blocking else ONE_TRY)

    def _attempt(self, blocking: bool, now: Now) -> Attempt:
        store = self._store()
        holder, ready = self._new_holder(now), store.has_line()
        return Attempt(store, Acquisition(holder, self._runtime, queue=blocking, line_ready=ready))

    def _hold(self, attempt: Attempt) -> None:
        attempt.holding = holding = self._make_holding(attempt.store, attempt.acquisition)
        self._holding = holding
        holding.start()

    def _make_holding(self, store: MutexStore, acquisition: Acquisition) -> Holding:
        return Holding(store, acquisition, self._keepalive, self._on_lost)

    def _abandon(self, attempt: Attempt, tell: Callable[[], object] = lambda: None) -> bool:
        """Leave nothing behind; return whether that takes something, of whose end `tell` tells."""
        if attempt.holding is not None:
            if self._holding is attempt.holding:
                self._holding = None
            attempt.holding.forget()
        acquisition = attempt.acquisition
        withdraw = acquisition.abandon()
        if withdraw is None or not acquisition.leaves_traces():
            return False
        clean_up(attempt.store, withdraw, tell)
        return True

    def _new_holder(self, now: Now) -> Holder:
        pid = os.getpid()
        stamps = self._runtime.stamps(now.wall)
        return Holder(
            self.name,
            str(uuid4()),
            hostname=_hostname,
            pid=pid,
            thread=thread_name(),
            identity=self._identity,
            process=fingerprint(pid) if self._identity is not None else None,
            reason=self._reason,
            locked_at=stamps.alive_at,
            alive_at=stamps.alive_at,
            alert_at=stamps.alert_at,
            auto_unlock_at=stamps.auto_unlock_at,
            backtrace=capture() if self._capture_backtrace else None,
            client=_CLIENT,
        )

    def _store(self) -> MutexStore:
        return self._given_store or config.default_store()

    def _held(self, what: str) -> Holding:
        holding = self._holding
        if holding is None:
            raise self._not_held(what)
        return holding

    def _not_held(self, what: str) -> LockNotHeld:
        return LockNotHeld(
            f"The lock {self.name!r} is not held by this object: {what} needs it to be.",
            name=self.name,
        )

    def _left(self, failure: ClusterMutexError, error: BaseException | None) -> None:
        """Report what the release after a body raised; what the body raised is never hidden.

        Where that is the same loss, or an interrupt, it goes on as it is; else it becomes the cause
        of the loss that is reported.
        """
        if error is None:
            raise failure
        if isinstance(failure, LockNotHeld):  # released inside, or this is a fork's child
            log.debug("Leaving a block of %r, which is not held any more.", self.name)
        elif not isinstance(failure, LockLost):
            log.warning("Releasing %r failed and is tried on: %s", self.name, failure)
        elif isinstance(error, Exception) and not isinstance(error, LockLost):
            raise failure from error

    def _reading(self, patience: float | None = None, *, waiters: bool = False) -> Steps[Seen]:
        """Ask the store for the lock as it stands."""
        limit = Deadline.after(driving.PATIENCE if patience is None else patience)
        seen = yield Ask(Read(self.name, waiters=waiters), limit)
        if not isinstance(seen, Seen):
            raise TypeError(f"the store answered {seen!r} to Read")
        return seen

    def _timed_out(self) -> Steps[LockTimeout]:
        """Return the error that says who has the lock, if that can be had at once."""
        who, holder = "", None
        try:
            seen = yield from self._reading(CLEAN_UP, waiters=True)
            holder = held_by(seen)
            if holder is not None:
                who = f" It is held by {holder.describe()}; in line: {len(seen.waiters)}."
        except ClusterMutexError as error:
            log.debug("Who holds %r could not be asked: %s", self.name, error)
        limit = 0.0 if self._timeout is None else self._timeout
        return LockTimeout(
            f"The lock {self.name!r} could not be had within {limit:g} s.{who}",
            name=self.name,
            holder=holder,
        )


def held_by(seen: Seen) -> Holder | None:
    """Return who holds the lock; a broken one, without a uuid, is held by nobody."""
    return seen.holder if seen.holder is not None and seen.holder.uuid is not None else None


def _require_text(what: str, value: object, shortest: int = 0) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a text, not {value!r}.")
    size = len(value.encode(errors="replace"))
    if not shortest <= size <= 4096:
        raise ValueError(f"{what} must have {shortest} to 4096 bytes in UTF-8; it has {size}.")
    return value.encode(errors="replace").decode()


_hostname = socket.gethostname()
_handles: WeakSet[Handle] = WeakSet()


def _start_afresh() -> None:
    """After fork, in the child: it holds none of its parent's locks."""
    for handle in list(_handles):
        handle._holding = None
        handle._gate = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
