"""Where locks are kept: the protocols, the registry, and a folder for each store.

For whoever writes a store of their own, what that needs is here by one name: see
docs/stores.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockclient.model.clocks import Deadline
    from lockclient.stores.protocol import AsyncMutexStore, Capabilities, MutexStore
    from lockclient.stores.service_protocol import Kind, ServiceStore

_HOMES = {
    "AsyncMutexStore": "lockclient.stores.protocol",
    "Capabilities": "lockclient.stores.protocol",
    "Deadline": "lockclient.model.clocks",
    "Kind": "lockclient.stores.service_protocol",
    "MutexStore": "lockclient.stores.protocol",
    "ServiceStore": "lockclient.stores.service_protocol",
}

__all__ = [
    "AsyncMutexStore",
    "Capabilities",
    "Deadline",
    "Kind",
    "MutexStore",
    "ServiceStore",
]


def __getattr__(name: str) -> Any:
    """Import it when it is wanted: who takes locks needs none of it."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
