"""The figures to reach: what the project asks of itself, worked out from the other sections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.contenders import ETCD3, KAZOO, REDIS_FSYNC
from benchmarks.hot import GO

Results = dict[str, Any]

_SCALES = {"": 1, "s": 1, "ms": 1e-3, "µs": 1e-6, "%": 0.01, "kB": 1e3, "MB": 1e6}


def pick(found: Any, path: str) -> Any:
    """Return what stands at a path like `unlocker/single/median`; `name=value,…` is a list's row.

    Raises:
        KeyError, StopIteration: it was not measured.
    """
    for key in path.split("/"):
        if isinstance(found, list):
            wanted = dict(pair.split("=") for pair in key.split(","))
            rows = (row for row in found if wanted.items() <= {n: str(row[n]) for n in row}.items())
            found = next(rows)
        else:
            found = found[key]
    return found


class Figure(NamedTuple):
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
        row: dict[str, Any] = self._asdict() | dict.fromkeys(("reached", "low", "high", "met"))
        measure = row.pop("measure")
        try:
            found = pick(sections, measure) if isinstance(measure, str) else measure(sections)
        except (KeyError, StopIteration):
            return row
        ratio = found if isinstance(found, dict) else {"ratio": found, "low": None, "high": None}
        reached = ratio["ratio"] / _SCALES[self.unit]
        met = reached >= self.target if self.at_least else reached <= self.target
        return row | {"reached": reached, "low": ratio["low"], "high": ratio["high"], "met": met}


def _requests(sections: Results) -> float:
    # Counted between two readings of etcd's own metrics, at the edges of which a hand-over is
    # under way: with 120 of them, the second decimal is not to be had.
    ours = (row for row in sections["handover"] if row["contender"] == "ours")
    return max(round(float(row["requests"]), 1) for row in ours)


def _unlocker_idle(sections: Results) -> float:
    found = sections["unlocker"]
    # A reading of everything costs what the first one did. It may not have come in that time.
    return float(found["idle"] + found["ready_cpu"] / found["resync"])


def _hot(peer: str, clients: int) -> Callable[[Results], Any]:
    def measure(sections: Results) -> Any:
        case = {"contender": peer, "clients": clients, "hold": 0.0}
        rows = (row for row in sections["hot"] if case.items() <= row.items())
        return next(rows)["ours_over_this"]

    return measure


_CPU, _FLOOR = "caller_cpu", "cycle/bare floor"
_FSYNC = f"cycle/{REDIS_FSYNC}/ours_over_this"
_ONE = "handover/contender=ours,waiters=1,busy=False/over_floor"
_MANY = "handover/contender=ours,waiters=1000,busy=False/over_one_waiter"
_SCRAPE = "unlocker, a scrape of /metrics, p99 with 500 pushes a second"
_HINT = "Valkey, hand-over by hint / bare publish and take"
_SERVICES = ("unlocker", "mutexdash")
_LOOK = "Valkey, a look at 20,000 locks on five servers"

FIGURES = (
    Figure("cycle / bare floor", 1.12, f"{_FLOOR}/ours_over_this"),
    Figure(
        *("CPU of the calling thread, cycle / bare floor", 1.2),
        lambda found: pick(found, f"cycle/ClusterMutex/{_CPU}") / pick(found, f"{_FLOOR}/{_CPU}"),
    ),
    Figure("cycle / etcd3 Lock", 0.75, f"cycle/{ETCD3}/ours_over_this"),
    Figure("cycle / kazoo Lock", 0.7, f"cycle/{KAZOO}/ours_over_this"),
    Figure("cycle / redis-py Lock with appendfsync always", 2.3, _FSYNC),
    Figure("hand-over, 1 waiter / bare floor", 1.2, _ONE),
    Figure("hand-over, 1,000 waiters / 1 waiter", 1.3, _MANY),
    Figure("requests etcd serves for a hand-over, at most, whatever the queue", 5, _requests),
    *(
        Figure(
            f"a hot lock, {clients} processes, locks a second / {peer}",
            *(target, _hot(peer, clients)),
            at_least=True,
        )
        for peer, target, sizes in ((GO, 8, (2,)), (KAZOO, 0.75, (2, 3, 5, 10)))
        for clients in sizes
    ),
    *(
        Figure(
            f"a hot lock, {clients} processes, requests for a lock",
            *(target, f"hot/contender=ours,clients={clients},hold=0.0/requests"),
        )
        for clients, target in ((2, 4.3), (10, 4.7))
    ),
    Figure("alive() that need not push, median", 1, "alive/alive/median", "µs"),
    *(
        Figure(
            f"{threads} thread{'s' * (threads > 1)}, cycles a second / bare floor",
            *(0.9, f"throughput/processes=1,threads={threads}/ours_over_floor"),
            at_least=True,
        )
        for threads in (1, 16, 64)
    ),
    Figure("unlocker, start to ready", 10, "unlocker/ready", "s"),
    Figure("unlocker, memory at most", 150, "unlocker/peak_rss", "MB"),
    Figure("unlocker, CPU with nothing changing, resync included", 3, _unlocker_idle, "%"),
    Figure("unlocker, CPU with 500 pushes a second", 14, "unlocker/busy", "%"),
    Figure("unlocker, from due to removed, median", 0.6, "unlocker/single/median", "s"),
    Figure("unlocker, from due to removed, p99", 1.5, "unlocker/single/p99", "s"),
    Figure("unlocker, 1,000 due at the same moment, all removed", 5, "unlocker/at_once", "s"),
    Figure(_SCRAPE, 50, "unlocker/busy_scrape/p99", "ms"),
    Figure("dashboard, an unchanged poll of 200 viewers, p99", 20, "dashboard/poll/p99", "ms"),
    Figure("dashboard, 1,000 locks as JSON, compressed", 40, "dashboard/json_compressed", "kB"),
    Figure("dashboard, first page of 50,000 locks, p95", 60, "dashboard/first_page/p95", "ms"),
    Figure("dashboard, search over 50,000 locks, p95", 150, "dashboard/search/p95", "ms"),
    Figure("dashboard, memory at most", 250, "dashboard/peak_rss", "MB"),
    Figure(
        *("bucket, requests to take and release a free lock", 2),
        lambda found: sum(found["bucket"][step] for step in ("take", "between", "release")),
    ),
    Figure("bucket, acquire / one bare request", 1.1, "bucket/acquire_over_request"),
    *(
        Figure(f"Valkey, {what}", target, f"valkey/cycle/{path}/main/ours_over_this")
        for what, target, path in (
            ("one server: cycle / valkey-py Lock", 1.15, "1/valkey-py Lock"),
            ("five servers: cycle / bare floor", 1.25, "5/bare floor"),
            ("five servers: cycle / pottery", 0.4, "5/pottery Redlock"),
        )
    ),
    Figure(_HINT, 1.3, "valkey/handover/5/over_floor"),
    Figure(_LOOK, 1, "valkey/services/look/median", "s"),
    Figure(
        *("Valkey, unlocker or dashboard with these, CPU", 25),
        lambda found: max(pick(found, f"valkey/services/{name}/cpu") for name in _SERVICES),
        "%",
    ),
)
