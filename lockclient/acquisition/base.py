"""What the mutexes of threads and of asyncio have in common: all that needs no waiting."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn
from uuid import uuid4

from lockclient import default_store
from lockclient.acquisition.attempt import CLEAN_UP, Attempt
from lockclient.acquisition.holding import Holding, OnLost, own
from lockclient.acquisition.state_machine import Acquisition
from lockclient.acquisition.steps import Steps
from lockclient.errors import ClusterMutexError, LockLost, LockNotHeld, LockTimeout
from lockclient.model.backtrace import capture
from lockclient.model.clocks import (
    AUTO,
    AutoUnlockAfter,
    Deadline,
    Now,
    Runtime,
    monotonic,
    require_timeout,
)
from lockclient.model.fields import size_of
from lockclient.model.holder import NO_PROBLEMS, Holder
from lockclient.model.lock_name import check_name
from lockclient.model.process_identity import fingerprint, this_thread
from lockclient.settings import made_of
from lockclient.stores import protocol
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.protocol import Guard, Inbox, MutexStore
from lockclient.stores.requests import Read, RequestState
from lockclient.version import __version__

log = logging.getLogger(__name__)

_CLIENT = f"clustermutex/{__version__} python/{'.'.join(map(str, sys.version_info[:3]))}"


class Handle:
    """A lock's name, how it is to be held, and what this process knows of it."""

    _holding_type: type[Holding] = Holding
    _caller = staticmethod(this_thread)

    def __init__(
        self,
        name: str,
        *,
        timeout: float | None = None,
        expected_runtime: float = 300.0,
        auto_unlock_after: AutoUnlockAfter = AUTO,
        reason: str = "",
        identity: str | None = None,
        keepalive: bool = False,
        on_lost: OnLost | None = None,
        capture_backtrace: bool = True,
        store: MutexStore | None = None,
    ) -> None:
        self.name = check_name(name)
        self._runtime = Runtime.of(expected_runtime, auto_unlock_after)
        self._timeout = require_timeout("timeout", timeout)
        self._reason = _require_text("reason", reason)
        self._identity = None if identity is None else _require_text("identity", identity, 1)
        self._keepalive = expected_runtime / 8 if keepalive else None
        if on_lost is not None and not callable(on_lost):
            raise ValueError(f"on_lost must be callable, not {on_lost!r}.")
        self._capture_backtrace = capture_backtrace
        if store is not None and not hasattr(store, "ask"):
            raise ValueError(f"store must be what open_store() returns, not {store!r}.")
        if store is None:
            default_store.prepare()
        self._given_store = store
        self._holding: Holding | None = None
        # What makes the holding of an acquisition that has the lock.
        self._holding_of = partial(self._holding_type, keepalive=self._keepalive, on_lost=on_lost)

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
            url: like `etcd://host1:2379,host2:2379/clustermutex`, `gs://bucket/prefix` or
                `valkey://host1,host2,host3/prefix`.
            endpoints: like `["host1:2379", "host2:2379"]`, `https://` in front for TLS.
            client: an `etcd3` client that you have already: its connection is used, with its TLS
                and its token. `etcd3` never renews that; with `user` and `password` it is renewed.
            settings: fields of `lockclient.Settings`: root, cacert, cert, key, user, password, …;
                all of them are for etcd.

        What is not said comes from the environment (`CLUSTERMUTEX_URL`, `ETCDCTL_*`).

        Raises:
            ValueError: a value is malformed, or a setting is unknown.
        """
        if client is not None and (url is not None or endpoints is not None):
            raise ValueError("Give the client, or where the members are, not both.")
        made = made_of(url, endpoints, settings, with_client=client is not None)
        default_store.set_default(made, client)

    # ------------------------------------------------------------ what is known

    def locked(self) -> bool:
        """Tell whether this object holds the lock, as far as it knows."""
        return self._current() is not None

    @property
    def healthy(self) -> bool:
        """Whether the lock is held and not lost, as far as anyone can know without asking."""
        holding = self._current()
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

        Raises:
            StoreError: the store has no number that only grows.
        """
        self._store().can.require(
            "fencing",
            "has no number that only grows, so that it can't tell an earlier holder from a later "
            "one: fence by the lock's uuid, or by storage's own conditions, or use etcd.",
        )
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

        Raises:
            StoreError: the store has no transactions.
        """
        self._store().can.require(
            "guard",
            "has no transactions over several objects, so that none of yours can be bound to a "
            "lock: check_health() before each write is what there is, or use etcd.",
        )
        holding = self._held("guard")
        return holding.store.guard(self.name, holding.acquisition.uuid)

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
        limit = self._timeout if timeout == -1 else timeout
        if not blocking or limit == 0:
            return False, Deadline(monotonic())
        return True, Deadline(math.inf if limit is None else monotonic() + limit)

    def _attempt(
        self,
        blocking: bool,
        now: Now,
        inbox: Callable[[], Inbox],
        waiters: Hashable = None,
    ) -> Attempt:
        store = self._given_store or default_store.default_store()
        acquisition = Acquisition(
            self._new_holder(now),
            self._runtime,
            queue=blocking,
            lease_ready=store.has_ticket_lease(waiters),
            own=own,
            line=store.can.queue,
        )
        return Attempt(store, acquisition, inbox, self._holding_of)

    def _adopt(self, holding: Holding | None) -> None:
        """Take note that the caller has the lock."""
        assert holding is not None
        others = _mine.get().items()
        mine = {other: held for other, held in others if other is not self and not held.ended}
        _mine.set({**mine, self: holding})
        self._holding = holding

    def _current(self) -> Holding | None:
        """Return what the caller took, if it did, else what this object has at the moment.

        So a thread (a task) that lost the lock is told so, even if another one has got it by the
        same object meanwhile; and any thread may push and release, as with `threading.Lock`.
        """
        for found in (_mine.get().get(self), self._holding):
            if found is not None and not found.ended:
                return found
        return None

    def _own(self) -> Holding | None:
        """Return what the caller itself took by this object and still has."""
        mine = _mine.get().get(self)
        return None if mine is None or mine.ended else mine

    def _new_holder(self, now: Now) -> Holder:
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
            reason=self._reason,
            locked_at=round(now.wall, 3),
            alert_at=stamps.alert_at,
            auto_unlock_at=stamps.auto_unlock_at,
            expected_runtime=runtime.expected,
            auto_unlock_after=runtime.auto_unlock,
            backtrace=capture() if self._capture_backtrace else None,
            client=_CLIENT,
            problems=NO_PROBLEMS,
        )

    def _store(self) -> MutexStore:
        return self._given_store or default_store.default_store()

    def _held(self, what: str) -> Holding:
        holding = self._current()
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

    def _reading(
        self, patience: float | None = None, *, waiters: bool = False
    ) -> Steps[ReadResult]:
        """Ask the store for the lock as it stands."""
        limit = Deadline.after(protocol.STORE_TIMEOUT_S if patience is None else patience)
        seen = yield RequestState(Read(self.name, waiters=waiters)), limit
        if not isinstance(seen, ReadResult):
            raise TypeError(f"the store answered {seen!r} to Read")
        return seen

    def _timed_out(self) -> Steps[LockTimeout]:
        """Return the error that says who has the lock, if that can be had at once."""
        limit, seen = self._timeout or 0.0, None
        try:
            seen = yield from self._reading(CLEAN_UP, waiters=True)
        except ClusterMutexError as error:
            log.debug("Who holds %r could not be asked: %s", self.name, error)
        if seen is None:
            return LockTimeout.after(limit, self.name)
        waiting = len(seen.waiters) if self._store().can.queue else None
        return LockTimeout.after(limit, self.name, held_by(seen), waiting)

    def _need_line(self) -> None:
        self._store().can.require(
            "queue",
            "keeps no line: those that wait for a lock look from time to time whether it is free, "
            "and nobody knows of them.",
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} can't be copied or pickled, for its lock is had once: make "
            f"another one by its name, {self.name!r}."
        )


def held_by(seen: ReadResult) -> Holder | None:
    """Return who holds the lock; a broken one, without a uuid, is held by nobody."""
    return seen.holder if seen.holder is not None and seen.holder.uuid is not None else None


def _require_text(what: str, value: object, shortest: int = 0) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a text, not {value!r}.")
    text = value.encode(errors="replace").decode()
    if not shortest <= (size := size_of(text)) <= 4096:
        raise ValueError(f"{what} must have {shortest} to 4096 bytes in JSON; it has {size}.")
    return text


_hostname = socket.gethostname()
_mine: ContextVar[Mapping[Handle, Holding]] = ContextVar(
    "clustermutex_mine", default=MappingProxyType({})
)
"""What the running thread, or task and those that it started, took by which object.

Replaced and never changed, because tasks share what they inherit; without what has ended.
"""
