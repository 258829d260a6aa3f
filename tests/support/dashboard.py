"""The dashboard over a real store, served in the test's own process: a page costs no program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from lockclient.default_store import open_store
from lockclient.overview.table import Table
from lockclient.service.http_server import HttpServer
from lockclient.settings import Settings
from mutexdash.app import create_app
from mutexdash.data.history import History
from mutexdash.data.live import Live
from mutexdash.data.staleness import Probe
from mutexdash.data.waiters import WaiterPoller


@dataclass
class Dashboard:
    """One that runs.

    Attributes:
        url: where it listens.
    """

    url: str


@contextmanager
def dashboard(settings: Settings, **options: Any) -> Iterator[Dashboard]:
    """Serve what `mutexdash` does with these settings; `options` are those of `create_app`."""
    with ExitStack() as exits:
        store = open_store(settings)
        exits.callback(store.close)
        history = History()
        table = Table(
            store, removals=1000, on_change=history.note, on_removal=history.note_removals
        )
        live = Live(table, history, probe=Probe(table, store), waiting=WaiterPoller(table, store))
        app = create_app(live, store, url=settings.url(), **options)
        server = HttpServer(app, ("127.0.0.1", 0))
        for start, end in (
            (table.start, table.stop),
            (live.start, live.stop),
            (server.start, server.close),
        ):
            start()
            exits.callback(end)
        yield Dashboard(server.url)
