"""Whole removal records: one, or all as a CSV or JSON file."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import lru_cache
from typing import IO, Any, Final

from flask import Blueprint, Response, abort, request
from werkzeug.exceptions import ServiceUnavailable

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.fields import TEXTS, TIME, Fact, pairs
from lockclient.model.holder import FACTS
from lockclient.model.removal import REMOVAL_FACTS, Removal
from lockclient.service.http_server import MAX_ANSWER_BYTES
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.request_types import Read
from lockclient.text.escaping import cell
from mutexdash.data.list_parameters import Query
from mutexdash.web.context import Dashboard, dashboard

blueprint = Blueprint("exports", __name__)

_COLUMNS: Final = (*REMOVAL_FACTS, *(fact for fact in FACTS if fact.in_json))
_EXPORT_TIMEOUT_S: Final = 60.0

_Writer = Callable[[IO[str], Iterator[Removal]], None]

_one_at_a_time = threading.Lock()
"""An export keeps one of few threads busy."""


class _TooLarge(Exception):
    """An export is larger than an answer may be."""


def _readable_board() -> Dashboard:
    """Return the dashboard; 503 while its store is unreachable or silent."""
    board = dashboard()
    if board.dated_snapshot().outdated_since is not None:
        abort(503, f"{board.store.can.display_name} is unreachable: no record can be read now.")
    return board


def read_removal(name: str, uuid: str) -> Removal:
    """Return the removal record of a holder; 404 if there is none, 503 if it can't be read."""
    board = _readable_board()
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
    return _sent("csv", "text/csv", _write_csv)


@blueprint.get("/removed.json")
def removed_json() -> Response:
    return _sent("json", "application/json", _write_json)


def _sent(kind: str, mimetype: str, write: _Writer) -> Response:
    query = Query.read(request.args, ("q",))
    _readable_board()
    if not _one_at_a_time.acquire(blocking=False):
        raise ServiceUnavailable("Another export is being made: try again shortly.", retry_after=10)
    try:
        # The file is complete before it is sent: a store that fails half-way gives an error.
        file = io.BytesIO()
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        write(text, _bounded(_records(query), file))
        text.flush()
        body = file.getvalue()
        if len(body) > MAX_ANSWER_BYTES:
            raise _TooLarge
    except (StoreUnavailable, StoreError) as error:
        abort(503, f"The records could not be read: {error}")
    except _TooLarge:
        abort(
            400,
            f"This would be more than {MAX_ANSWER_BYTES >> 20} MiB: narrow it down by ?q=, or read "
            "all by `clustermutex removed`.",
        )
    finally:
        _one_at_a_time.release()
    headers = {"Content-Disposition": f"attachment; filename=removed-locks.{kind}"}
    return Response(body, mimetype=mimetype, headers=headers)


def _bounded(removals: Iterator[Removal], file: IO[bytes]) -> Iterator[Removal]:
    for removal in removals:
        if file.tell() > MAX_ANSWER_BYTES:
            raise _TooLarge
        yield removal


def _records(query: Query) -> Iterator[Removal]:
    """Read all records, by the name of their lock."""
    store, deadline = dashboard().store, Deadline.after(_EXPORT_TIMEOUT_S)
    search = query.search
    # Many records share a backtrace.
    code = lru_cache(maxsize=100)(lambda digest: store.backtrace(digest, deadline))
    for batch in store.load(("removed",), deadline):
        for change in batch.changes:
            if change.kind == "removed" and change.value is not None:
                removal = Removal.read(change.name, change.part, change.value)
                if search.finds_removal(removal):
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
