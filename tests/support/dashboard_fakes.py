"""A store in memory for the dashboard's own tests: the real table, without etcd."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from html import unescape
from typing import Any

import bcrypt
from jinja2.bccache import Bucket, BytecodeCache

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.overview.table import Table
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import Capabilities
from lockclient.stores.requests import Remove, Request
from lockclient.stores.service_protocol import Change, Kind, Tickets
from mutexdash.app import create_app
from mutexdash.data.history import History
from mutexdash.data.live import Live, Moment
from mutexdash.data.waiters import WaiterPoller
from mutexdash.markup.cluster_label import ClusterLabel
from mutexdash.security.access import Access
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

URL = "etcd://127.0.0.1:2379/clustermutex"


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
        return self.model.revision

    @property
    def kept(self) -> dict[tuple[Kind, str, str], Change]:
        return self.model.kept

    # ------------------------------------------------------------ ServiceStore

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        self._question()
        if isinstance(request, Remove):
            self.before_removing()
        return super().ask(request, deadline)

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        self._check_answers()
        return super().tickets(limit, deadline, actors)

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

    def get(self, path: str, *, by: str = "127.0.0.1", **headers: str) -> Any:
        """Ask for a page, once the table shows all that the store has."""
        self.settle()
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        asker = {"REMOTE_ADDR": by}
        return self.client.get(path, headers=named, environ_base=asker, buffered=True)

    def html(self, path: str, **how: str) -> str:
        return str(self.get(path, **how).get_data(as_text=True))

    def text(self, path: str, code: int = 200) -> str:
        """Return a page's text without its markup."""
        answer = self.get(path)
        assert answer.status_code == code, answer.get_data(as_text=True)
        main = answer.get_data(as_text=True).partition("<main")[2].partition("</main>")[0]
        return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", main)))

    def moment(self) -> Moment:
        self.settle()
        found = self.live.moment()
        assert found is not None
        return found

    def shows(self, path: str, *parts: str, but: tuple[str, ...] = (), code: int = 200) -> str:
        """Return a page's text, having seen that these parts are in it, and those of `but` not."""
        text = self.text(path, code)
        assert [part for part in parts if part not in text] == [], text
        assert [part for part in but if part in text] == [], text
        return text

    def settle(self) -> None:
        """Wait until the table shows all that the store has."""
        if self.table.ready():
            wait_until(lambda: self.table.revision == self.store.revision, what="the table")
            self.waiting.poll()

    def __enter__(self) -> Board:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.table.stop()


def hashed(password: str) -> str:
    """Return a line's hash as `htpasswd -B` writes it, quick to check."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
