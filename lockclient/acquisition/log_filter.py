"""Log filter: names the lock inside which the program's own records are logged."""

from __future__ import annotations

import logging
import socket
from contextvars import ContextVar

from lockclient.acquisition.holding import Holding, own
from lockclient.acquisition.ownership import current_owner

_HOSTNAME = socket.gethostname()


class HeldLockFilter(logging.Filter):
    """Gives each record `lock`, `uuid` and `hostname`: of the lock that the caller's context holds.

        handler.addFilter(HeldLockFilter())

    Of several it is the one that was acquired last. Where none is held, `lock` and `uuid` are None.
    This library's own records name the lock that they are about, with or without this.
    """

    def __init__(self) -> None:
        super().__init__()

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if getattr(record, "lock", None) is None:
            vars(record).update(held_lock_fields())
        return True


def held_lock_fields() -> dict[str, str | None]:
    """Return `lock`, `uuid` and `hostname` for other ways to log, as a dictionary.

    Of the lock that was acquired last of those that the caller's context holds: a task, and what it
    calls, starts or hands to `asyncio.to_thread`. Where there is none, `lock` and `uuid` are None.
    """
    held = _innermost()
    name, uuid = (None, None) if held is None else (held.acquisition.name, held.acquisition.uuid)
    return {"lock": name, "uuid": uuid, "hostname": _HOSTNAME}


class TakenHere:
    """The locks that a context has acquired, a thread's or a task's, as their uuids.

    A context that is copied (a new task, `asyncio.to_thread`) has its parent's. When it acquires a
    lock itself, it gets a list of its own, which begins as a copy of its parent's.
    """

    __slots__ = ("owner", "uuids")

    def __init__(self, owner: object, uuids: list[str]) -> None:
        self.owner = owner
        self.uuids = uuids

    def held(self) -> list[str]:
        """Return those that are held, the newest last."""
        found = ((uuid, own.get(uuid)) for uuid in self.uuids)
        return [uuid for uuid, held in found if held is not None and not held.is_dropped]


def taken_here() -> TakenHere:
    """Return the list of the calling context."""
    owner, here = current_owner(), _taken_here.get()
    uuids = [] if here is None else list(filter(own.__contains__, here.uuids))
    if here is None or here.owner != owner:
        here = TakenHere(owner, uuids)
        _taken_here.set(here)
    here.uuids = uuids
    return here


_taken_here: ContextVar[TakenHere | None] = ContextVar("clustermutex_taken_here", default=None)


def _innermost() -> Holding | None:
    here = _taken_here.get()
    held = here.held() if here is not None else []
    return own.get(held[-1]) if held else None
