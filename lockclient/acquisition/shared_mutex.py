"""Ownership: which thread or task calls, and which acquisition its call on a mutex object means.

A call on a `HeldLock` means that acquisition. Threads and tasks may share a mutex object, so a call
on it means the caller's own newest unreleased acquisition; else the object's only unreleased one;
else it raises `LockNotHeld`. The caller is the running task, or else the thread.

Nothing here takes a lock, because a signal handler or a finalizer may call in at any line. Threads
share one dictionary, and each operation on it is atomic.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from lockclient.acquisition.heartbeat_and_loss import Holding, held_by_process
from lockclient.acquisition.held_lock import BaseHeldLock
from lockclient.errors import LockNotHeld
from lockclient.model.process_identity import MAX_NAME_CHARS, process_token
from lockclient.threads.reentrancy import run_outside

MAX_LOST = 16
"""Lost and unreleased acquisitions that a mutex remembers; it forgets the oldest beyond that."""

Held = TypeVar("Held", bound=BaseHeldLock)

CallerLocks = tuple[object, list[str]]
"""A caller, and the uuids of the locks that its context has acquired, the newest last."""

_thread = threading.local()
_numbers = count(1)
"""Numbers of threads and tasks, never reused; a fork's child continues the count."""
_task_numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()
_caller_locks: ContextVar[CallerLocks] = ContextVar("clustermutex_caller_locks", default=(None, []))


def this_thread() -> tuple[str, str]:
    """Return the calling thread's name and actor, the id that the store shows.

    The system reuses the ids of ended threads, so an actor also has a number that this process
    never reuses. `threading.current_thread()` would add an entry for each thread that Python did
    not start.
    """
    thread: threading.Thread | None = getattr(_thread, "thread", None) or _find_thread()
    ident = threading.get_ident()
    number = getattr(_thread, "number", None)
    if number is None:
        number = _thread.number = next(_numbers)
    name = f"{ident}" if thread is None else thread.name
    shown = name.encode(errors="replace").decode()[:MAX_NAME_CHARS]
    return shown, f"{process_token()}.{ident:x}.{number}"


def task_actor(task: object) -> str:
    """Return a task's actor, with a number, as an ended task's address is reused."""
    number = _task_numbers.get(task)
    if number is None:
        number = _task_numbers[task] = next(_numbers)
    return f"{process_token()}.{id(task):x}.t{number}"


def _find_thread() -> threading.Thread | None:
    ident = threading.get_ident()
    main = threading.main_thread()
    # `enumerate` takes a lock, so a signal handler in the main thread must not call it.
    found = [main] if ident == main.ident else threading.enumerate()
    _thread.thread = next((thread for thread in found if thread.ident == ident), None)
    return _thread.thread  # type: ignore[no-any-return]


def current_owner() -> object:
    """Return the caller: a weak reference to the running task, or else an object of the thread.

    (Not the thread's number, which a later thread may get.)
    """
    module = sys.modules.get("_asyncio")
    if module is not None and module._get_running_loop() is not None:
        task = sys.modules["asyncio"].current_task()
        if task is not None:
            return ref(task)
    return vars(_thread).setdefault("owner", object())


def caller_locks() -> CallerLocks:
    """Return the caller's locks that this process still holds, and forget the others.

    A copied context (a new task, `asyncio.to_thread`) begins with a copy of its parent's list.
    """
    owner, (former, uuids) = current_owner(), _caller_locks.get()
    held = list(filter(held_by_process.__contains__, uuids))
    if former == owner:
        uuids[:] = held
    else:
        uuids = held
        _caller_locks.set((owner, uuids))
    return owner, uuids


def newest_held() -> Holding | None:
    """Return the newest lock that the caller's context has acquired and holds."""
    for uuid in reversed(_caller_locks.get()[1]):
        holding = held_by_process.get(uuid)
        if holding is not None and not holding.is_inherited and not holding.is_collected:
            return holding
    return None


class Acquisitions(Generic[Held]):
    """The unreleased acquisitions of one mutex object.

    The mutex keeps a thread's acquisition alive, and a task's until the task ends. From then on it
    refers to it weakly, because an ended task can't release it: the program has to keep it alive.
    """

    __slots__ = ("__weakref__", "_name", "_taken")

    def __init__(self, name: str) -> None:
        self._name = name
        # By uuid: the owner, its acquisition, and a dict that keeps that alive, or is empty.
        self._taken: dict[str, tuple[object, ref[Held], dict[str, Held]]] = {}

    def unreleased(self) -> list[tuple[object, Held]]:
        """Return the owners and acquisitions, the oldest first."""
        remembered = [(owner, held) for _, owner, held in self._remembered() if held]
        return [taken for taken in remembered if not taken[1]._holding.ended]

    def _remembered(self) -> list[tuple[str, object, Held | None]]:
        # First the strong one: the collector clears weak references before it calls finalizers.
        taken = list(self._taken.items())
        return [(uuid, owner, kept.get(uuid) or weak()) for uuid, (owner, weak, kept) in taken]

    def add(self, held: Held, owner: object) -> None:
        """Add an acquisition that has just succeeded.

        This forgets the owner's earlier lost acquisitions. It keeps those of other owners, so that
        a call by each of them still raises `LockLost`.
        """
        lost = []
        for uuid, (earlier_owner, weak, kept) in list(self._taken.items()):
            earlier = kept.get(uuid) or weak()
            if earlier is None or "release" not in earlier._holding.one_time:  # released
                self._taken.pop(uuid, None)
            elif not earlier.healthy:
                if earlier_owner == owner:
                    self._taken.pop(uuid, None)
                else:
                    lost.append(uuid)
        for uuid in lost[:-MAX_LOST]:
            self._taken.pop(uuid, None)
        uuid, held._mutex = held._acquisition.uuid, ref(self)
        kept = {uuid: held}
        if isinstance(owner, ref):
            task = owner()
            if task is None:  # the task that called `acquire()` has ended
                kept.clear()
            else:
                # The collected ref becomes `pop`'s default; one call in C, so it is atomic. From
                # then on it equals only itself, so no later task passes for the ended one.
                owner = ref(task, partial(kept.pop, uuid))
        self._taken[uuid] = owner, ref(held), kept

    def find(self) -> Held | None:
        """Return the acquisition that a call by this caller means; None: none or several."""
        owner, unreleased = current_owner(), self.unreleased()
        for its_owner, held in reversed(unreleased):
            if its_owner == owner:
                return held
        lost = _lost.get()()
        if lost is not None and lost._mutex() is self:  # even if `add` has forgotten it
            return lost  # type: ignore[no-any-return]
        return unreleased[0][1] if len(unreleased) == 1 else None

    def require_own(self, call: str) -> Held:
        """Return the acquisition that a call by this caller means, or raise `LockNotHeld`."""
        held = self.find()
        if held is None:
            raise self._refusal(call)
        return held

    def manual_block(self) -> Held | None:
        """Return the acquisition that a manual `__exit__` closes; None: it was released.

        (The exit of a `with` statement has its own, see `with_statement`.)

        Raises:
            LockNotHeld: several manual blocks are open, and none is the caller's own.
        """
        blocks = [taken for taken in self.unreleased() if taken[1]._block == "manual"]
        owner = current_owner()
        for its_owner, held in reversed(blocks):
            if its_owner == owner:
                return held
        if len(blocks) > 1:
            raise self._refusal("__exit__()")
        return blocks[0][1] if blocks else None

    def _refusal(self, call: str) -> LockNotHeld:
        for _, _, held in self._remembered():
            if held and held._holding.is_inherited:
                return held._not_held(call)
        if not self.unreleased():
            text = f"The lock {self._name!r} is not held by this object: {call} needs it to be."
        else:
            text = (
                f"Several acquisitions of the lock {self._name!r} by this object are unreleased, "
                f"and none is the caller's own: call {call} on the HeldLock that `with … as held` "
                "or `held = ….acquire()` gave."
            )
        return LockNotHeld(text, name=self._name)


# Weak, because the tasks that `on_lost` starts inherit it, and may run on for long.
_lost: ContextVar[Any] = ContextVar("clustermutex_lost", default=lambda: None)


def for_on_lost(held: BaseHeldLock, call: Callable[[], object]) -> Callable[[], Any]:
    """Return `call`, wrapped: while it runs, calls on the mutex mean this lost acquisition.

    So they can't mean the next holder's. An error is logged with the lock's name, and raised.
    """

    def logged() -> None:
        try:
            call()
        except Exception:
            held._log_failed_call()
            raise

    context = copy_context()
    context.run(_lost.set, ref(held))
    return partial(context.run, run_outside, logged)
