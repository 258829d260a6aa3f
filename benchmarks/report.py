"""Results as tables: printed, and put into the documentation between its marks.

A table is written down as templates: `{path/of/keys:format}` stands for a value of the results. The
formats are those of Python, and those of `UNITS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cycle import LOOP
from benchmarks.figures import Results, pick

NAMES = {"ours": "ClusterMutex", "floor": "bare floor", "etcd3": "etcd3 Lock"}

NOISE = 0.1
"""The share of the processors' time that others may take; the kernel's own work for us counts."""


def _duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    scales = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, size = next((scale for scale in scales if abs(seconds) >= scale[1]), scales[-1])
    return f"{seconds / size:,.2f} {unit}"


UNITS: dict[str, Callable[[Any], str]] = {
    "ms": lambda seconds: f"{seconds * 1e3:,.2f}",
    "us": lambda seconds: f"{seconds * 1e6:,.0f}",
    "time": _duration,
    "times": lambda ratio: "" if ratio is None else f"{ratio:.2f}",
    "kb": lambda size: f"{size / 1e3:,.1f} kB",
    "mb": lambda size: f"{size / 1e6:,.0f} MB",
    "round": lambda value: f"{float(f'{value:.1e}'):,.0f}",  # two digits that count, no more
    "servers": lambda number: _count(int(number), "server", "servers"),
}


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with what the results have for it."""

    def value(match: re.Match[str]) -> str:
        found, kind = pick(values, match[1]), match[2] or ""
        return UNITS[kind](found) if kind in UNITS else format(found, kind)

    return re.sub(r"\{([^{}:]+)(?::([^{}]*))?\}", value, template)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that reads well on a terminal and in Markdown; numbers stand right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    written = [
        f"| {' | '.join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])} |"
        for first, *others in lines
    ]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([written[0], f"|{rule}|", *written[1:]])


def columns(cells: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with a template for each column."""
    return table(list(cells), ([fill(cell, row) for cell in cells.values()] for row in rows))


def facts(head: str, cells: Iterable[tuple[str, str]], values: Mapping[str, Any]) -> str:
    """Return a table of two columns, with a template for each cell."""
    rows = ([fill(cell, values) for cell in row] for row in cells)
    return table(["", head] if "{" not in head else [fill(head, values), "measured"], rows)


def blocks(results: Results) -> dict[str, str]:
    """Return each part of the report by its name, Markdown; parts not measured are left out."""
    sections = results["sections"]
    found = {"machine": _machine(results)}
    found |= {
        name: write(sections[name]) for name, write in _SECTIONS.items() if sections.get(name)
    }
    if {"alive", "costs"} <= sections.keys():
        found["costs"] = _costs(sections)
    if "cluster" in sections:
        found["capacity"] = _capacity(sections["cluster"])
    if {"cycle", "handover", "alive", "unlocker"} <= sections.keys():
        found["short"] = _short(sections)
    found["figures"] = _figures(results["figures"])
    return found


TITLES = {
    "machine": "The machine",
    "short": "In short",
    "cycle": "Lock and unlock, nobody else wants it",
    "handover": "Hand-over",
    "throughput": "Cycles a second, each thread with a lock of its own",
    "costs": "What single parts cost",
    "cluster": "A three-member etcd, all of it on this machine",
    "capacity": "What a three-member etcd carries",
    "unlocker": "The unlocker with very many locks",
    "dashboard": "The dashboard with many viewers, and with very many locks",
    "bucket": "A lock in a bucket",
    "valkey": "Locks in Valkey and Redis",
    "figures": "The figures to reach",
}


def text(results: Results) -> str:
    """Return the whole report."""
    found = blocks(results)
    return "\n\n".join(f"{TITLES[name]}\n\n{found[name]}" for name in TITLES if name in found)


def write_docs(page: Path, results: Results, *, whole: bool = True) -> None:
    """Replace the parts of a page that stand between `<!-- bench: NAME -->` and `<!-- end -->`.

    Of a run that is not `whole` only the sections that it measured, each with what is said of its
    own run: the page's machine and figures are those of another one.

    Raises:
        ValueError: the page has a mark that nothing was measured for.
    """
    found = blocks(results)
    if not whole:
        reached = _figures([row for row in results["figures"] if row["reached"] is not None])
        sections = results["sections"].keys() & found.keys()
        found = {name: f"{found['machine']}\n\n{found[name]}\n\n{reached}" for name in sections}

    def part(match: re.Match[str]) -> str:
        name = match[1]
        if name not in found and not whole:
            return match[0]
        if name not in found:
            raise ValueError(f"{page} asks for {name!r}, which was not measured: run all sections.")
        return f"<!-- bench: {name} -->\n\n{found[name]}\n\n<!-- end -->"

    marks = re.compile(r"<!-- bench: (\w+) -->.*?<!-- end -->", re.DOTALL)
    page.write_text(marks.sub(part, page.read_text(encoding="utf-8")), encoding="utf-8")


# ---------------------------------------------------------------- the parts


def _machine(results: Results) -> str:
    paragraphs = [
        fill(
            "{machine/cores} cores ({machine/cpu}), {machine/memory_gib:g} GiB, {machine/kernel}, "
            "{machine/python}; data on {machine/file_system}, where a sync of 2 kB takes "
            "{machine/sync_to_disk:ms} ms. Load average before the run: {machine/load_before:.2f}; "
            "other programs took {machine/others:.0%} of the processors' time during it. Measured "
            "on {machine/date} in {minutes:.1f} minutes, servers and clients on the same cores.",
            results | {"minutes": results["took"] / 60},
        ),
        f"Versions: {', '.join(map(' '.join, results['machine']['versions'].items()))}.",
    ]
    if (others := results["machine"]["others"]) > NOISE:
        paragraphs.append(
            f"**Other programs took {others:.0%} of the processors' time during the run: do not "
            "trust these figures.**"
        )
    if results["missing"]:
        missing = "; ".join(f"{name}: {why}" for name, why in results["missing"].items())
        paragraphs.append(f"Missing on this machine, so not measured: {missing}.")
    if results["quick"]:
        paragraphs.append("A quick run, to see that it runs: its figures mean nothing.")
    return "\n\n".join(paragraphs)


def _short(sections: Results) -> str:
    """Say what a user asks first: what it costs, and beside what."""
    lines = [row for row in sections["handover"] if row["contender"] == "ours"]
    few, many = (choose(lines, key=lambda row: row["waiters"]) for choose in (min, max))
    peers = ", ".join(
        f"{name} {UNITS['ms'](row['median'])} ms"
        for name, row in sections["cycle"].items()
        if name not in (NAMES["ours"], NAMES["floor"])
    )
    return fill(
        "- **To take a free lock and release it: {cycle/ClusterMutex/median:ms} ms** (the two bare "
        "requests {cycle/bare floor/median:ms} ms; {peers}).\n"
        "- **From one holder's release to the next one's acquire: {few/median:ms} ms** with "
        "{few/waiters} in line, {many/median:ms} ms with {many/waiters:,}.\n"
        "- **`alive()` in a loop: {alive/alive/median:time}**, but once a second, when it writes "
        "two keys.\n"
        "- **A lock that is due is removed {unlocker/single/median:time} later**, of "
        "{unlocker/locks:,} that one unlocker watches with {unlocker/peak_rss:mb} of memory.",
        sections | {"few": few, "many": many, "peers": peers},
    )


def _cycle(section: Results) -> str:
    cells = {
        "": "{name}",
        "median, ms": "{median:ms}",
        "p99, ms": "{p99:ms}",
        f"{LOOP} in a loop, ms": "{loop_of_100:ms}",
        "client CPU, µs": "{client_cpu:us}",
        "of the caller's thread, µs": "{caller_cpu:us}",
        "ClusterMutex / this": "{ours_over_this/ratio:times}",
    }
    return columns(cells, (row | {"name": name} for name, row in section.items()))


def _handover(section: list[Results]) -> str:
    cells = {
        "": "{name}",
        "waiters": "{waiters:,}{how}",
        "median, ms": "{median:ms}",
        "p99, ms": "{p99:ms}",
        "requests": "{requests:.1f}",
        "watch messages": "{watch_messages:.1f}",
        "/ bare floor": "{over:times}",
    }
    rows = (
        {
            **row,
            "name": NAMES[row["contender"]],
            "how": ", busy" * row["busy"],
            "over": row.get("over_floor", {}).get("ratio"),
        }
        for row in section
    )
    return columns(cells, rows)


def _throughput(section: list[Results]) -> str:
    cells = {
        "": "{name}",
        "bare floor": "{floor:,.0f}",
        "ClusterMutex": "{ours:,.0f}",
        "ClusterMutex / floor": "{ours_over_floor/ratio:times}",
    }
    rows = (
        row
        | {
            "name": f"{_count(row['processes'], 'process', 'processes')}, "
            f"{_count(row['threads'], 'thread', 'threads')}{' each' * (row['processes'] > 1)}"
        }
        for row in section
    )
    return columns(cells, rows)


def _costs(sections: Results) -> str:
    captured = [
        (f"backtrace of {row['frames']} frames, captured", f"{{costs/capture/{place}/median:time}}")
        for place, row in enumerate(sections["costs"]["capture"])
    ]
    loaded = [
        (f"table, loading {int(size):,} locks", f"{{table/load/{size}:time}}")
        for size in sections.get("table", {}).get("load", ())
    ]
    cells = [
        ("`alive()`, one of {alive/calls:,} in a loop", "{alive/alive/median:time}"),
        ("`alive()`, all {alive/calls:,} of them", "{alive/total:time}"),
        ("`check_health()`", "{alive/check_health/median:time}"),
        ("`alive()` that pushes: one request", "{alive/push/median:time}"),
        ("`ClusterMutex(…)`, constructing one", "{costs/construct/median:time}"),
        *captured,
        ("backtrace, what it adds to a cycle", "{costs/backtrace/seconds:time}"),
        ("subkeys, what they add to a cycle of the floor", "{costs/subkeys/seconds:time}"),
        *loaded,
    ]
    if loaded:
        cells += [
            ("table, CPU time to follow one change", "{table/cpu_a_change:time}"),
            ("table, from sending a change until it shows", "{table/seen_after/median:time}"),
        ]
    return facts("median", cells, sections)


def _cluster(section: Results) -> str:
    cells = {
        "": "{name}, {work}",
        "a second": "{rate:,.0f}",
        "leader CPU, µs": "{leader_cpu:us}",
        "follower CPU, µs": "{follower_cpu:us}",
        "syncs for one": "{syncs:.2f}",
        "a sync, ms": "{sync:ms}",
    }
    return columns(cells, (row | {"name": NAMES[row["contender"]]} for row in section["rows"]))


def _capacity(section: Results) -> str:
    """Work out from what was measured what a cluster carries; every number is one of the run's."""
    values = section | {row["work"]: row for row in section["rows"] if row["contender"] == "ours"}
    cycle, push = values["cycle"], values["push"]
    quiet = 300 / 8  # the default expected_runtime, pushed at an eighth of it
    values |= {"cycles": 1 / cycle["leader_cpu"], "pushes": 1 / push["leader_cpu"]}
    return fill(
        "- Measured: **{cycle/rate:round} locks taken and released a second** or "
        "**{push/rate:round} pushes a second**, with {members} members and {processes} client "
        "processes of {threads} threads on the same cores, each member syncing to the same disk.\n"
        "- The leader spends {cycle/leader_cpu:us} µs of CPU time on a cycle and "
        "{push/leader_cpu:us} µs on a push: one core of its own is worth about {cycles:round} "
        "cycles or {pushes:round} pushes a second.\n"
        "- etcd writes what comes together to its log in one go: {cycle/syncs:.2f} syncs a cycle, "
        "{push/syncs:.2f} a push, so that a sync of {cycle/sync:ms} ms limits how long one cycle "
        "takes, not how many there are.\n"
        "- A holder that calls `alive()` in a hot loop pushes once a second: {push/rate:round} "
        "such holders at once. One with `keepalive=True` and the default `expected_runtime` pushes "
        "every {quiet:g} s: {quiet_holders:round} of them.",
        values | {"quiet": quiet, "quiet_holders": push["rate"] * quiet},
    )


def _unlocker(section: Results) -> str:
    cells = [
        ("start to ready", "{ready:time}"),
        ("start to ready, CPU time", "{ready_cpu:time}"),
        ("memory (RSS) at the end", "{rss:mb}"),
        ("memory (RSS) at most", "{peak_rss:mb}"),
        ("CPU with nothing changing", "{idle:.1%} of a core"),
        ("all locks read again every {resync} s, reckoned as the start", "{again:.1%} of a core"),
        ("CPU with {target} pushes a second (of {rate:.0f} measured)", "{busy:.1%} of a core"),
        ("from due to removed, median of {single_locks}", "{single/median:time}"),
        ("from due to removed, p99", "{single/p99:time}"),
        ("{at_once_locks:,} due at the same moment: all removed after", "{at_once:time}"),
        ("a scrape of `/metrics`, median", "{scrape/median:time}"),
        ("a scrape of `/metrics`, p99", "{scrape/p99:time}"),
        ("a scrape while locks are pushed, median", "{busy_scrape/median:time}"),
        ("a scrape while locks are pushed, p99", "{busy_scrape/p99:time}"),
    ]
    again = section["ready_cpu"] / section["resync"]
    return facts("with {locks:,} locks", cells, section | {"again": again})


def _dashboard(section: Results) -> str:
    polls = "an unchanged list of {listed:,} locks, asked for by {viewers} viewers"
    many = "with {locks:,} locks, one of them just changed"
    pages = {
        "first_page": "first page",
        "search": "search that finds some",
        "search_one": "search that finds one",
        "sorted": "first page in another order",
    }
    cells = [
        (f"{polls}: median", "{poll/median:time}"),
        (f"{polls}: p99", "{poll/p99:time}"),
        ("the list of {listed:,} locks as JSON", "{json:kb}"),
        ("the list of {listed:,} locks as JSON, compressed", "{json_compressed:kb}"),
        *(
            (f"{page} {many}: {share}", f"{{{key}/{share}:time}}")
            for key, page in pages.items()
            for share in ("median", "p95")
        ),
        ("memory (RSS) at the end", "{rss:mb}"),
        ("memory (RSS) at most", "{peak_rss:mb}"),
    ]
    return facts("measured", cells, section)


def _bucket(section: Results) -> str:
    whats = {"request": "one bare request", "acquire": "`acquire()`", "release": "`release()`"}
    head = f"in a bucket that answers after {section['delay'] * 1e3:.0f} ms"
    cells = {head: "{what}", "median, ms": "{median:ms}", "p99, ms": "{p99:ms}"}
    rows = [section["seconds"][name] | {"what": what} for name, what in whats.items()]
    counted = fill(
        "`acquire()` takes {acquire_over_request/ratio:times} of one bare request. Requests: "
        "{take} to take, {release} to release, {between} between.",
        section,
    )
    return f"{columns(cells, rows)}\n\n{counted}"


def _valkey(section: Results) -> str:
    cycle = {
        "take and release": "{servers:servers}: {name}",
        "main thread, ms": "{main/median:ms}",
        "another thread, ms": "{thread/median:ms}",
        "CPU, µs": "{main/client_cpu:us}",
        "another's, µs": "{thread/client_cpu:us}",
        "ClusterMutex / this": "{main/ours_over_this/ratio:times}",
        "in another thread": "{thread/ours_over_this/ratio:times}",
    }
    cycles = [
        row | {"servers": servers, "name": name}
        for servers, contenders in section["cycle"].items()
        for name, row in contenders.items()
    ]
    handover = {
        "hand-over, 1 waiter": "{servers:servers}",
        "bare, ms": "{bare floor/median:ms}",
        "ClusterMutex, ms": "{ClusterMutex/median:ms}",
        "ratio": "{over_floor/ratio:times}",
    }
    handovers = [row | {"servers": servers} for servers, row in section["handover"].items()]
    services = section["services"]
    peak = max(services[name]["peak_rss"] for name in ("unlocker", "mutexdash"))
    looks = [
        ("a look at all of them, of which none has changed", "{look/median:time}"),
        ("CPU time of a look", "{look_cpu:time}"),
        ("unlocker, which looks every 5 s", "{unlocker/cpu:.0%} of a core"),
        ("dashboard, the same", "{mutexdash/cpu:.0%} of a core"),
        ("memory (RSS) of either, at most", "{peak:mb}"),
    ]
    return "\n\n".join(
        [
            columns(cycle, cycles),
            columns(handover, handovers),
            facts("with {locks:,} locks, five servers", looks, services | {"peak": peak}),
        ]
    )


def _figures(rows: list[Results]) -> str:
    def number(row: Results, key: str) -> str:
        if (value := row[key]) is None:
            return ""
        decimals = 0 if float(value).is_integer() else 2
        return f"{value:.{decimals}f}{' ' * bool(row['unit'])}{row['unit']}"

    met = {None: "not measured", True: "yes", False: "**no**"}
    found = (
        [
            row["what"],
            f"{'at least' if row['at_least'] else 'at most'} {number(row, 'target')}",
            number(row, "reached"),
            "" if row["low"] is None else fill("{low:.2f} to {high:.2f}", row),
            met[row["met"]],
        ]
        for row in rows
    )
    return table(["", "target", "reached", "middle half of the rounds", "met"], found)


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "cycle": _cycle,
    "handover": _handover,
    "throughput": _throughput,
    "cluster": _cluster,
    "unlocker": _unlocker,
    "dashboard": _dashboard,
    "bucket": _bucket,
    "valkey": _valkey,
}


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
