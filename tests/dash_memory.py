"""A store in memory for the dashboard's own tests: the real table, without etcd."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import bcrypt

from lockclient.errors import StoreUnavailable
from lockclient.record import Holder, Removal, Ticket
from lockclient.store import (
    Batch,
    Change,
    Done,
    Gone,
    Kind,
    Outcome,
    Read,
    Remove,
    Request,
    Seen,
)
from lockclient.table import Table
from lockclient.timing import Deadline
from mutexdash.access import Access
from mutexdash.app import create_app
from mutexdash.history import History
from mutexdash.snapshot import Live
from tests.processes import wait_until

URL = "etcd://127.0.0.1:2379/clustermutex"

BACKTRACE = 'File "/srv/report.py", line 41, in rebuild\n    with ClusterMutex("nightly"):\n'


class _Watch:
    def close(self) -> None:
        pass


@dataclass
class MemoryStore:
    """What `Table` and the dashboard ask of a `ServiceStore`; `here` False is an etcd away."""

    here: bool = True
    answers: bool = True
    asked: int = 0
    revision: int = 1
    kept: dict[tuple[Kind, str, str], Change] = field(default_factory=dict)
    notify: Callable[[Batch], None] | None = None
    before_removing: Callable[[], object] = lambda: None

    # ------------------------------------------------------------ what happens in the store

    def write(self, *entries: tuple[Kind, str, str, bytes | None]) -> None:
        """Write these values in one step, or delete them where None."""
        self.revision += 1
        changes = []
        for kind, name, part, value in entries:
            old = self.kept.get((kind, name, part))
            created = old.created if old else self.revision
            change = Change(kind, name, part, value, self.revision, created)
            changes.append(change)
            if value is None:
                self.kept.pop((kind, name, part), None)
            else:
                self.kept[kind, name, part] = change
        if self.notify is not None:
            self.notify(Batch(tuple(changes), self.revision))

    def take(self, name: str, **values: Any) -> None:
        """Have somebody take the lock, now unless `locked_at` says otherwise."""
        self.write(*[("locks", name, key, value) for key, value in subkeys(**values).items()])

    def release(self, name: str) -> None:
        """Delete the lock."""
        gone = [key for key in self.kept if key[:2] == ("locks", name)]
        self.write(*[(kind, of, part, None) for kind, of, part in gone])

    def wait(self, name: str, uuid: str, **values: Any) -> None:
        """Put somebody in line."""
        self.write(("queue", name, uuid, json.dumps(values).encode()))

    def unlocker(self, name: str = "watchdog-1:77", *, runs: bool = True) -> None:
        """Have an unlocker run, or end."""
        self.write(("unlockers", name, "", b"{}" if runs else None))

    def removed(self, name: str, uuid: str, **values: Any) -> None:
        """Leave the record of a removal."""
        self.write(("removed", name, uuid, json.dumps(values).encode()))

    # ------------------------------------------------------------ ServiceStore

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        yield Batch(tuple(each for each in self.kept.values() if each.kind in kinds), self.revision)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> _Watch:
        self.notify = notify
        return _Watch()

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        self.asked += 1
        if not self.answers:
            raise StoreUnavailable("etcd at 127.0.0.1:2379 did not answer within 2 s.")
        if isinstance(request, Remove):
            return self._remove(request.removal)
        assert isinstance(request, Read)
        name = request.name
        parts = {key[2]: each for key, each in self.kept.items() if key[:2] == ("locks", name)}
        values = {part: each.value or b"" for part, each in parts.items()}
        holder = Holder.read(name, values, parts["uuid"].revision if "uuid" in parts else 0)
        line = [
            Ticket.read(name, key[2], each.value or b"", each.created)
            for key, each in self.kept.items()
            if key[:2] == ("queue", name)
        ]
        record = self.kept.get(("removed", name, request.uuid or ""))
        removal = Removal.read(name, request.uuid or "", record.value or b"") if record else None
        return Seen(holder if parts else None, 0, tuple(line), removal, self.revision)

    def _remove(self, removal: Removal) -> Outcome:
        self.before_removing()
        name, uuid = removal.holder.name, str(removal.holder.uuid)
        held = self.kept.get(("locks", name, "uuid"))
        if held is None or held.value != uuid.encode():
            record = self.kept.get(("removed", name, uuid))
            found = Removal.read(name, uuid, record.value or b"") if record else None
            return Gone(held and (held.value or b"").decode(), found)
        gone = [key for key in self.kept if key[:2] == ("locks", name)]
        self.write(
            *[(kind, of, part, None) for kind, of, part in gone],
            ("removed", name, uuid, removal.value().encode()),
        )
        return Done(self.revision)

    def connected(self) -> bool:
        return self.here

    def endpoints(self) -> tuple[str, ...]:
        return ("127.0.0.1:2379",)

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class Board:
    """A dashboard over a store in memory, with a clock of its own to move."""

    def __init__(self, store: MemoryStore | None = None, access: Access | None = None) -> None:
        self.store = store or MemoryStore()
        self.ahead = 0.0
        self.stopped: float | None = None
        self.history = History(clock=self.now)
        self.table = Table(
            self.store,
            removals=1000,
            on_change=self.history.note,
            on_removal=self.history.note_removals,
        )
        self.live = Live(self.table, self.history, clock=self.now, rest=0)
        self.app = create_app(self.live, self.store, url=URL, access=access)
        self.client = self.app.test_client()

    def now(self) -> float:
        """Return the time on the dashboard's clock, which stands still if it is `stopped`."""
        return (time.time() if self.stopped is None else self.stopped) + self.ahead

    def start(self) -> Board:
        """Have the table loaded."""
        self.table.start()
        assert self.table.wait_ready(30)
        return self

    def get(self, path: str, **headers: str) -> Any:
        """Ask for a page, once the table shows all that the store has."""
        self.settle()
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.client.get(path, headers=named, buffered=True)

    def settle(self) -> None:
        """Wait until the table shows all that the store has."""
        if self.table.ready():
            wait_until(lambda: self.table.revision == self.store.revision, what="the table")

    def __enter__(self) -> Board:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.table.stop()


def subkeys(
    *, held_for: float = 60.0, alert: float = 300.0, unlock: float | None = 900.0, **values: Any
) -> dict[str, bytes]:
    """Return a lock's values, of a holder that took it `held_for` seconds ago."""
    taken = time.time() - held_for
    whole: dict[str, Any] = {
        "uuid": "b6a1e1d2-70a3-4a53-9b5c-8f5d2d3c0001",
        "hostname": "worker-1",
        "pid": 4711,
        "thread": "MainThread",
        "reason": "rebuild totals",
        "locked_at": f"{taken:.3f}",
        "alive_at": f"{taken:.3f}",
        "alert_at": f"{taken + alert:.3f}",
        "auto_unlock_at": None if unlock is None else f"{taken + unlock:.3f}",
        "backtrace": BACKTRACE,
        "client": "clustermutex/0.1.0 python/3.11.2",
    }
    whole |= values
    return {
        key: value if isinstance(value, bytes) else str(value).encode()
        for key, value in whole.items()
        if value is not None
    }


def hashed(password: str) -> str:
    """Return a line's hash as `htpasswd -B` writes it, quick to check."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
