"""Stores: the protocols, the registry, and a folder for each store.

The names here are for stores of your own: see docs/stores.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lockclient.model.clocks import Deadline
from lockclient.stores.mutex_store import AsyncMutexStore, Capabilities, MutexStore

if TYPE_CHECKING:
    from lockclient.stores.service_store import Kind, ServiceStore

__all__ = ["AsyncMutexStore", "Capabilities", "Deadline", "Kind", "MutexStore", "ServiceStore"]


def __getattr__(name: str) -> Any:
    """Import what services need when it is used: a program that takes locks does without."""
    if name in ("Kind", "ServiceStore"):
        return getattr(import_module("lockclient.stores.service_store"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
