"""ClusterMutex: distributed locks that people can see and trust."""

from lockclient.aio import AsyncClusterMutex
from lockclient.config import open_store
from lockclient.errors import (
    ClusterMutexError,
    InvalidLockName,
    LockLost,
    LockNotHeld,
    LockTimeout,
    StoreError,
    StoreUnavailable,
)
from lockclient.mutex import ClusterMutex
from lockclient.record import Holder, Removal, Ticket
from lockclient.settings import Settings
from lockclient.store import Guard
from lockclient.version import __version__

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
    "StoreError",
    "StoreUnavailable",
    "Ticket",
    "__version__",
    "open_store",
]
