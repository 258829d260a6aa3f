"""A dashboard that tests ask over HTTP: over a store in memory, with clocks to move; or served."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from html import unescape
from typing import Any

import bcrypt
from jinja2.bccache import Bucket, BytecodeCache

from lockclient.default_store import open_store
from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Remove, Request
from lockclient.stores.service_store import Kind, Tickets
from lockclient.stores.settings import Settings
from lockclient.testing.lock_model import Entry
from mutexdash.app import Options, Service
from mutexdash.cli import main, read_options
from tests.support.memory_store import MemoryStore

URL = "etcd://127.0.0.1:2379/clustermutex"
NO_OPTIONS_OF_PAGES = ("settings", "poll", "listen", "log_level", "log_format")


class DashboardStore(MemoryStore):
    """A store in memory that a test writes to as another client, and can make unreachable.

    Attributes:
        here: whether it is connected.
        answers: whether it answers; or what is raised instead.
        questions: how often it was asked for something, tickets aside.
        reads_of_tickets: how often these were read.
        before_removing: called when a lock is to be removed, before that.
    """

    can = Capabilities("etcd")

    def __init__(self) -> None:
        super().__init__()
        self.reachable = True
        self.answers: bool | Exception = True
        self.questions = self.reads_of_tickets = 0
        self.before_removing: Callable[[Remove], object] = lambda _: None

    @property
    def revision(self) -> int:
        return self.model.revision

    def holder(self, name: str) -> str | None:
        """Return the holder of a lock."""
        found = self.model.kept.get(("locks", name, "uuid"))
        return found and (found.value or b"").decode()

    def gone(self, name: str) -> list[tuple[Kind, str, str, None]]:
        """Return what is to be written so that nobody holds a lock any more."""
        return [(*key, None) for key in self.model.kept if key[:2] == ("locks", name)]

    def write_unseen(self, *entries: Entry) -> None:
        """Write what a watch misses: it is compacted before the event is sent."""
        with self.memory.changed:
            self.model.compacted = self.write(*entries)

    # ------------------------------------------------------------ ServiceStore

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        self._question()
        if isinstance(request, Remove):
            self.before_removing(request)
        return super().ask(request, deadline)

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        self.reads_of_tickets += 1
        self._check_answers()
        return super().tickets(limit, deadline, actors)

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        self._question()
        return super().backtrace(code, deadline)

    def _question(self) -> None:
        self.questions += 1
        self._check_answers()

    def _check_answers(self) -> None:
        if isinstance(self.answers, Exception):
            raise self.answers
        if not self.answers:
            raise StoreUnavailable("etcd at 127.0.0.1:2379 did not answer within 2 s.")

    def connected(self) -> bool:
        return self.reachable

    def endpoints(self) -> tuple[str, ...]:
        return ("127.0.0.1:2379",)


class PolledStore(DashboardStore):
    """A store whose last poll was long ago."""

    can = Capabilities("etcd", watch=False)


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


def options_of(flags: str, url: str = URL) -> Options:
    """Return what flags of `mutexdash` ask for."""
    given = main.make_context("mutexdash", flags.split()).params
    host, _ = given["listen"]
    return read_options(
        url, host, **{key: value for key, value in given.items() if key not in NO_OPTIONS_OF_PAGES}
    )


class Board:
    """A dashboard with these flags over a store in memory, asked over HTTP.

    Attributes:
        ahead: how far the wall clock is ahead.
        stopped: where the wall clock stands still.
        later: what the monotonic clock says.
    """

    def __init__(
        self, flags: str = "", store: DashboardStore | None = None, *, reuse_factor: float = 0.0
    ) -> None:
        self.store = store or DashboardStore()
        self.ahead = self.later = 0.0
        self.stopped: float | None = None
        self.service = Service(
            self.store,
            options_of(flags),
            clock=self.now,
            ticks=lambda: self.later,
            background=False,
            reuse_factor=reuse_factor,
        )
        self.app = self.service.app
        self.app.jinja_env.bytecode_cache = TEMPLATES
        self.client = self.app.test_client()
        self.started = False

    def now(self) -> float:
        """Return the time on the dashboard's clock."""
        return (time.time() if self.stopped is None else self.stopped) + self.ahead

    def get(self, path: str, *, by: str = "127.0.0.1", **headers: str) -> Any:
        """Ask for a page, once the dashboard shows all that the store has."""
        self.settle()
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        asker = {"REMOTE_ADDR": by}
        return self.client.get(path, headers=named, environ_base=asker, buffered=True)

    def post(self, path: str, *, by: str = "127.0.0.1", **asked: Any) -> Any:
        """Send something, as `werkzeug.test.Client` takes it."""
        self.settle()
        return self.client.post(path, environ_base={"REMOTE_ADDR": by}, buffered=True, **asked)

    def html(self, path: str, **how: str) -> str:
        return str(self.get(path, **how).get_data(as_text=True))

    def text(self, path: str, code: int = 200) -> str:
        """Return a page's text without its markup."""
        answer = self.get(path)
        assert answer.status_code == code, answer.get_data(as_text=True)
        main = answer.get_data(as_text=True).partition("<main")[2].partition("</main>")[0]
        return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", main)))

    def shows(self, path: str, *parts: str, but: tuple[str, ...] = (), code: int = 200) -> str:
        """Return a page's text, having seen that these parts are in it, and those of `but` not."""
        text = self.text(path, code)
        assert [part for part in parts if part not in text] == [], text
        assert [part for part in but if part in text] == [], text
        return text

    def locks(self, query: str = "") -> list[str]:
        """Return the names that `/api/locks` lists."""
        return [lock["name"] for lock in self.get(f"/api/locks{query}").json["locks"]]

    def settle(self) -> None:
        """Wait until the dashboard shows all that the store has."""
        until = time.monotonic() + 90
        while self.started and self.service.poll() != self.store.revision:
            assert time.monotonic() < until, "waited in vain for the table"
            time.sleep(0.001)

    def _wait_connected(self) -> None:
        """Wait until the dashboard trusts its table; it first asks the store about a restore."""
        until = time.monotonic() + 90
        while self.store.reachable and "mutexdash_store_connected 1.0" not in self.html("/metrics"):
            assert time.monotonic() < until, "waited in vain for the store"
            time.sleep(0.001)

    def __enter__(self) -> Board:
        self.service.start()
        self.started = True
        self.settle()
        self._wait_connected()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()


@contextmanager
def served(service: Service) -> Iterator[str]:
    """Have a started dashboard listen; yield its URL."""
    with closing(service.server(("127.0.0.1", 0))) as server:
        server.start()
        yield server.url


@contextmanager
def dashboard(settings: Settings, flags: str = "") -> Iterator[str]:
    """Serve what `mutexdash` does with these settings and flags, in this process; yield its URL."""
    with closing(open_store(settings)) as store:
        service = Service(store, options_of(flags, settings.url()))
        service.start()
        try:
            with served(service) as url:
                yield url
        finally:
            service.stop()


def hashed(password: str) -> str:
    """Return a line's hash as `htpasswd -B` writes it, quick to check."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
