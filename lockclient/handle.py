"""What the mutexes of threads and of asyncio have in common: all that needs no waiting."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn
from uuid import uuid4

from lockclient import config, driving
from lockclient.backtrace import capture
from lockclient.driving import Ask, Inbox, Steps
from lockclient.engine import Acquired, Acquisition, UsedUp
from lockclient.errors import ClusterMutexError, LockLost, LockNotHeld, LockTimeout
from lockclient.holding import Holding, OnLost, held_here
from lockclient.process import fingerprint, thread_name
from lockclient.record import Holder, check_name
from lockclient.settings import made_of
from lockclient.store import Guard, MutexStore, Read, Seen, Sending, Withdraw
from lockclient.timers import the_timers
from lockclient.timing import Deadline, Now, Runtime, require_timeout
from lockclient.version import __version__
from lockclient.waiting import GivenUp, Pursuit

log = logging.getLogger(__name__)

CLEAN_UP = 1.0
"""Seconds that an `acquire` that was too late waits for its clean-up, which goes on without it."""

_CLIENT = f"clustermutex/{__version__} python/{'.'.join(map(str, sys.version_info[:3]))}"

PROMPT = 0.3
"""Seconds that a request whose caller has gone may take before it counts as lost."""

MakeHolding = Callable[[MutexStore, Acquisition], Holding]


class Attempt:
    """One call of `acquire`: it comes to a `holding`, or leaves nothing.

    Args:
        store: where the lock lives.
        acquisition: its engine.
        make_holding: makes what holds the lock once it is had.
    """

    def __init__(
        self, store: MutexStore, acquisition: Acquisition, make_holding: MakeHolding
    ) -> None:
        self.store = store
        self.holding: Holding | None = None
        self._acquisition = acquisition
        self._make_holding = make_holding
        self._pursuit: Pursuit | None = None
        self._given_up = False
        self._over = False

    def steps(self, now: Now, deadline: Deadline, inbox: Callable[[], Inbox]) -> Steps[bool]:
        """Go for the lock; return whether it is held. Errors: see `Pursuit`."""
        left = True  # an error, a cancellation, or nobody waits any more
        try:
            while True:
                acquisition = self._acquisition
                self._pursuit = Pursuit(self.store, acquisition, inbox)
                if self._given_up:
                    raise GivenUp
                step = yield from self._pursuit.steps(acquisition.begin(now), deadline)
                if isinstance(step, Acquired):
                    self.holding = self._make_holding(self.store, acquisition)
                    self.holding.start()
                    left = False
                    return True
                withdraw = acquisition.abandon()
                if withdraw is not None:
                    yield from self._withdrawing(withdraw)
                if not isinstance(step, UsedUp):
                    left = False
                    return False
                self._acquisition, now = acquisition.anew(str(uuid4())), Now.read()
        finally:
            # First the end, then whether it was wanted: `let_go` does it the other way round.
            self._over = True
            if left or self._given_up:
                self._leave_nothing()

    def _withdrawing(self, withdraw: Withdraw) -> Steps[None]:
        try:
            yield Ask(Sending(withdraw), Deadline.after(CLEAN_UP))
        except ClusterMutexError as error:
            log.debug("Withdrawing from %r goes on in the background: %s", withdraw.name, error)
            self.store.background.clean_up(withdraw)

    def let_go(self) -> None:
        """Leave nothing: nobody waits any more for what another thread may still do."""
        self._given_up = True
        if self._pursuit is not None:
            self._pursuit.give_up()
        if not self._over:
            # Most likely it is answered in a moment, and then nothing can arrive late any more.
            the_timers().after(PROMPT, self._if_not_over)
        elif self.holding is not None:
            self._leave_nothing()

    def _if_not_over(self) -> None:
        """Leave nothing of what is known now; at the end, what came of the rest is seen to."""
        if not self._over:
            self._leave_nothing()

    def _leave_nothing(self) -> None:
        if self.holding is not None:
            self.holding.let_go()
        elif (withdraw := self._acquisition.abandon()) is not None:
            self.store.background.clean_up(withdraw)


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
        limit: float | None = self._timeout if timeout == -1 else timeout
        blocking = blocking and limit != 0
        return blocking, Deadline.after(limit if blocking else 0)

    def _attempt(self, blocking: bool, now: Now, waiters: Hashable = None) -> Attempt:
        store = self._store()
        store.background.ready()
        acquisition = Acquisition(
            self._new_holder(now),
            self._runtime,
            queue=blocking,
            lease_ready=store.has_ticket_lease(waiters),
            own=held_here(),
        )
        return Attempt(store, acquisition, self._make_holding)

    def _make_holding(self, store: MutexStore, acquisition: Acquisition) -> Holding:
        return Holding(store, acquisition, self._keepalive, self._on_lost)

    def _adopt(self, holding: Holding | None) -> None:
        """Take note that the caller has the lock."""
        assert holding is not None
        mine = {each: held for each, held in _mine.get().items() if not held.ended}
        _mine.set({**mine, self: holding})
        self._holding = holding

    def _current(self) -> Holding | None:
        """Return what the caller took, if it did, else what this object has at the moment.

        So a thread (a task) that lost the lock is told so, even if another one has got it by the
        same object meanwhile; and any thread may push and release, as with `threading.Lock`.
        """
        return self._own() or (None if (it := self._holding) is None or it.ended else it)

    def _own(self) -> Holding | None:
        """Return what the caller itself took by this object and still has."""
        mine = _mine.get().get(self)
        return None if mine is None or mine.ended else mine

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

    def _reading(self, patience: float | None = None, *, waiters: bool = False) -> Steps[Seen]:
        """Ask the store for the lock as it stands."""
        limit = Deadline.after(driving.PATIENCE if patience is None else patience)
        seen = yield Ask(Sending(Read(self.name, waiters=waiters)), limit)
        if not isinstance(seen, Seen):
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
        return LockTimeout.after(limit, self.name, held_by(seen), len(seen.waiters))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} can't be copied or pickled, for its lock is had once: make "
            f"another one by its name, {self.name!r}."
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
_mine: ContextVar[Mapping[Handle, Holding]] = ContextVar(
    "clustermutex_mine", default=MappingProxyType({})
)
"""What the running thread, or task and those that it started, took by which object.

Replaced and never changed, because tasks share what they inherit; without what has ended.
"""
