"""ClusterMutex: distributed locks that people can see and trust."""

import os
from typing import TYPE_CHECKING, Any

if not hasattr(os, "fork"):
    raise ImportError("ClusterMutex needs Linux, or another system with fork: this one has none.")

from lockclient.default_store import open_store
from lockclient.errors import (
    ClusterMutexError,
    InvalidLockName,
    LockLost,
    LockNotHeld,
    LockTimeout,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.model.version import __version__
from lockclient.mutex import ClusterMutex, HeldLock
from lockclient.stores.mutex_store import Guard
from lockclient.stores.settings import Settings

if TYPE_CHECKING:
    from lockclient.acquisition.log_filter import HeldLockFilter, held_lock_fields
    from lockclient.aio import AsyncClusterMutex, AsyncHeldLock

__all__ = [
    "AsyncClusterMutex",
    "AsyncHeldLock",
    "ClusterMutex",
    "ClusterMutexError",
    "Guard",
    "HeldLock",
    "HeldLockFilter",
    "Holder",
    "InvalidLockName",
    "LockLost",
    "LockNotHeld",
    "LockTimeout",
    "Removal",
    "Settings",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Ticket",
    "__version__",
    "held_lock_fields",
    "open_store",
]


def __getattr__(name: str) -> Any:
    """Import what few want when it is wanted: asyncio costs as much as all the rest."""
    if name in ("AsyncClusterMutex", "AsyncHeldLock"):
        from lockclient import aio

        return getattr(aio, name)
    if name in ("HeldLockFilter", "held_lock_fields"):
        from lockclient.acquisition import log_filter

        return getattr(log_filter, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public API."""
    return __all__
