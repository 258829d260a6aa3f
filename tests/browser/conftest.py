"""A real Chromium, the real dashboard, a real etcd."""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.request_types import Remove, TakeOrQueue, Unlock
from lockclient.stores.settings import Settings
from tests.support import locks
from tests.support.board import dashboard
from tests.support.etcd_binary import Etcdctl, put_at_once
from tests.support.pages import request
from tests.support.processes import needed, wait_until

expect.set_options(timeout=30_000)  # milliseconds: five seconds can be too few for a busy machine

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@pytest.fixture(scope="session")
def _chromium() -> Iterator[tuple[Browser, AbstractEventLoop | None]]:
    """A browser for all tests, and the event loop of its driver, which is this thread's.

    It is that only for the time of each test of a browser: others have loops of their own.
    """
    program = needed("chromium")
    with sync_playwright() as playwright:
        # Without its sandbox it also runs as root and in containers; it only sees our own pages.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        loop = asyncio.events._get_running_loop()
        asyncio.events._set_running_loop(None)
        yield browser, loop
        asyncio.events._set_running_loop(loop)
        browser.close()


@pytest.fixture
def chromium(_chromium: tuple[Browser, AbstractEventLoop | None]) -> Iterator[Browser]:
    browser, loop = _chromium
    asyncio.events._set_running_loop(loop)
    yield browser
    asyncio.events._set_running_loop(None)


Viewer = Callable[..., Any]


@pytest.fixture
def viewer(chromium: Browser, request: pytest.FixtureRequest) -> Viewer:
    """Open a page in a fresh browser context; it must have run into no error when it is closed."""
    told = request.getfixturevalue("story") if "story" in request.fixturenames else None

    @contextmanager
    def look(url: str, **context: Any) -> Iterator[Page]:
        if told is not None:
            told.reach(url)
        context.setdefault("viewport", {"width": 1280, "height": 800})
        opened = chromium.new_context(**context)
        opened.set_default_timeout(30_000)
        opened.add_init_script(_WATCH)
        page = opened.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text)
                # The console also reports each answer that is no success; that is no fault.
                if said.type in ("error", "warning") and "Failed to load resource" not in said.text
                else None
            ),
        )
        page.goto(url)
        yield page
        if context.get("java_script_enabled", True):
            complaints += page.evaluate("window.violations")
        opened.close()
        assert complaints == []

    return look


@pytest.fixture
def dash(settings: Settings) -> Iterator[str]:
    """The URL of a dashboard."""
    with dashboard(settings) as url:
        yield url


@pytest.fixture
def forcing(settings: Settings) -> Iterator[str]:
    """The URL of one with all that it can have: force-unlock, and a Prometheus to link to."""
    with dashboard(settings, " ".join(FORCING)) as url:
        yield url


FORCING = ("--allow-force-unlock", "--prometheus-url", "http://127.0.0.1:9090")


class Story:
    """Writes locks of all kinds, as clients elsewhere would, with stamps of any age."""

    def __init__(
        self, store: Any, etcdctl: Etcdctl | None = None, root: str = Settings().root
    ) -> None:
        self.store = store
        self._etcdctl = etcdctl
        self._root = root
        self.removals: list[Holder] = []
        self.revision = 0

    def hold(
        self, name: str, held_for: float = 0, alert: float = 300, unlock: float | None = 900,
        **facts: Any,
    ) -> Holder:  # fmt: skip
        taken = time.time() - held_for
        told: dict[str, Any] = {
            "hostname": "worker-1",
            "pid": 4711,
            "thread": "MainThread",
            "reason": "",
        }
        told |= {"uuid": str(uuid4()), "client": "clustermutex/0.1.0 python/3.11.2"}
        holder = Holder(
            name,
            **told | facts,
            locked_at=taken,
            alert_at=taken + alert,
            auto_unlock_at=None if unlock is None else taken + unlock,
            expected_runtime=alert,
            auto_unlock_after=unlock,
        )
        _, self.revision = locks.take(self.store, holder)
        return holder

    def reach(self, url: str) -> None:
        """Wait until the dashboard that has this address knows all that is held."""

        def there() -> bool:
            # Before it has read everything it refuses.
            answer = request(url, "/api/locks?per_page=1")
            return answer.status == 200 and bool(answer.json["revision"] >= self.revision)

        wait_until(there, what="the dashboard to know what is held")

    def wait(self, holder: Holder, **facts: Any) -> None:
        uuid = str(uuid4())
        ticket = Ticket(holder.name, uuid, **facts)
        locks.ask(self.store, TakeOrQueue(Holder(holder.name, uuid), ticket))

    def line_up(self, holder: Holder, line: Sequence[Mapping[str, Any]]) -> None:
        """Put all of these in line at once, who stay there: a ticket of a client has a lease of
        seconds, these have none."""
        assert self._etcdctl is not None
        # They are in one transaction, and so of one revision: the key gives their order.
        uuids = sorted(str(uuid4()) for _ in line)
        values = {
            uuid: Ticket(holder.name, uuid, **facts).value()
            for uuid, facts in zip(uuids, line, strict=True)
        }
        put_at_once(self._etcdctl, f"{self._root}/queue/{quote(holder.name, safe='')}/", values)

    def release(self, holder: Holder) -> None:
        locks.ask(self.store, Unlock(holder.name, str(holder.uuid)))

    def remove(self, holder: Holder, **facts: Any) -> None:
        self.removals.append(holder)
        locks.ask(self.store, Remove(Removal(holder, **facts), None))

    def unlocker(self) -> None:
        self.store.announce("watchdog-1:77", "{}", 600, Deadline.after(30))


@pytest.fixture
def story(store: Any, etcdctl: Etcdctl, root: str) -> Story:
    told = Story(store, etcdctl, root)
    told.unlocker()
    return told
