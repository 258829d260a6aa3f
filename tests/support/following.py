"""A table of all locks that follows a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockclient.overview.live_table import Table
from lockclient.stores.service_store import ServiceStore
from tests.support.processes import wait_until


@contextmanager
def following(store: ServiceStore, **how: Any) -> Iterator[Table]:
    """A table that is loaded and whose watch stands."""
    table = Table(store, **how)
    assert not table.ready()
    table.start()
    try:
        wait_until(table.connected, what="the table")
        yield table
    finally:
        table.stop()
