"""The caller: the actor that the store shows for a thread or task, and the owner of what it takes.

Nothing here takes a lock, because a signal handler or a finalizer may call in at any line.
"""

from __future__ import annotations

import sys
import threading
from itertools import count
from weakref import WeakKeyDictionary, ref

from lockclient.model.process_identity import MAX_NAME_CHARS, process_token

_thread = threading.local()
_numbers = count(1)
"""Numbers of threads and tasks, never reused; a fork's child continues the count."""
_task_numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()


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
