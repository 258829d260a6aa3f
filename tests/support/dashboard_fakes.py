"""A store in memory for the dashboard's own tests: the real table, without etcd."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import bcrypt
from jinja2.bccache import Bucket, BytecodeCache

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.fields import ABOUT
from lockclient.model.holder import SUBKEYS
from lockclient.model.ticket import Ticket
from lockclient.overview.table import Table
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import Capabilities
from lockclient.stores.requests import Remove, Request
from lockclient.stores.service_protocol import Change, Kind
from mutexdash.app import create_app
from mutexdash.data.history import History
from mutexdash.data.live import Live
from mutexdash.data.waiters import WaiterPoller
from mutexdash.markup.cluster_label import ClusterLabel
from mutexdash.security.access import Access
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

URL = "etcd://127.0.0.1:2379/clustermutex"

BACKTRACE = 'File "/srv/report.py", line 41, in rebuild\n    with ClusterMutex("nightly"):\n'


class DashboardStore(MemoryStore):
    """A store in memory that a test writes to as somebody else, and that can be away.

    Attributes:
        here: whether it is connected.
        answers: whether it answers.
        questions: how often it was asked for something.
        before_removing: called when a lock is to be removed, before that.
    """

    can = Capabilities("etcd")

    def __init__(self) -> None:
        super().__init__()
        self.here = self.answers = True
        self.questions = 0
        self.before_removing: Callable[[], object] = lambda: None

    @property
    def revision(self) -> int:
        """The revision of what was written last."""
        return self.model.revision

    @property
    def kept(self) -> dict[tuple[Kind, str, str], Change]:
        """All that stands there."""
        return self.model.kept

    # ------------------------------------------------------------ what happens in the store

    def take(self, name: str, **values: Any) -> None:
        """Have somebody take the lock, now unless `locked_at` says otherwise."""
        self.write(*[("locks", name, key, value) for key, value in subkeys(**values).items()])

    def push(self, name: str, *, alert: float = 300.0, unlock: float = 900.0) -> None:
        """Push the stamps forward, from now on, together as holders do."""
        now = time.time()
        stamps = (("alert_at", now + alert), ("auto_unlock_at", now + unlock))
        self.write(*[("locks", name, part, f"{at:.3f}".encode()) for part, at in stamps])

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

    def lose_watches(self) -> None:
        """Have nobody told any more of what is written, until he follows anew."""
        for follower in list(self._followers):
            follower.close()

    # ------------------------------------------------------------ ServiceStore

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        self._question()
        if isinstance(request, Remove):
            self.before_removing()
        return super().ask(request, deadline)

    def tickets(self, limit: int, deadline: Deadline) -> Sequence[Ticket]:
        self._check_answers()
        return super().tickets(limit, deadline)

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        self._question()
        return super().backtrace(code, deadline)

    def _question(self) -> None:
        self.questions += 1
        self._check_answers()

    def _check_answers(self) -> None:
        if not self.answers:
            raise StoreUnavailable("etcd at 127.0.0.1:2379 did not answer within 2 s.")

    def connected(self) -> bool:
        return self.here

    def endpoints(self) -> tuple[str, ...]:
        return ("127.0.0.1:2379",)


class Compiled(BytecodeCache):
    """Templates that are compiled once, and not anew for each board."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key] = bucket.bytecode_to_string()


TEMPLATES = Compiled()


class Board:
    """A dashboard over a store in memory, with a clock of its own to move."""

    def __init__(
        self,
        store: DashboardStore | None = None,
        access: Access | None = None,
        label: ClusterLabel | None = None,
        runbook_url: str = "",
    ) -> None:
        self.store = store or DashboardStore()
        self.ahead = 0.0
        self.stopped: float | None = None
        self.history = History(clock=self.now)
        self.table = Table(
            self.store,
            removals=1000,
            on_change=self.history.note,
            on_removal=self.history.note_removals,
        )
        self.waiting = WaiterPoller(self.table, self.store)
        self.live = Live(self.table, self.history, waiting=self.waiting, clock=self.now, rest=0)
        self.app = create_app(
            self.live, self.store, url=URL, access=access, label=label, runbook_url=runbook_url
        )
        self.app.jinja_env.bytecode_cache = TEMPLATES
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
            self.waiting.poll()

    def __enter__(self) -> Board:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.table.stop()


def subkeys(
    *, held_for: float = 60.0, alert: float = 300.0, unlock: float | None = 900.0, **values: Any
) -> dict[str, bytes]:
    """Return a lock's subkeys, of a holder that took it `held_for` seconds ago.

    `values` are facts that are to be otherwise, missing where None; whole subkeys may be bytes.
    """
    taken = round(time.time() - held_for, 3)
    facts: dict[str, Any] = {
        "uuid": "b6a1e1d2-70a3-4a53-9b5c-8f5d2d3c0001",
        "hostname": "worker-1",
        "pid": 4711,
        "thread": "MainThread",
        "reason": "rebuild totals",
        "locked_at": taken,
        "alert_at": f"{taken + alert:.3f}",
        "auto_unlock_at": None if unlock is None else f"{taken + unlock:.3f}",
        "expected_runtime": alert,
        "auto_unlock_after": unlock,
        "backtrace": BACKTRACE,
        "client": "clustermutex/0.1.0 python/3.11.2",
    }
    facts |= values
    found = {part: facts.pop(part, None) for part in SUBKEYS}
    found[ABOUT] = found[ABOUT] or json.dumps(facts)
    return {
        part: value if isinstance(value, bytes) else str(value).encode()
        for part, value in found.items()
        if value is not None
    }


def hashed(password: str) -> str:
    """Return a line's hash as `htpasswd -B` writes it, quick to check."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
