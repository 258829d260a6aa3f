"""Scenes: dashboards over stores in memory, each in another state.

`pictures.py` draws their pages, `test_pages_fit.py` checks their layout and accessibility. Names
and addresses are typical ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from tests.support.board import Board, served

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
FLAGS = "--allow-force-unlock --title prod --colour red --prometheus-url http://127.0.0.1:9090"


@dataclass(frozen=True)
class Scene:
    """A state of a cluster, and the paths of the pages that show it, by their pictures' names.

    `{uuid}` in a path stands for the uuid of `deploy/prod`'s holder.
    """

    play: Callable[[Day], None]
    paths: Mapping[str, str]


class Day:
    """Writes what happened, some of it earlier on the dashboard's own clock."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.uuids: dict[str, str] = {}

    def take(
        self, name: str, held_for: float, host: str, pid: int, reason: str, **said: Any
    ) -> None:
        uuid = self.uuids[name] = str(uuid4())
        facts = {"uuid": uuid, "hostname": host + AT, "pid": pid, "reason": reason} | said
        self.board.store.take(name, held_for=held_for, **facts)

    def wait(self, name: str, host: str, pid: int, ago: float, **said: Any) -> None:
        facts = {"hostname": host + AT, "pid": pid, "thread": "MainThread"} | said
        self.board.store.wait(name, str(uuid4()), since=time.time() - ago, **facts)

    def held(self, name: str, began: float, ended: float, how: str = "") -> None:
        """Have somebody have held a lock, until so many seconds ago."""
        board = self.board
        uuid = self.uuids[name] = str(uuid4())
        board.store.take(name, held_for=began, uuid=uuid, hostname="worker-1" + AT)
        board.settle()
        board.ahead = -ended
        if how:
            why = "worker hung" if how == "force-unlock" else "no heartbeat for 2 min"
            who = {"hostname": "worker-1" + AT, "pid": 811, "locked_at": time.time() - began}
            by = {"removed_by": "ann@desk" if how == "force-unlock" else "watchdog-1:77"}
            board.store.removed(
                name, uuid, how=how, why=why, removed_at=time.time() - ended, **who, **by
            )
        board.store.release(name)
        board.settle()
        board.ahead = 0.0


@contextmanager
def shown(scene: Scene) -> Iterator[tuple[str, Mapping[str, str], Board]]:
    """Serve a scene; yield its URL, its paths and the board."""
    with Board(FLAGS) as board:
        board.store.unlocker()
        day = Day(board)
        scene.play(day)
        board.settle()
        uuid = day.uuids.get("deploy/prod", "")
        with served(board.service) as url:
            yield url, {name: path.format(uuid=uuid) for name, path in scene.paths.items()}, board


# ---------------------------------------------------------------- scenes


def ordinary_bad_day(day: Day) -> None:
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
    day.take("deploy/eu", 62, "ci-runner-1", 44, "release 2026.11.4")
    day.board.store.write(("locks", "deploy/eu", "auto_unlock_at", None))
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
    day.board.store.push("worker/heartbeat")
    for number in range(10):
        day.take(
            f"compact/tenant-{number:02}/shard-{number}", 2 + 3.7 * number, f"worker-{number}",
            1000 + 7 * number, f"compaction, level {number % 4}",
        )  # fmt: skip
    day.wait("deploy/prod", "db-admin", 66, 320, actor="B", reason="v41")
    for number in range(4, 9):
        day.wait("deploy/prod", f"ci-runner-{number}", 900 + number, 360 - 40 * number,
                 reason=f"release 2026.11.{number}")  # fmt: skip
    day.wait("schema-migration", "ci-runner-3", 30415, 300, actor="A", reason="release 2026.11.3")


def many_locks(day: Day) -> None:
    """Five hundred, of hosts as they are called, and as many waiters as there may be."""
    ordinary_bad_day(day)
    for number in range(500):
        day.take(
            f"billing/tenant-{number:04}/invoice-run", 7.1 * (number % 100) + number // 4,
            f"bill-{number % 40}", 30_000 + number, "invoices of October, after the timeout",
            unlock=None if number % 50 == 7 else 900,
        )  # fmt: skip
    for number in range(125):
        name = ("deploy/prod", "schema-migration")[bool(number % 3)]
        day.wait(name, f"ci-runner-{number}", 900 + number, 700 - number, reason="release 2026.12")


def bad_night(day: Day) -> None:
    """Everything that can be wrong at once, with the longest names and texts."""
    day.take("nightly-report", 2000, "batch-07", 20713, "rebuild totals")
    for number in range(30):
        day.wait("nightly-report", f"web-{number}", 900 + number, 1500 - number, reason="totals")
    day.take("video/convert", 40_000, "gpu-2", 7, "hangs, and looks healthy", alert=50_000,
             unlock=60_000, keepalive=True, max_hold=7200.0)  # fmt: skip
    day.take("deploy/new", 200, "ci-1", 44, "4", format=2)
    day.take("deploy/pr\u043ed", 100, "ci-1", 44, "its o is Cyrillic")
    day.take("deploy/prod", 430, "ci-3", 44, "release 2026.11.3", backtrace=RELEASE)
    day.take("job/" + "long-" * 40 + "end", 350, "h" * 63, 7, "why " * 100)
    name = "\u0440\u0435\u0437\u0435\u0440\u0432/\u5099\u4efd \U0001f512"
    day.take(name, 310, "\u0441\u0435\u0440\u0432\u0435\u0440", 7, "")
    day.take("from-go", 290, "go", 7, "", client="golocks/2.1 go/1.22", thread=None)
    day.wait("waited-for", "next-1", 71, 300)


EVIL = "<img src=x onerror=alert(1)>\u202egnp.exe\u200b"

MARKUP = (
    *("<script>alert(1)</script>", "</script></pre></td></table>", "<svg/onload=alert(1)>"),
    *("\"' onfocus=alert(1) autofocus x='", "javascript:alert(1)", "{{7*7}}{% raise %}"),
    *("<iframe srcdoc='<script>alert(1)</script>'>", "<style>*{display:none}</style>"),
)


def hostile(day: Day) -> None:
    facts = dict.fromkeys(("hostname", "thread", "client", "identity"), EVIL)
    day.take(EVIL, 60, "", 7, EVIL * 3, **facts, backtrace=EVIL * 40 + "<" * 10_000)
    for text in MARKUP:
        day.take(text, 60, text, 7, text, thread=text, identity=text, client=text, backtrace=text)
    day.take("deploy/prod", 60, "h" * 500, 7, "Z̷̛͓a̴l̸g̶o̵" * 20)
    day.board.store.wait(EVIL, "w", hostname=EVIL, reason=EVIL * 3)
    facts = {"removed_by": EVIL, "how": EVIL, "why": json.dumps(EVIL) * 3, "hostname": EVIL}
    day.board.store.removed("x" * 255, "u", **facts, reason="y" * 400, removed_at=5.0)


def no_locks(day: Day) -> None:
    day.board.store.unlocker(runs=False)


def store_away(day: Day) -> None:
    ordinary_bad_day(day)
    day.board.settle()
    day.board.store.reachable = False


FORCE = "/locks/deploy%2Fprod/force-unlock?uuid={uuid}"
SCENES = {
    "day": Scene(ordinary_bad_day, {
        "locks": "/", "lock": "/lock/deploy%2Fprod", "force": FORCE, "waiting": "/waiting",
        "timeline": "/timeline?span=15m", "hosts": "/hosts",
        "host": f"/host?name=ci-runner-3{AT}", "lock-overdue": "/lock/billing%2Finvoice-run",
        "lock-broken": "/lock/half-written", "lock-undecided": "/lock/deploy%2Feu",
        "lock-for-a-person": "/lock/schema-migration", "removed": "/removed",
        "lock-removed": "/lock/sync%2Fregion-2", "search": "/?q=host:bill-3+-state:ok",
    }),
    "many": Scene(many_locks, {
        "locks": "/", "waiting": "/waiting", "hosts": "/hosts", "timeline": "/timeline",
        "host": f"/host?name=bill-3{AT}", "deadlock": "/lock/deploy%2Fprod",
    }),
    "night": Scene(bad_night, {
        "locks": "/", "dead": "/lock/nightly-report", "hung": "/lock/video%2Fconvert",
        "format": "/lock/deploy%2Fnew", "free": "/lock/waited-for", "waiting": "/waiting",
        "long": f"/lock/{quote('job/' + 'long-' * 40 + 'end', safe='')}", "hosts": "/hosts",
        "alike": "/lock/deploy%2Fprod", "timeline": "/timeline",
    }),
    "hostile": Scene(hostile, {
        "locks": "/", "lock": f"/lock/{quote(EVIL, safe='')}", "force": FORCE,
        "timeline": "/timeline", "removed": "/removed", "waiting": "/waiting",
    }),
    "empty": Scene(no_locks, {
        "locks": "/", "waiting": "/waiting", "removed": "/removed", "timeline": "/timeline",
        "lock": "/lock/never-taken", "bad-request": "/?sort=colour", "runbook": "/runbook",
    }),
    "away": Scene(store_away, {"locks": "/", "lock": "/lock/deploy%2Fprod", "force": FORCE}),
}  # fmt: skip
