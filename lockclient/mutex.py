"""`ClusterMutex`: a lock that many processes on many hosts share, used like `threading.Lock`."""

from __future__ import annotations

import inspect
import logging
import math
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from copy import copy
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakSet

from lockclient import config
from lockclient.background import clean_up
from lockclient.backtrace import capture
from lockclient.engine import Acquisition, Busy, Held, Step, Wait
from lockclient.errors import (
    ClusterMutexError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    StoreUnavailable,
)
from lockclient.holding import Holding, OnLost
from lockclient.process import fingerprint
from lockclient.record import Holder, Ticket, check_name
from lockclient.settings import made_of
from lockclient.store import Guard, Look, MutexStore, Read, Seen, Target
from lockclient.timing import Deadline, Now, Runtime, require_timeout
from lockclient.version import __version__
from lockclient.waiting import Ear

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

PATIENCE = 10.0
"""Seconds that a call without a timeout of its own waits for a store that does not answer."""
ONE_TRY = 3.0
"""The same for a call that is asked not to wait."""
CLEAN_UP = 1.0
"""Seconds that a failed `acquire` waits for its clean-up, which goes on without it."""

_CLIENT = f"clustermutex/{__version__} python/{'.'.join(map(str, sys.version_info[:3]))}"


class ClusterMutex(ContextDecorator):
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
        _mutexes.add(self)

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
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if not (timeout >= 0 or timeout == -1):  # not a number, too
            raise ValueError("timeout value must be a non-negative number")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        limit: float | None = self._timeout if timeout == -1 else timeout
        if limit == 0:
            blocking = False
        return self._acquire(Deadline.after(limit if blocking else ONE_TRY), blocking)

    def release(self) -> None:
        """Give the lock back.

        Raises:
            LockNotHeld: this object does not hold it.
            LockLost: it was removed, or its time ran out, before it was released.
            StoreUnavailable: the store did not answer; it is tried on in the background.
        """
        holding: Holding | None = None
        try:
            with self._gate:
                holding, self._holding = self._holding, None
            if holding is not None:
                return holding.release(PATIENCE)
        except LockLost:
            raise
        except BaseException:  # no answer, or an interrupt between any two lines here
            if holding is not None:
                holding.abandon(0)
            raise
        raise LockNotHeld(
            f"The lock {self.name!r} can't be released: this object does not hold it.",
            name=self.name,
        )

    def locked(self) -> bool:
        """Tell whether this object holds the lock, as far as it knows."""
        return self._holding is not None

    def __enter__(self) -> ClusterMutex:
        if not self.acquire():
            raise self._timed_out()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except LockLost as lost:
            if error is None:
                raise
            # Never hide what the body raised: the same loss goes on as it is, an interrupt too;
            # everything else becomes the cause of the loss that is reported.
            if isinstance(error, Exception) and not isinstance(error, LockLost):
                raise lost from error
        except ClusterMutexError as failure:
            if error is None:
                raise
            log.warning("Releasing %r failed and is tried on: %s", self.name, failure)

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

    # ------------------------------------------------------------ what is known

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

    def holder(self) -> Holder | None:
        """Ask the store who has the lock now; None: nobody."""
        seen = self._read(waiters=False, deadline=Deadline.after(PATIENCE))
        holder = seen.holder
        return holder if holder is not None and holder.uuid is not None else None

    def waiters(self) -> list[Ticket]:
        """Ask the store who is in line for the lock, the next one first."""
        return list(self._read(waiters=True, deadline=Deadline.after(PATIENCE)).waiters)

    def __repr__(self) -> str:
        state = "locked" if self.locked() else "unlocked"
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{state} {kind} object {self.name!r} at {id(self):#x}>"

    # ------------------------------------------------------------ inside

    def _acquire(self, deadline: Deadline, blocking: bool) -> bool:
        store = self._store()
        now = Now.read()
        acquisition = Acquisition(
            self._new_holder(now), self._runtime, queue=blocking, line_ready=store.has_line()
        )
        holding: Holding | None = None
        try:
            if self._drive(store, acquisition, acquisition.begin(now), deadline):
                holding = Holding(store, acquisition, self._keepalive, self._on_lost)
                self._holding = holding
                holding.start()
                return True
            self._abandon(store, acquisition, CLEAN_UP)
        except BaseException as error:
            # An interrupt may come between any two lines here.
            if self._holding is holding:
                self._holding = None
            if holding is not None:
                holding.forget()
            # A store that does not answer won't answer the clean-up either: don't wait for it.
            self._abandon(
                store, acquisition, 0 if isinstance(error, StoreUnavailable) else CLEAN_UP
            )
            raise
        return False

    def _drive(
        self, store: MutexStore, acquisition: Acquisition, step: Step | None, deadline: Deadline
    ) -> bool:
        """Do what the engine says until the lock is held (True) or not to be had (False)."""
        answered = False
        give_up = Deadline.after(PATIENCE)
        ear: Ear | None = None
        try:
            while step is not None:
                if isinstance(step, Held):
                    return True
                if isinstance(step, Busy):
                    return False
                if isinstance(step, Wait):
                    ear = self._listen(store, step.target, step.revision, ear)
                    event = ear.hear(step, deadline)
                    if event is None and deadline.expired():
                        return False
                    step = acquisition.woken(event, Now.read())
                    continue
                if isinstance(step, Look) and step.left_at is not None:
                    # Likely the head of the line from now on: listen first, then look.
                    ear = self._listen(store, Target(self.name), 0, ear)
                try:
                    # Not longer than a while in one go: the stamps in the request grow old.
                    outcome = store.ask(step, deadline.sooner(PATIENCE))
                except StoreUnavailable as error:
                    acquisition.unanswered(unknown=error.unknown)
                    if answered and deadline.expired():
                        return False  # the caller's time was up: that says nothing about the store
                    # A store that was never there is an error even to who would wait for ever; one
                    # that goes away while we wait is a pause.
                    if deadline.expired() or (
                        not answered and deadline.at == math.inf and give_up.expired()
                    ):
                        raise
                    step = acquisition.again(Now.read())
                    continue
                answered = True
                step = acquisition.answered(outcome, Now.read())
        finally:
            if ear is not None:
                ear.close()
        return False

    def _listen(self, store: MutexStore, target: Target, revision: int, before: Ear | None) -> Ear:
        """Return an ear on the target: the one from before, or else a new one in its place."""
        if before is not None:
            if before.target == target and not before.deaf:
                return before
            before.close()
        ear = Ear(store, target)
        try:
            ear.open(0 if target.ticket is None else revision)
        except BaseException:
            ear.close()
            raise
        return ear

    def _abandon(self, store: MutexStore, acquisition: Acquisition, patience: float) -> None:
        """Leave nothing behind, unless there can be nothing."""
        withdraw = acquisition.abandon()
        if withdraw is not None and acquisition.leaves_traces():
            clean_up(store, withdraw, unsure=acquisition.unsure, patience=patience)

    def _new_holder(self, now: Now) -> Holder:
        pid = os.getpid()
        stamps = self._runtime.stamps(now.wall)
        return Holder(
            self.name,
            str(uuid4()),
            hostname=_hostname,
            pid=pid,
            thread=threading.current_thread().name,
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

    def _read(self, *, waiters: bool, deadline: Deadline) -> Seen:
        seen = self._store().ask(Read(self.name, waiters=waiters), deadline)
        if not isinstance(seen, Seen):
            raise TypeError(f"the store answered {seen!r} to Read")
        return seen

    def _timed_out(self) -> LockTimeout:
        """Return the error that says who has the lock, if that can be had at once."""
        who, holder = "", None
        try:
            seen = self._read(waiters=True, deadline=Deadline.after(CLEAN_UP))
            holder = seen.holder
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


def _require_text(what: str, value: object, shortest: int = 0) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a text, not {value!r}.")
    size = len(value.encode(errors="replace"))
    if not shortest <= size <= 4096:
        raise ValueError(f"{what} must have {shortest} to 4096 bytes in UTF-8; it has {size}.")
    return value.encode(errors="replace").decode()


_hostname = socket.gethostname()
_mutexes: WeakSet[ClusterMutex] = WeakSet()


def _start_afresh() -> None:
    """After fork, in the child: it holds none of its parent's locks."""
    for mutex in list(_mutexes):
        mutex._holding = None
        mutex._gate = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
