"""The figures to reach: what the project asks of itself, worked out from the other sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]


def pick(found: Any, path: str) -> Any:
    """Return what stands at a path like `unlocker/single/median`; a number is a row of a list.

    Raises:
        KeyError, IndexError: it was not measured.
    """
    for key in path.split("/"):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


_SCALES = {"": 1, "s": 1, "ms": 1e-3, "µs": 1e-6, "%": 0.01, "kB": 1e3, "MB": 1e6}


@dataclass(frozen=True)
class Figure:
    """One figure to reach: at most `target`, or with `at_least` at least.

    Attributes:
        measure: where it stands in the results, or what works it out; of a ratio of medians, the
            quartiles of the rounds are reported, too.
        unit: of the target; the results are in seconds, bytes and shares.
    """

    what: str
    target: float
    measure: str | Callable[[Results], Any]
    unit: str = ""
    at_least: bool = False

    def row(self, sections: Results) -> dict[str, Any]:
        """Return the figure as it is reported; `reached` is None where it was not measured."""
        row: dict[str, Any] = {
            "what": self.what,
            "target": self.target,
            "at_least": self.at_least,
            "unit": self.unit,
        }
        try:
            measure = self.measure
            found = pick(sections, measure) if isinstance(measure, str) else measure(sections)
        except (KeyError, IndexError, StopIteration):
            return row | {"reached": None, "low": None, "high": None, "met": None}
        ratio = found if isinstance(found, Mapping) else {"ratio": found, "low": None, "high": None}
        reached = ratio["ratio"] / _SCALES[self.unit]
        met = reached >= self.target if self.at_least else reached <= self.target
        return row | {"reached": reached, "low": ratio["low"], "high": ratio["high"], "met": met}


def figures(sections: Results) -> list[dict[str, Any]]:
    """Return a row for each figure."""
    return [figure.row(sections) for figure in FIGURES]


def _row_of(section: str, key: str, **wanted: object) -> Callable[[Results], Any]:
    """Return what finds a value in the row of a section that has these values."""

    def measure(sections: Results) -> Any:
        rows = sections[section]
        return next(
            row[key] for row in rows if all(row[name] == value for name, value in wanted.items())
        )

    return measure


def _handover(key: str, waiters: int) -> Callable[[Results], Any]:
    return _row_of("handover", key, contender="ours", waiters=waiters, busy=False)


def _threads(threads: int) -> Figure:
    what = f"{threads} thread{'s' * (threads > 1)}, cycles a second / bare floor"
    measure = _row_of("throughput", "ours_over_floor", processes=1, threads=threads)
    return Figure(what, 0.9, measure, at_least=True)


def _requests(sections: Results) -> float:
    # Counted between two readings of etcd's own metrics, at the edges of which a hand-over is
    # under way: with 120 of them, the second decimal is not to be had.
    rows = [row for row in sections["handover"] if row["contender"] == "ours"]
    return float(max(round(row["requests"], 1) for row in rows))


def _caller(sections: Results) -> float:
    cycle = sections["cycle"]
    return float(cycle["ClusterMutex"]["caller_cpu"] / cycle["bare floor"]["caller_cpu"])


def _unlocker_idle(sections: Results) -> float:
    found = sections["unlocker"]
    # A reading of everything costs what the first one did. It may not have come in that time.
    return float(found["idle"] + found["ready_cpu"] / found["resync"])


def _valkey_cpu(sections: Results) -> float:
    services = sections["valkey"]["services"]
    return float(max(services[name]["cpu"] for name in ("unlocker", "mutexdash")))


def _valkey(what: str, target: float, path: str) -> Figure:
    return Figure(f"Valkey, {what}", target, f"valkey/{path}/ours_over_this")


def _bucket_requests(sections: Results) -> int:
    return sum(sections["bucket"][step] for step in ("take", "between", "release"))


_FSYNC = "redis-py Lock, appendfsync always"
_SCRAPE = "a scrape of /metrics, p99 with 500 pushes a second"
_HINT = "hand-over by hint / bare publish and take"
_LOOK = "a look at 20,000 locks on five servers"

FIGURES = (
    Figure("cycle / bare floor", 1.12, "cycle/bare floor/ours_over_this"),
    Figure("CPU of the calling thread, cycle / bare floor", 1.2, _caller),
    Figure("cycle / etcd3 Lock", 0.75, "cycle/etcd3 Lock/ours_over_this"),
    Figure("cycle / kazoo Lock", 0.7, "cycle/kazoo Lock, ZooKeeper/ours_over_this"),
    Figure("cycle / redis-py Lock with appendfsync always", 2.3, f"cycle/{_FSYNC}/ours_over_this"),
    Figure("hand-over, 1 waiter / bare floor", 1.2, _handover("over_floor", 1)),
    Figure("hand-over, 1,000 waiters / 1 waiter", 1.3, _handover("over_one_waiter", 1000)),
    Figure("requests etcd serves for a hand-over, at most, whatever the line", 4, _requests),
    Figure("alive() that need not push, median", 1, "alive/alive/median", "µs"),
    *map(_threads, (1, 16, 64)),
    Figure("unlocker, start to ready", 10, "unlocker/ready", "s"),
    Figure("unlocker, memory at most", 150, "unlocker/peak_rss", "MB"),
    Figure("unlocker, CPU with nothing changing, resync included", 3, _unlocker_idle, "%"),
    Figure("unlocker, CPU with 500 pushes a second", 14, "unlocker/busy", "%"),
    Figure("unlocker, from due to removed, median", 0.6, "unlocker/single/median", "s"),
    Figure("unlocker, from due to removed, p99", 1.5, "unlocker/single/p99", "s"),
    Figure("unlocker, 1,000 due at the same moment, all removed", 5, "unlocker/at_once", "s"),
    Figure(f"unlocker, {_SCRAPE}", 50, "unlocker/busy_scrape/p99", "ms"),
    Figure("dashboard, an unchanged poll of 200 viewers, p99", 20, "dashboard/poll/p99", "ms"),
    Figure("dashboard, 1,000 locks as JSON, compressed", 40, "dashboard/json_compressed", "kB"),
    Figure("dashboard, first page of 50,000 locks, p95", 60, "dashboard/first_page/p95", "ms"),
    Figure("dashboard, search over 50,000 locks, p95", 150, "dashboard/search/p95", "ms"),
    Figure("dashboard, memory at most", 250, "dashboard/peak_rss", "MB"),
    Figure("bucket, requests to take and release a free lock", 2, _bucket_requests),
    Figure("bucket, acquire / one bare request", 1.1, "bucket/acquire_over_request"),
    _valkey("one server: cycle / valkey-py Lock", 1.15, "cycle/1/valkey-py Lock/main"),
    _valkey("five servers: cycle / bare floor", 1.25, "cycle/5/bare floor/main"),
    _valkey("five servers: cycle / pottery", 0.4, "cycle/5/pottery Redlock/main"),
    Figure(f"Valkey, {_HINT}", 1.3, "valkey/handover/5/over_floor"),
    Figure(f"Valkey, {_LOOK}", 1, "valkey/services/look/median", "s"),
    Figure("Valkey, unlocker or dashboard with these, CPU", 25, _valkey_cpu, "%"),
)
