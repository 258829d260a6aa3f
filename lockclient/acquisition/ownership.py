"""Ownership: whose acquisition a call on a shared mutex means, without ever guessing.

A `HeldLock` means its own acquisition, whoever calls it. A call on the mutex, which any number of
threads and tasks may share, means the caller's own acquisition; and only where none can be mistaken
for another, what some other thread took by a bare `acquire()`, as `threading.Lock` has it. All else
is refused, from the first call on: an owner that acquired elsewhere (`wait_for`, `to_thread`, a
callback) would otherwise be told of the health of the next holder, get its fencing token, and give
its lock away.

Whose call it is, the context tells (`contextvars`), which tasks and `to_thread` hand on: who
inherits an acquisition may ask and push it, not release it.

Nothing here takes a lock, for a signal's handler and a finalizer may come in at any line: what
threads share are dictionaries, of whose operations each is one step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar
from weakref import ref

from lockclient.acquisition.held_lock import BaseHeldLock
from lockclient.acquisition.holding import Holding, own
from lockclient.errors import LockNotHeld
from lockclient.stores.protocol import MutexStore
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

MAX_LOST = 16
"""Lost and unreleased acquisitions that a mutex remembers. Beyond that it forgets the oldest, and
refuses from then on each call whose caller has none of its own: it may be that one's."""

Held = TypeVar("Held", bound=BaseHeldLock)


class Scope:
    """A context in which locks were taken: a thread's, or a task's.

    Attributes:
        owner: whose context this is: the thread's number, or a weak reference to the task. A
            context that was copied still has the scope, and another owner: it inherits.
        outer: the scope that was inherited when this one was made.
        taken: by its uuid what was taken here and is not released. In asyncio with the held lock,
            which lives as long as somebody refers to it, or both this context and the mutex do.
        told: while `on_lost` runs, what was lost.
    """

    __slots__ = ("__weakref__", "outer", "owner", "taken", "told")

    def __init__(self, owner: object, outer: Scope | None) -> None:
        self.owner = owner
        self.outer: Scope | None = outer
        self.taken: dict[str, Any] = {}
        self.told: Holding | None = None
        # A chain of tasks that start each other must not grow for ever.
        scope: Scope | None = self
        while scope is not None:
            around = scope.outer
            while around is not None and not around.taken and around.told is None:
                around = around.outer
            scope.outer = around
            scope = around


current_scope: ContextVar[Scope | None] = ContextVar("clustermutex_scope", default=None)


def current_owner() -> object:
    """Return who calls, as `Scope.owner`: the running task, or else the thread."""
    module = sys.modules.get("_asyncio")
    if module is not None and module._get_running_loop() is not None:
        task = sys.modules["asyncio"].current_task()
        if task is not None:
            return ref(task)
    return get_ident()


def enter_scope() -> Scope:
    """Return the caller's own scope, made where the context has none or has inherited one."""
    module = sys.modules.get("_asyncio")  # as `current_owner`, without its call
    no_loop = module is None or module._get_running_loop() is None
    owner = get_ident() if no_loop else current_owner()
    scope = current_scope.get()
    if scope is None or scope.owner != owner or scope.told is not None:
        scope = Scope(owner, scope)
        current_scope.set(scope)
    return scope


def block_around(store: MutexStore, name: str) -> Holding | None:
    """Return the lock of this name that the caller's own block holds: it is on its stack.

    Who waits for it inside waits for itself, unless somebody else releases it. A thread that took
    it elsewhere, and does other work now, as those of a pool do, waits for nothing of its own.
    """
    scope, frames = current_scope.get(), None
    while scope is not None:
        for uuid in list(scope.taken):
            holding = own.get(uuid)
            if holding is None or holding.store is not store or holding.acquisition.name != name:
                continue
            frames = frames or _own_frames()
            if holding.entered_in in frames:
                return holding
        scope = scope.outer
    return None


def _own_frames() -> set[tuple[int, CodeType] | None]:
    frames: set[tuple[int, CodeType] | None] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.add((id(frame), frame.f_code))
        frame = frame.f_back
    return frames


def call_back(holding: Holding, call: Callable[[], object]) -> Callable[[], object]:
    """Return `call` for a context in which calls on the mutex mean what was lost, and end nothing.

    Another acquisition that is made in there is the callback's own.
    """
    context = copy_context()
    scope = Scope(None, None)
    scope.told = holding
    context.run(current_scope.set, scope)
    return partial(context.run, call)


class Acquisitions(Generic[Held]):
    """What was acquired by one mutex object and is not released.

    Args:
        name: of the lock.
        weakly: as in asyncio: the acquiring context keeps it alive, and the mutex does not: a task
            that ended must not leave a lock that nobody can release and that is pushed for ever.
            Then nobody but the owner may call it by the mutex, either.
    """

    __slots__ = ("__weakref__", "_forgotten", "_name", "_weakly", "taken")

    def __init__(self, name: str, *, weakly: bool = False) -> None:
        self._name = name
        self._weakly = weakly
        self._forgotten = False
        self.taken: dict[str, tuple[Holding, Held | None]] = {}

    def unreleased(self) -> list[Holding]:
        """Return what is not released, the oldest first."""
        # Not by the weak reference where there is a strong one: for a finalizer that releases what
        # it was given, the garbage collector has cleared it already.
        return [
            holding
            for holding, held in list(self.taken.values())
            if not holding.ended and not (held is None and holding.is_dropped)
        ]

    def add(self, held: Held, holding: Holding, scope: Scope) -> None:
        """Take note of an acquisition that has just succeeded.

        What this object had had before that one was granted, is lost, whoever has heard of it: two
        holders there are not. Granted after the request was sent, and had when its answer was here:
        so of two that overlap, neither is called lost by the other. Only success retires what the
        caller itself had: an owner that tries in vain is still told of its loss.
        """
        if self.taken:
            self._retire(holding, scope)
        uuid = holding.acquisition.uuid
        holding.noted_in = (ref(self), ref(scope))
        if self._weakly:
            self.taken[uuid] = (holding, None)
            # As the mutex dies it is called with the dead reference: that is `pop(uuid, default)`,
            # one step, in C.
            scope.taken[uuid] = (ref(self, partial(scope.taken.pop, uuid)), held)
        else:
            self.taken[uuid] = (holding, held)
            scope.taken[uuid] = None
        if "end" not in holding.still_to:  # given up in the meantime, when it was not noted yet
            holding.forget_owner()

    def _retire(self, later: Holding, scope: Scope) -> None:
        lost: list[Holding] = []
        for earlier in self.unreleased():
            earlier.yield_to(later)
            if earlier.loss() is None:
                continue
            if earlier.acquisition.uuid in scope.taken:
                earlier.forget_owner()
            else:
                lost.append(earlier)
        for oldest in lost[:-MAX_LOST]:
            self._forgotten = True
            oldest.forget_owner()

    # ------------------------------------------------------------ whom a call on the mutex means

    def meant(self, what: str, owner: object) -> Held:
        """Return the acquisition that a call on the mutex means.

        Args:
            what: the call, for the error.
            owner: who calls, as `Scope.owner`.

        Raises:
            LockNotHeld: nothing is held, or it can't be known whose is meant.
        """
        holding, _ = self._of_caller(owner)
        return self._held(holding or self._lost_in_callback() or self._only_one(what), what)

    def meant_by_release(self, owner: object) -> Held:
        """Return what `release()` on the mutex means.

        Raises:
            LockNotHeld: nothing is held, or it can't be known whose is meant.
            LockLost: this is `on_lost` that calls: there is nothing to be released.
        """
        holding, is_own = self._of_caller(owner)
        if holding is None and (told := self._lost_in_callback()) is not None:
            told.check()
        if holding is None or not is_own:
            holding = self._only_one("release()", inherited=holding is not None)
        return self._held(holding, "release()")

    def locked(self, owner: object) -> bool:
        """Tell whether the lock is held, and not lost, by who is meant or by the only one there is.

        That is said of the object. Among several one might be the lost one of who asks.

        Raises:
            LockNotHeld: there are several, and none is the caller's.
        """
        holding = self._of_caller(owner)[0] or self._lost_in_callback()
        if holding is None:
            unreleased = self.unreleased()
            if len(unreleased) > 1 or self._forgotten:
                raise self._refusal("locked()", unreleased)
            if not unreleased:
                return False
            holding = unreleased[0]
        return holding.healthy

    def left(self, owner: object) -> Held | None:
        """Return whose block ends where Python tells only the object; None: nobody's.

        The caller's own block; or the only one that was entered by hand: a statement has its own
        exit.

        Raises:
            LockNotHeld: several are open, and which of them ends can't be known.
        """
        holding, is_own = self._of_caller(owner)
        if holding is None or not is_own or holding.block is None:
            blocks = [holding for holding in self.unreleased() if holding.block == "hand"]
            if not blocks:
                return None
            if len(blocks) > 1 or self._forgotten:
                raise self._refusal("release()", blocks)
            holding = blocks[0]
        return self._held(holding, "release()")

    def _of_caller(self, owner: object) -> tuple[Holding | None, bool]:
        """Return the caller's own acquisition, or what it inherited; and whether it is its own."""
        scope = current_scope.get()
        if scope is not None and (unreleased := self.unreleased()):
            around: Scope | None = scope
            while around is not None:
                for holding in reversed(unreleased):
                    if holding.acquisition.uuid in around.taken:
                        return holding, around is scope and scope.owner == owner
                around = around.outer
        return None, False

    def _lost_in_callback(self) -> Holding | None:
        """Return what `on_lost` was called about, if it is in there that the caller is."""
        scope = current_scope.get()
        while scope is not None:
            told = scope.told
            if told is not None and any(noted_in() is self for noted_in in told.noted_in):
                return told
            scope = scope.outer
        return None

    def _only_one(self, what: str, *, inherited: bool = False) -> Holding:
        """Return the only one that can be meant by who has none of its own."""
        unreleased = self.unreleased()
        if not unreleased and not self._forgotten:
            raise self._nothing_held(what)
        alone = len(unreleased) == 1 and not self._forgotten and not self._weakly
        if alone and unreleased[0].block is None:
            return unreleased[0]
        raise self._refusal(what, unreleased, inherited=inherited)

    def _held(self, holding: Holding, what: str) -> Held:
        _, held = self.taken.get(holding.acquisition.uuid, (holding, None))
        if held is None and holding.handle is not None:
            held = holding.handle()
        if held is None:  # released, or dropped, in this very moment
            raise self._nothing_held(what)
        return held

    def _nothing_held(self, what: str) -> LockNotHeld:
        return LockNotHeld(
            f"The lock {self._name!r} is not held by this object: {what} needs it to be.",
            name=self._name,
        )

    def _refusal(self, what: str, meant: list[Holding], *, inherited: bool = False) -> LockNotHeld:
        """Return the error of a call that may mean any of these, or none.

        Whoever believes to have released it releases it no more: so none of them is pushed in the
        background from then on, and alert and auto-unlock take their course. But what a statement
        took, its own exit releases.
        """
        why = (
            "was taken by the task that started the caller, which may not release it"
            if inherited
            else "was not taken by the caller, and who shares an object must say which "
            "acquisition is meant"
        )
        refusal = LockNotHeld(
            f"The lock {self._name!r} {why}: call {what} on the `held` that `with … as held` or "
            "`held = ….acquire()` gave.",
            name=self._name,
        )
        log.warning(
            "%s", refusal, extra=naming(refusal)
        )  # a pool of threads would hide it in a future
        if what == "release()":
            for holding in meant:
                if holding.block != "statement":
                    holding.stop_pushing()
        return refusal
