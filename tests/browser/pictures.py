"""The pictures of the documentation: `make pictures` draws them into `docs/pictures/`.

They show the real pages of a dashboard whose store is in memory, so that a day can be played in a
second and all addresses are what they are as a rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from playwright.sync_api import Browser, expect, sync_playwright

from lockclient.service.http_server import HttpServer
from mutexdash.markup.cluster_label import ClusterLabel
from mutexdash.security.access import Access
from tests.support.dashboard_fakes import Board
from tests.support.processes import needed

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
PAGES = {
    "locks": "/",
    "lock": "/lock/deploy%2Fprod",
    "force": "/locks/deploy%2Fprod/force-unlock?uuid={uuid}",
    "timeline": "/timeline?span=15m",
}
AT = ".prod.example.com"
RELEASE = """\
  File "/srv/ci/runner.py", line 31, in <module>
    app.worker_main()
  File "/srv/ci/.venv/lib/python3.11/site-packages/celery/app/base.py", line 388, in worker_main
    self.start(argv)
  File "/srv/ci/release/roll_out.py", line 57, in roll_out
    with ClusterMutex("deploy/prod", reason=f"release {version}"):
"""
MIGRATION = """\
  File "/srv/db/migrate.py", line 112, in <module>
    migrate(sys.argv[1])
  File "/srv/db/migrate.py", line 96, in migrate
    with ClusterMutex("schema-migration", auto_unlock_after=None, reason=version):
"""


class Day:
    """Writes what happened, some of it earlier on the dashboard's own clock."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.uuids: dict[str, str] = {}

    def take(
        self, name: str, held_for: float, host: str, pid: int, reason: str, **said: Any
    ) -> None:
        uuid = self.uuids[name] = str(uuid4())
        facts = {"uuid": uuid, "hostname": host + AT, "pid": pid, "reason": reason} | said
        self._board.store.take(name, held_for=held_for, **facts)

    def held(self, name: str, began: float, ended: float, how: str = "") -> None:
        """Have somebody have held a lock, until so many seconds ago."""
        board = self._board
        uuid = self.uuids[name] = str(uuid4())
        board.store.take(name, held_for=began, uuid=uuid, hostname="worker-1" + AT)
        board.settle()
        board.ahead = -ended
        if how:
            why = "worker hung" if how == "force-unlock" else "no heartbeat for 2 min"
            board.store.removed(name, uuid, how=how, removed_by="ann@desk", why=why)
        board.store.release(name)
        board.settle()
        board.ahead = 0.0


def play(board: Board) -> Day:
    """A cluster on an ordinary bad day."""
    day = Day(board)
    board.store.unlocker()
    for name, spans in {
        "billing/invoice-run": ((605, 540), (510, 455), (390, 300), (235, 120)),
        "deploy/staging": ((620, 555), (554, 470), (469, 380), (330, 285), (280, 250), (110, 30)),
        "search/reindex": ((600, 575), (545, 505), (460, 440), (420, 380), (310, 280), (205, 190)),
        "nightly-report": ((630, 520), (519, 430), (429, 335), (334, 240), (239, 170), (169, 105)),
    }.items():
        for began, ended in spans:
            day.held(name, began, ended)
    day.held("sync/region-2", 575, 425, "auto-unlock")
    day.held("sync/region-2", 236, 135, "auto-unlock")
    day.held("sync/region-4", 500, 60, "force-unlock")

    day.take("billing/invoice-run", 1505, "bill-3", 2207, "invoices of October, second attempt")
    day.take("half-written", 62, "web-1", 4711, "", alert_at="tomorrow")
    moved = f"{time.time() + 86_400:.3f}"
    day.take("deploy/eu", 62, "ci-runner-1", 44, "release 2026.11.4", auto_unlock_at=moved)
    day.take(
        "schema-migration", 9000, "db-admin", 66, "v41", alert=3600.0, unlock=None, actor="B",
        backtrace=MIGRATION,
    )  # fmt: skip
    day.take(
        "deploy/prod", 430, "ci-runner-3", 30415, "release 2026.11.3", actor="A",
        identity="runner-3", backtrace=RELEASE,
    )  # fmt: skip
    day.take("nightly-report", 101, "batch-07", 20713, "rebuild totals")
    day.take("search/reindex", 14, "search-2", 5120, "full reindex")
    day.take("worker/heartbeat", 432_000, "keep-1", 4711, "consumes the events' queue")
    board.store.push("worker/heartbeat")
    for number in range(10):
        day.take(
            f"compact/tenant-{number:02}/shard-{number}", 2 + 3.7 * number, f"worker-{number}",
            1000 + 7 * number, f"compaction, level {number % 4}",
        )  # fmt: skip

    def wait(name: str, host: str, pid: int, ago: float, **said: Any) -> None:
        facts = {"hostname": host + AT, "pid": pid, "thread": "MainThread"} | said
        board.store.wait(name, str(uuid4()), since=time.time() - ago, **facts)

    wait("deploy/prod", "db-admin", 66, 320, actor="B", reason="v41")
    for number in range(4, 9):
        wait("deploy/prod", f"ci-runner-{number}", 900 + number, 360 - 40 * number,
             reason=f"release 2026.11.{number}")  # fmt: skip
    wait("schema-migration", "ci-runner-3", 30415, 300, actor="A", reason="release 2026.11.3")
    return day


@contextmanager
def served() -> Iterator[tuple[str, Day]]:
    """Serve the dashboard of such a day."""
    with Board(access=Access(allow_force_unlock=True), label=ClusterLabel("prod", "red")) as board:
        day = play(board)
        board.settle()
        board.live.start()
        server = HttpServer(board.app, ("127.0.0.1", 0))
        server.start()
        try:
            yield server.url, day
        finally:
            server.close()
            board.live.stop()


def draw(browser: Browser, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with served() as (url, day):
        context = browser.new_context(
            viewport={"width": 1400, "height": 900}, color_scheme="light", reduced_motion="reduce",
            timezone_id="Europe/Berlin",
        )  # fmt: skip
        page = context.new_page()
        for name, path in PAGES.items():
            page.goto(url + path.format(uuid=day.uuids["deploy/prod"]))
            expect(page.locator("#theme")).to_be_visible()
            page.screenshot(path=folder / f"dashboard-{name}.png", full_page=name != "locks")
        context.close()


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needed("chromium"), args=["--no-sandbox"]
        )
        draw(browser, FOLDER)
        browser.close()


if __name__ == "__main__":
    main()
