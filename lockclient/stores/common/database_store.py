"""`DatabaseStore`: a base for stores in a database with transactions, for whoever brings one.

A database does each request in one transaction of its own: it reads what stands there of the lock,
lets `lock_model` decide, and writes what that says. So a store is what reads and writes rows.

**Why that is safe.** Transactions are serializable: whoever writes is alone, from its first read to
its commit. Every write has the next revision after that of the one before it, so that fencing
tokens grow, and a push, a removal or a `forget` that comes late finds another revision than the one
it compares. A request whose answer was lost (the connection broke in the commit) is sent again, and
compares its uuid.

It has no queue and no watch: waiters look from time to time, services every few seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar, cast

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.lock_model import Model
from lockclient.stores.common.polled_store import PolledStore
from lockclient.stores.common.polling import Key, KnownItem, Polling, StoredItem
from lockclient.stores.diagnosis_protocol import FINE, Finding
from lockclient.stores.location import UrlLocation
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import Capabilities
from lockclient.stores.requests import Request, RequestState
from lockclient.stores.service_protocol import MAX_NOTE_BYTES, Change, Kind, Note
from lockclient.threads.backoff import Backoff

Result = TypeVar("Result")
FIRST_RETRY_S, LEAST_RETRY_S, MOST_RETRY_S = 0.02, 0.05, 1.0
MOST_TTL_S = 3600.0
"""Seconds that an unlocker's heartbeat counts at most, whatever it says of itself."""
NOTE: Final = cast("Kind", "note")
"""The kind of the unlockers' note, which is none that `load` and `follow` tell of."""


class Row(NamedTuple):
    """A row of the one table that a store needs; (`kind`, `name`, `part`) is its key.

    `value` is bytes (None in what is written: delete the row), `revision` and `created` are whole
    numbers below 2^38, `at` is Unix seconds: when it was written.
    """

    kind: Kind
    name: str
    part: str
    value: bytes | None
    revision: int
    created: int
    at: float


class Transaction(Protocol):
    """What a store reads and writes between the begin and the commit of one transaction."""

    def read(self, kinds: Sequence[Kind], name: str | None = None) -> Iterable[Row]:
        """Return the rows of these kinds, of one name or of all."""

    def write(self, rows: Sequence[Row], revision: int) -> None:
        """Put these rows, or delete those whose value is None, and remember the revision."""

    def revision(self) -> int:
        """Return the revision that was remembered last; 0: none."""

    def now(self) -> float:
        """Return the database's time, in Unix seconds."""


class DatabaseStore(PolledStore):
    """A base of stores in a database. A subclass says by `transaction` how rows are had.

    Args:
        url: where it is; what else it holds than user, password and query is shown to people.
    """

    can = Capabilities("A database", queue=False, watch=False, guard=False)
    transient: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """Exceptions of `transaction` that mean: no answer, or a conflict with another one. It is tried
    again until the deadline; whether it was committed need not be known."""
    location: UrlLocation
    _name = "database"

    def __init__(self, url: str) -> None:
        super().__init__(UrlLocation(url))

    def transaction(self, deadline: Deadline) -> AbstractContextManager[Transaction]:
        """Return a serializable transaction: committed at the block's end, rolled back by an error.

        It must not wait longer than `deadline.remaining()`. Several threads may ask at once.
        """
        raise NotImplementedError

    # ------------------------------------------------------------ what a mutex asks

    def _connect(self) -> None:
        super()._connect()
        self._source = _Rows(self)
        self._polling = Polling(self._source, self._name)
        self._executor = self

    def do(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do a request in a transaction of its own."""
        sending.in_flight = True
        try:
            outcome = self.run(lambda rows: self._apply(rows, sending.request), deadline)
        except StoreUnavailable:
            sending.ambiguous = True
            raise
        finally:
            sending.in_flight = False
        return outcome

    def run(self, work: Callable[[Transaction], Result], deadline: Deadline) -> Result:
        """Do something in a transaction, again and again until it is answered.

        Raises:
            StoreUnavailable: it was not, by the deadline.
        """
        pauses = Backoff(FIRST_RETRY_S, LEAST_RETRY_S, MOST_RETRY_S)
        while True:
            try:
                with self.transaction(deadline) as rows:
                    return work(rows)
            except self.transient as error:
                pause = pauses.next()
                if deadline.remaining() <= pause:
                    raise StoreUnavailable(
                        f"{self.location.url()} did not answer: {error}", unknown=True
                    ) from error
                time.sleep(pause)

    def _apply(self, rows: Transaction, request: Request) -> Outcome:
        model = Model(apart=False)
        name = getattr(request, "name", "") or _name_of(request)
        for row in rows.read(("locks", "removed", "withdrawn"), name):
            change = Change(*row[:6])
            model.kept[change[:3]] = change
            model.lock(name).note(change, 0)
        model.revision = rows.revision()
        outcome = model.apply(request)
        if model.journal:
            at = rows.now()
            rows.write([Row(*change[:6], at) for change in model.journal], model.revision)
        return outcome

    # ------------------------------------------------------------ what unlockers write

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:  # noqa: ARG002 - the value says it, too
        """See `ServiceStore.announce`: looks leave out what is older than it says itself."""
        said = value.encode(errors="replace")
        self.run(lambda rows: _put(rows, "unlockers", unlocker, said), deadline)
        return self._polling.revision_at(monotonic())

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        self.run(lambda rows: _put(rows, "unlockers", unlocker, None), deadline)

    def read_note(self, deadline: Deadline) -> Note:
        return self.run(_read_note, deadline)

    def write_note(self, value: bytes, seen: Note, deadline: Deadline) -> bool:
        def write(rows: Transaction) -> bool:
            if _read_note(rows).version != seen.version:
                return False
            _put(rows, NOTE, "note", value)
            return True

        return self.run(write, deadline)

    def forget(self, change: Change, deadline: Deadline) -> bool:
        def forget(rows: Transaction) -> bool:
            there = [row for row in rows.read((change.kind,), change.name) if row[:3] == change[:3]]
            if not there or there[0].revision != change.version:
                return False
            rows.write([there[0]._replace(value=None)], rows.revision() + 1)
            return True

        return self.run(forget, deadline)

    # ------------------------------------------------------------ reading

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        rows = self.run(lambda rows: [*rows.read(("locks",))], deadline)
        held = {row.name for row in rows if row.part == "uuid" and row.name.startswith(prefix)}
        return sorted(held)[:limit]

    def examine(self) -> Iterator[Finding]:
        """Yield what `clustermutex doctor` tells: that it answers, and how quickly."""
        began = monotonic()
        self.run(lambda rows: rows.now(), Deadline.after(5.0))
        took = monotonic() - began
        yield Finding("store", FINE, f"{self.location.url()} answers, in {1000 * took:.0f} ms.")


class _Rows:
    """The rows of a database, as looks read them."""

    def __init__(self, store: DatabaseStore) -> None:
        self._store = store
        self._ahead: float | None = None
        self._newest_mark = 0

    def now(self) -> float:
        return 0.0 if self._ahead is None else monotonic() + self._ahead

    def record_version(self) -> int:
        """With each record a mark is written: another newest one tells of it."""
        return self._newest_mark

    def live(
        self,
        deadline: Deadline,
        known: Mapping[Key, KnownItem],  # noqa: ARG002
    ) -> Iterator[Sequence[StoredItem]]:
        found, now = self._read(("locks", "withdrawn", "unlockers"), deadline)
        marks = (row.revision for row in found if row.kind == "withdrawn")
        self._newest_mark = max(marks, default=0)
        locks: dict[str, list[Row]] = {}
        others = []
        for row in found:
            if row.kind == "locks":
                locks.setdefault(row.name, []).append(row)
            elif row.kind == "withdrawn" or row.at + _ttl_of(row) >= now:
                others.append(_item(row))
        yield [*map(_lock, locks.values()), *others]

    def records(
        self,
        deadline: Deadline,
        known: Mapping[Key, KnownItem],  # noqa: ARG002
    ) -> Iterator[Sequence[StoredItem]]:
        found, _ = self._read(("removed",), deadline)
        yield [*map(_item, found)]

    def _read(self, kinds: Sequence[Kind], deadline: Deadline) -> tuple[list[Row], float]:
        found, now = self._store.run(lambda rows: ([*rows.read(kinds)], rows.now()), deadline)
        self._ahead = now - monotonic()  # by now the database's clock is no less than that
        return found, now


def _item(row: Row) -> StoredItem:
    values = {row.part: (row.value or b"", row.revision)}
    return StoredItem(row.kind, row.name, row.part, row.revision, row.at, values)


def _lock(rows: list[Row]) -> StoredItem:
    """Return a lock. Its version tells all states apart: what is put has a higher revision than all
    before it, and what is deleted makes one part less."""
    newest = max(row.revision for row in rows)
    values = {row.part: (row.value or b"", row.revision) for row in rows}
    version = newest * 16 + len(rows)
    return StoredItem("locks", rows[0].name, "", version, max(row.at for row in rows), values)


def _ttl_of(row: Row) -> float:
    """Return for how many seconds a heartbeat counts, by what it says itself."""
    try:
        said: Any = json.loads(row.value or b"")
        return min(MOST_TTL_S, max(0.0, float(said["ttl"])))
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0.0


def _put(rows: Transaction, kind: Kind, name: str, value: bytes | None) -> None:
    revision = rows.revision() + 1
    rows.write([Row(kind, name, "", value, revision, revision, rows.now())], revision)


def _read_note(rows: Transaction) -> Note:
    for row in rows.read((NOTE,), "note"):
        value = row.value or b""
        return Note(value if len(value) <= MAX_NOTE_BYTES else b"", row.revision)
    return Note(b"", 0)


def _name_of(request: Any) -> str:
    """Return the lock that a request is about, which carries it in its holder or its removal."""
    holder = request.removal.holder if hasattr(request, "removal") else request.holder
    name: str = holder.name
    return name
