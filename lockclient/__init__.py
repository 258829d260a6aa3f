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
from lockclient.mutex import ClusterMutex
from lockclient.settings import Settings
from lockclient.stores.protocol import Guard
from lockclient.version import __version__

if TYPE_CHECKING:
    from lockclient.aio import AsyncClusterMutex

__all__ = [
    "AsyncClusterMutex",
    "ClusterMutex",
    "ClusterMutexError",
    "Guard",
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
    """Import `AsyncClusterMutex` when it is wanted: asyncio costs as much as all the rest."""
    if name == "AsyncClusterMutex":
        from lockclient.aio import AsyncClusterMutex

        return AsyncClusterMutex
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
