"""Log filter: names the lock inside which the program's own records are logged."""

from __future__ import annotations

import logging
import socket

from lockclient.acquisition.shared_mutex import newest_held

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
    calls, starts or hands to `asyncio.to_thread`. Without such a lock, `lock` and `uuid` are None.
    """
    held = newest_held()
    name, uuid = (None, None) if held is None else (held.acquisition.name, held.acquisition.uuid)
    return {"lock": name, "uuid": uuid, "hostname": _HOSTNAME}
