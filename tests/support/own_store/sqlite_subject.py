"""Empty stores of `sqlite_locks`, for the contract suite of ClusterMutex."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from sqlite_locks import SqliteStore

from lockclient.stores import Deadline, Row
from tests.contract.subject import Subject


@contextmanager
def subject() -> Iterator[Subject]:
    """An empty store for each test of the contract suite."""
    with tempfile.TemporaryDirectory() as folder:
        opened = partial(SqliteStore, f"sqlite://{folder}/locks.db")
        store = opened()

        def write(name: str, part: str, value: bytes | None) -> None:
            with store.transaction(Deadline.after(10)) as rows:
                revision = rows.revision() + 1
                row = Row("locks", name, part, value, revision, revision, time.time())
                rows.write([row], revision)

        yield Subject(store, opened, write=write)
        store.close()
