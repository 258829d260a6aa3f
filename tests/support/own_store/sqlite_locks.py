"""Locks in a file of SQLite: a store of somebody else's, the example of docs/stores.md."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from lockclient.stores import Capabilities, DatabaseStore, Deadline, Kind, Row

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    kind TEXT, name TEXT, part TEXT, value BLOB, revision INTEGER, created INTEGER, at REAL,
    PRIMARY KEY (kind, name, part)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS newest (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER);
"""
COLUMNS = "kind, name, part, value, revision, created, at"


class Rows:
    """What is read and written in one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection.execute

    def read(self, kinds: Sequence[Kind], name: str | None = None) -> Iterable[Row]:
        marks = ", ".join("?" * len(kinds))
        query = f"SELECT {COLUMNS} FROM entries WHERE kind IN ({marks})"
        if name is None:
            return [Row(*row) for row in self._run(query, kinds)]
        return [Row(*row) for row in self._run(f"{query} AND name = ?", (*kinds, name))]

    def write(self, rows: Sequence[Row], revision: int) -> None:
        for row in rows:
            if row.value is None:
                key = "kind = ? AND name = ? AND part = ?"
                self._run(f"DELETE FROM entries WHERE {key}", row[:3])
            else:
                self._run(
                    f"INSERT OR REPLACE INTO entries ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
        self._run("INSERT OR REPLACE INTO newest VALUES (1, ?)", (revision,))

    def revision(self) -> int:
        row = self._run("SELECT revision FROM newest").fetchone()
        return row[0] if row else 0

    def now(self) -> float:
        return time.time()  # all that use the file are on this machine


class SqliteStore(DatabaseStore):
    """Locks in a file, for the processes of one machine."""

    can = Capabilities("SQLite", queue=False, watch=False, guard=False)
    transient = (sqlite3.OperationalError,)

    def __init__(self, url: str) -> None:
        self._path = Path(url.removeprefix("sqlite://"))
        super().__init__(url)
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)

    @contextmanager
    def transaction(self, deadline: Deadline) -> Iterator[Rows]:
        patience = min(deadline.remaining(), 60.0)
        connection = sqlite3.connect(self._path, timeout=patience, isolation_level=None)
        with closing(connection):
            connection.execute("BEGIN IMMEDIATE")  # alone from the first read on
            yield Rows(connection)
            connection.execute("COMMIT")


def open_store(url: str) -> SqliteStore:
    """Open `sqlite:///path/of/the/file`: the entry point."""
    return SqliteStore(url)
