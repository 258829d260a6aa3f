"""From settings to a store: the process's own, opened at first need, or one by its URL."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from lockclient.settings import Settings

if TYPE_CHECKING:
    from lockclient.store import ServiceStore

_default_lock = threading.Lock()
_default_settings: Settings | None = None
_default_store: ServiceStore | None = None


def set_default(settings: Settings) -> None:
    """Let mutexes that name no store use these settings from now on, in this process."""
    global _default_settings, _default_store
    with _default_lock:
        _default_settings, _default_store = settings, None


def default_store() -> ServiceStore:
    """Return the process's store, opened at first need: by `set_default`, or the environment.

    Raises:
        ValueError: the environment's settings are malformed.
    """
    global _default_store
    store = _default_store
    if store is None:
        with _default_lock:
            if _default_store is None:
                _default_store = open_store(_default_settings or Settings.load())
            store = _default_store
    return store


def _start_afresh() -> None:
    """After fork, in the child: another thread may have held the lock."""
    global _default_lock
    _default_lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)


def open_store(settings: Settings) -> ServiceStore:
    """Return a store for these settings; nothing is sent before it is first asked."""
    from lockclient.etcd.store import EtcdStore  # only here: a second store is a second branch

    return EtcdStore(settings)
