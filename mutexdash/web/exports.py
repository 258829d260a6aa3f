"""Removal records in full: one of them, or all as a file, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import lru_cache
from typing import IO, Any, Final
from weakref import WeakSet

from flask import Blueprint, Response, abort, current_app, request, send_file
from werkzeug.exceptions import ServiceUnavailable

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.fields import TEXTS, TIME, Fact, pairs
from lockclient.model.holder import FACTS
from lockclient.model.removal import REMOVAL_FACTS, Removal
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.requests import Read
from lockclient.text.escaping import cell
from mutexdash.data.query import Query
from mutexdash.web.context import dashboard

blueprint = Blueprint("exports", __name__)

_COLUMNS: Final = (*REMOVAL_FACTS, *(fact for fact in FACTS if fact.in_json))
_EXPORT_TIMEOUT_S: Final = 60.0
_MAX_BYTES: Final = 128 * 1024 * 1024
"""Bytes of all exports that are on their way, if the application's config has no
`MAX_EXPORT_BYTES`: the folder that they are in may be a small one."""
_MAX_FILES: Final = 4

_Writer = Callable[[IO[str], Iterator[Removal]], None]

_one_at_a_time = threading.Lock()
"""Reading all records keeps one of few threads busy: the others are for those who look."""

_sending: WeakSet[IO[bytes]] = WeakSet()
"""The files of exports, without a name in any folder. Each is gone when it is closed: when it was
sent, or when the server ends the connection of who does not read it in time (`Bounds`)."""


class _TooLarge(Exception):
    """There is no room for the rest of an export."""


def read_removal(name: str, uuid: str) -> Removal:
    """Return the record of the removal of a holder, or answer 404, or 503 if it can't be read."""
    board = dashboard()
    if board.moment().away_since is not None:
        abort(503, f"{board.store.can.display_name} is unreachable: the record can't be read now.")
    try:
        seen = board.store.ask(Read(name, uuid), Deadline.after(2.0)) if uuid else None
    except (StoreUnavailable, StoreError) as error:
        abort(503, f"{board.store.can.display_name} could not be asked for the record: {error}")
    assert seen is None or isinstance(seen, ReadResult)
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
    board = dashboard()
    if board.moment().away_since is not None:
        abort(503, f"{board.store.can.display_name} is unreachable: the records can't be read now.")
    if not _one_at_a_time.acquire(blocking=False):
        raise _later("Somebody else's export is being made")
    most: int = current_app.config.get("MAX_EXPORT_BYTES", _MAX_BYTES)
    try:
        others = [size for file in list(_sending) if (size := _size(file)) is not None]
        if len(others) >= _MAX_FILES:
            raise _later(f"{len(others)} exports are being sent to others")
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the answer closes it
        try:
            # Whole before it is sent: so a reader who is slow keeps no thread, and a store that
            # fails half-way makes an error, and no file that lacks its end.
            text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
            write(text, _bounded(_records(query), file, most - sum(others)))
            text.flush()
            text.detach()
            file.seek(0)
        except BaseException:
            file.close()
            raise
        _sending.add(file)
    except (StoreUnavailable, StoreError) as error:
        abort(503, f"The records could not be read: {error}")
    except _TooLarge:
        if others:
            raise _later("Others are being sent so much that there is no room") from None
        abort(
            400,
            f"This would be more than {most >> 20} MiB: narrow it down by ?q=, or read all "
            "by `clustermutex removed`.",
        )
    finally:
        _one_at_a_time.release()
    return send_file(
        file, mimetype=mimetype, as_attachment=True, download_name=f"removed-locks.{kind}"
    )


def _later(why: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"{why}: try again in a moment.", retry_after=10)


def _size(file: IO[bytes]) -> int | None:
    """Return how large a file is, None if it is closed, maybe just now."""
    try:
        return os.fstat(file.fileno()).st_size
    except ValueError:
        return None


def _bounded(removals: Iterator[Removal], file: IO[bytes], most: int) -> Iterator[Removal]:
    for removal in removals:
        if file.tell() > most:
            raise _TooLarge
        yield removal


def _records(query: Query) -> Iterator[Removal]:
    """Read all records, by the name of their lock."""
    store, deadline = dashboard().store, Deadline.after(_EXPORT_TIMEOUT_S)
    # Many have their backtrace in common, and some of those are enough to have at hand.
    code = lru_cache(maxsize=100)(lambda digest: store.backtrace(digest, deadline))
    for batch in store.load(("removed",), deadline):
        for change in batch.changes:
            if change.kind == "removed" and change.value is not None:
                removal = Removal.read(change.name, change.part, change.value)
                if query.search.finds_removal(removal):
                    yield removal.with_backtrace(code(removal.code)) if removal.code else removal


def _write_csv(file: IO[str], removals: Iterator[Removal]) -> None:
    writer = csv.writer(file)
    writer.writerow([fact.name for fact in _COLUMNS])
    for removal in removals:
        facts = removal.facts()
        writer.writerow([_cell(fact, facts[fact.name]) for fact in _COLUMNS])


def _cell(fact: Fact, value: Any) -> Any:
    if value is None:
        return ""
    if fact.kind == TIME:
        return datetime.fromtimestamp(value, timezone.utc).isoformat(timespec="milliseconds")
    if fact.kind == TEXTS:
        value = pairs(value)
    return cell(value) if isinstance(value, str) else value


def _write_json(file: IO[str], removals: Iterator[Removal]) -> None:
    between = ""
    file.write("[\n")
    for removal in removals:
        file.write(between)
        json.dump(removal.facts(), file, ensure_ascii=False)
        between = ",\n"
    file.write("\n]\n")
