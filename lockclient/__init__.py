"""ClusterMutex: distributed locks that people can see and trust."""

from typing import TYPE_CHECKING, Any

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
from lockclient.mutex import ClusterMutex, HeldLock
from lockclient.settings import Settings
from lockclient.stores.protocol import Guard
from lockclient.version import __version__

if TYPE_CHECKING:
    from lockclient.aio import AsyncClusterMutex, AsyncHeldLock

__all__ = [
    "AsyncClusterMutex",
    "AsyncHeldLock",
    "ClusterMutex",
    "ClusterMutexError",
    "Guard",
    "HeldLock",
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
    "open_store",
]


def __getattr__(name: str) -> Any:
    """Import what is for asyncio when it is wanted: asyncio costs as much as all the rest."""
    if name in ("AsyncClusterMutex", "AsyncHeldLock"):
        from lockclient import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public API."""
    return __all__
