"""An etcd store by settings, typed as what it is."""

from __future__ import annotations

from typing import Any

from lockclient import Settings, open_store
from lockclient.stores.etcd.store import EtcdStore


def etcd_store(settings: Settings, client: Any = None) -> EtcdStore:
    store = open_store(settings, client)
    assert isinstance(store, EtcdStore)
    return store
