"""The records of removals in full: one of them, or all as a file."""

from __future__ import annotations

import csv
import io
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import IO, Any, Final

from flask import Blueprint, Response, abort, request, send_file

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.record import STAMPS, Removal
from lockclient.store import Read, Seen
from lockclient.timing import Deadline
from mutexdash.context import dashboard
from mutexdash.query import Query
from mutexdash.snapshot import matches

blueprint = Blueprint("exports", __name__)

_COLUMNS: Final = (
    *("removed_at", "name", "how", "removed_by", "why", "hostname", "pid", "thread", "reason"),
    *("identity", "client", "locked_at", "alive_at", "alert_at", "auto_unlock_at"),
    *("fencing_token", "uuid", "backtrace"),
)
_TIMES: Final = frozenset({*STAMPS, "removed_at"})
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
_PATIENCE: Final = 60.0

_Writer = Callable[[IO[str], Iterator[Removal]], None]

_one_at_a_time = threading.Lock()
"""Reading all records keeps one of few threads busy: the others are for those who look."""


def read_removal(name: str, uuid: str) -> Removal:
    """Return the record of the removal of a holder, or answer 404, or 503 if it can't be read."""
    board = dashboard()
    if board.moment().away_since is not None:
        abort(503, "etcd is away: the record can't be read now.")
    try:
        seen = board.store.ask(Read(name, uuid), Deadline.after(2.0)) if uuid else None
    except (StoreUnavailable, StoreError) as error:
        abort(503, f"etcd could not be asked for the record: {error}")
    assert seen is None or isinstance(seen, Seen)
    if seen is None or seen.removal is None:
        abort(404, f"No removal of that holder of the lock {name!r} is recorded.")
    return seen.removal


@blueprint.get("/removed.csv")
def removed_csv() -> Response:
    """Send all records as a table; times are UTC."""
    return _sent("csv", "text/csv", _write_csv)


@blueprint.get("/removed.json")
def removed_json() -> Response:
    """Send all records as a JSON list, with the facts as `/api/removed` has them."""
    return _sent("json", "application/json", _write_json)


def _sent(
    kind: str, mimetype: str, write: Callable[[IO[str], Iterator[Removal]], None]
) -> Response:
    query = Query.read(request.args, ("q",))
    if dashboard().moment().away_since is not None:
        abort(503, "etcd is away: the records can't be read now.")
    if not _one_at_a_time.acquire(blocking=False):
        abort(503, "Somebody else's export is being made: try again in a moment.")
    try:
        # Whole before it is sent: so a reader who is slow keeps no thread, and a store that fails
        # half-way makes an error, and no file that lacks its end.
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the answer closes it
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        write(text, _records(query))
        text.flush()
        text.detach()
        file.seek(0)
    except (StoreUnavailable, StoreError) as error:
        abort(503, f"The records could not be read: {error}")
    finally:
        _one_at_a_time.release()
    return send_file(
        file, mimetype=mimetype, as_attachment=True, download_name=f"removed-locks.{kind}"
    )


def _records(query: Query) -> Iterator[Removal]:
    """Read all records, by the name of their lock."""
    for batch in dashboard().store.load(("removed",), Deadline.after(_PATIENCE)):
        for change in batch.changes:
            if change.kind == "removed" and change.value is not None:
                removal = Removal.read(change.name, change.part, change.value)
                if matches(removal, query):
                    yield removal


def _write_csv(file: IO[str], removals: Iterator[Removal]) -> None:
    writer = csv.writer(file)
    writer.writerow(_COLUMNS)
    for removal in removals:
        facts = removal.facts()
        writer.writerow([_cell(column, facts[column]) for column in _COLUMNS])


def _cell(column: str, value: Any) -> Any:
    if value is None:
        return ""
    if column in _TIMES:
        return datetime.fromtimestamp(value, timezone.utc).isoformat(timespec="milliseconds")
    # A text that a spreadsheet would take for a formula and run: what locks say is hostile.
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return value


def _write_json(file: IO[str], removals: Iterator[Removal]) -> None:
    between = ""
    file.write("[\n")
    for removal in removals:
        file.write(between)
        json.dump(removal.facts(), file, ensure_ascii=False)
        between = ",\n"
    file.write("\n]\n")
