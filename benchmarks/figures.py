"""The figures to reach: what the project asks of itself, worked out from the other sections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

Results = dict[str, Any]


@dataclass(frozen=True)
class Reached:
    """A figure as it was measured; the quartiles of the rounds where it is a ratio of medians."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Figure:
    """One figure to reach: at most `target`, or with `at_least` at least."""

    what: str
    target: float
    measure: Callable[[Results], Reached]
    at_least: bool = False
    unit: str = ""


def figures(sections: Results) -> list[dict[str, Any]]:
    """Return a row for each figure; `reached` is None where it was not measured."""
    rows = []
    for figure in FIGURES:
        row: dict[str, Any] = {
            "what": figure.what,
            "target": figure.target,
            "at_least": figure.at_least,
            "unit": figure.unit,
        }
        try:
            reached = figure.measure(sections)
        except (KeyError, StopIteration):
            rows.append(row | {"reached": None, "low": None, "high": None, "met": None})
            continue
        met = reached.value >= figure.target if figure.at_least else reached.value <= figure.target
        found = {"reached": reached.value, "low": reached.low, "high": reached.high, "met": met}
        rows.append(row | found)
    return rows


def _cycle(contender: str) -> Callable[[Results], Reached]:
    def measure(sections: Results) -> Reached:
        return _ratio(sections["cycle"][contender]["ours_over_this"])

    return measure


def _handover(waiters: int, key: str) -> Callable[[Results], Reached]:
    def measure(sections: Results) -> Reached:
        rows = sections["handover"]
        return _ratio(row_of(rows, contender="ours", waiters=waiters, busy=False)[key])

    return measure


def _requests(sections: Results) -> Reached:
    rows = [row for row in sections["handover"] if row["contender"] == "ours"]
    # Counted between two readings of etcd's own metrics, at the edges of which a hand-over is
    # under way: with 120 of them, the second decimal is not to be had.
    return Reached(max(round(row["requests"], 1) for row in rows))


def _alive(sections: Results) -> Reached:
    return Reached(sections["alive"]["alive"]["median"] * 1e6)


def _caller(sections: Results) -> Reached:
    ours, floor = (sections["cycle"][each]["caller_cpu"] for each in ("ClusterMutex", "bare floor"))
    return Reached(ours / floor)


def _threads(count: int) -> Callable[[Results], Reached]:
    def measure(sections: Results) -> Reached:
        row = row_of(sections["throughput"], processes=1, threads=count)
        return _ratio(row["ours_over_floor"])

    return measure


def _single(section: str, *keys: str, unit: float = 1.0) -> Callable[[Results], Reached]:
    def measure(sections: Results) -> Reached:
        found = sections[section]
        for key in keys:
            found = found[key]
        return Reached(found / unit)

    return measure


_unlocker, _dashboard = partial(_single, "unlocker"), partial(_single, "dashboard")


def _unlocker_idle(sections: Results) -> Reached:
    found = sections["unlocker"]
    # A reading of everything costs what the first one did. It may not have come in that time.
    return Reached((found["idle"] + found["ready_cpu"] / found["resync"]) * 100)


def _bucket_requests(sections: Results) -> Reached:
    found = sections["bucket"]
    return Reached(found["take"] + found["between"] + found["release"])


def _bucket_acquire(sections: Results) -> Reached:
    return _ratio(sections["bucket"]["acquire_over_request"])


def _valkey_cycle(servers: int, contender: str) -> Callable[[Results], Reached]:
    def measure(sections: Results) -> Reached:
        row = sections["valkey"]["cycle"][str(servers)][contender]
        return _ratio(row["main"]["ours_over_this"])

    return measure


def _valkey_handover(sections: Results) -> Reached:
    return _ratio(sections["valkey"]["handover"]["5"]["over_floor"])


def _valkey_look(sections: Results) -> Reached:
    return Reached(sections["valkey"]["services"]["look"]["median"])


def _valkey_cpu(sections: Results) -> Reached:
    found = sections["valkey"]["services"]
    return Reached(max(found[each]["cpu"] for each in ("unlocker", "mutexdash")) * 100)


def _ratio(spread: dict[str, float]) -> Reached:
    return Reached(spread["ratio"], spread["low"], spread["high"])


def row_of(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    """Return the row that has these values; raises StopIteration if there is none."""
    return next(row for row in rows if all(row[key] == each for key, each in wanted.items()))


FIGURES = (
    Figure("cycle / bare floor", 1.12, _cycle("bare floor")),
    Figure("CPU of the calling thread, cycle / bare floor", 1.2, _caller),
    Figure("cycle / etcd3 Lock", 0.75, _cycle("etcd3 Lock")),
    Figure("cycle / kazoo Lock", 0.7, _cycle("kazoo Lock, ZooKeeper")),
    Figure(
        "cycle / redis-py Lock with appendfsync always",
        2.3,
        _cycle("redis-py Lock, appendfsync always"),
    ),
    Figure("hand-over, 1 waiter / bare floor", 1.2, _handover(1, "over_floor")),
    Figure("hand-over, 1,000 waiters / 1 waiter", 1.3, _handover(1000, "over_one_waiter")),
    Figure("requests etcd serves for a hand-over, at most, whatever the line", 4, _requests),
    Figure("alive() that need not push, median", 1, _alive, unit="µs"),
    Figure("1 thread, cycles a second / bare floor", 0.9, _threads(1), at_least=True),
    Figure("16 threads, cycles a second / bare floor", 0.9, _threads(16), at_least=True),
    Figure("64 threads, cycles a second / bare floor", 0.9, _threads(64), at_least=True),
    Figure("unlocker, start to ready", 10, _unlocker("ready"), unit="s"),
    Figure("unlocker, memory at most", 150, _unlocker("peak_rss", unit=1e6), unit="MB"),
    Figure("unlocker, CPU with nothing changing, resync included", 3, _unlocker_idle, unit="%"),
    Figure("unlocker, CPU with 500 pushes a second", 14, _unlocker("busy", unit=0.01), unit="%"),
    Figure("unlocker, from due to removed, median", 0.6, _unlocker("single", "median"), unit="s"),
    Figure("unlocker, from due to removed, p99", 1.5, _unlocker("single", "p99"), unit="s"),
    Figure(
        "unlocker, 1,000 due at the same moment, all removed", 5, _unlocker("at_once"), unit="s"
    ),
    Figure(
        "unlocker, a scrape of /metrics, p99 with 500 pushes a second",
        50,
        _unlocker("busy_scrape", "p99", unit=1e-3),
        unit="ms",
    ),
    Figure(
        "dashboard, an unchanged poll of 200 viewers, p99",
        20,
        _dashboard("poll", "p99", unit=1e-3),
        unit="ms",
    ),
    Figure(
        "dashboard, 1,000 locks as JSON, compressed",
        40,
        _dashboard("json_compressed", unit=1e3),
        unit="kB",
    ),
    Figure(
        "dashboard, first page of 50,000 locks, p95",
        60,
        _dashboard("first_page", "p95", unit=1e-3),
        unit="ms",
    ),
    Figure(
        "dashboard, search over 50,000 locks, p95",
        150,
        _dashboard("search", "p95", unit=1e-3),
        unit="ms",
    ),
    Figure("dashboard, memory at most", 250, _dashboard("peak_rss", unit=1e6), unit="MB"),
    Figure("bucket, requests to take and release a free lock", 2, _bucket_requests),
    Figure("bucket, acquire / one bare request", 1.1, _bucket_acquire),
    Figure("Valkey, one server: cycle / valkey-py Lock", 1.15, _valkey_cycle(1, "valkey-py Lock")),
    Figure("Valkey, five servers: cycle / bare floor", 1.25, _valkey_cycle(5, "bare floor")),
    Figure("Valkey, five servers: cycle / pottery", 0.4, _valkey_cycle(5, "pottery Redlock")),
    Figure("Valkey, hand-over by hint / bare publish and take", 1.3, _valkey_handover),
    Figure("Valkey, a look at 20,000 locks on five servers", 1, _valkey_look, unit="s"),
    Figure("Valkey, unlocker or dashboard with these, CPU", 25, _valkey_cpu, unit="%"),
)
