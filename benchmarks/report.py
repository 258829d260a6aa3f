"""Results as tables: printed, and put into the documentation between its marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cycle import LOOP
from benchmarks.figures import Results

NAMES = {"ours": "ClusterMutex", "floor": "bare floor", "etcd3": "etcd3 Lock"}

NOISE = 0.1
"""The share of the processors' time that others may take; the kernel's own work for us counts."""

Row = Sequence[str]


def table(head: Row, rows: Sequence[Row]) -> str:
    """Return a table that reads well on a terminal and in Markdown; numbers stand right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(row: Row) -> str:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(cells)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([line(head), f"|{rule}|", *map(line, rows)])


def blocks(results: Results) -> dict[str, str]:
    """Return each part of the report by its name, Markdown; parts not measured are left out."""
    sections = results["sections"]
    found = {"machine": _machine(results)}
    for name, write in _SECTIONS.items():
        if sections.get(name):
            found[name] = write(sections[name])
    if "alive" in sections and "costs" in sections:
        found["costs"] = _costs(sections)
    if "cluster" in sections:
        found["capacity"] = _capacity(sections["cluster"])
    if {"cycle", "handover", "alive", "unlocker"} <= sections.keys():
        found["short"] = _short(sections)
    found["figures"] = _figures(results["figures"])
    return found


def text(results: Results) -> str:
    """Return the whole report."""
    titles = {
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
    found = blocks(results)
    return "\n\n".join(f"{titles[name]}\n\n{found[name]}" for name in titles if name in found)


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

    said = page.read_text(encoding="utf-8")
    marks = re.compile(r"<!-- bench: (\w+) -->.*?<!-- end -->", re.DOTALL)
    page.write_text(marks.sub(part, said), encoding="utf-8")


# ---------------------------------------------------------------- the parts


def _machine(results: Results) -> str:
    machine = results["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:g} GiB, "
        f"{machine['kernel']}, {machine['python']}; data on {machine['file_system']}, where a sync "
        f"of 2 kB takes {_ms(machine['sync_to_disk'])} ms. Load average before the run: "
        f"{machine['load_before']:.2f}; other programs took {machine['others']:.0%} of the "
        f"processors' time during it. Measured on {machine['date']} in "
        f"{results['took'] / 60:.1f} minutes, servers and clients on the same cores.",
        f"Versions: {versions}.",
    ]
    if machine["others"] > NOISE:
        lines.append(
            f"**Other programs took {machine['others']:.0%} of the processors' time during the "
            "run: do not trust these figures.**"
        )
    if results["missing"]:
        missing = "; ".join(f"{name}: {why}" for name, why in results["missing"].items())
        lines.append(f"Missing on this machine, so not measured: {missing}.")
    if results["quick"]:
        lines.append("A quick run, to see that it runs: its figures mean nothing.")
    return "\n\n".join(lines)


def _short(sections: Results) -> str:
    """Say what a user asks first: what it costs, and beside what."""
    cycle, unlocker = sections["cycle"], sections["unlocker"]
    lines = [each for each in sections["handover"] if each["contender"] == "ours"]
    few, many = (pick(lines, key=lambda each: each["waiters"]) for pick in (min, max))
    peers = ", ".join(
        f"{name} {_ms(row['median'])} ms"
        for name, row in cycle.items()
        if name not in (NAMES["ours"], NAMES["floor"])
    )
    return "\n".join(
        [
            f"- **To take a free lock and release it: {_ms(cycle[NAMES['ours']]['median'])} ms** "
            f"(the two bare requests {_ms(cycle[NAMES['floor']]['median'])} ms; {peers}).",
            f"- **From one holder's release to the next one's acquire: {_ms(few['median'])} ms** "
            f"with {few['waiters']} in line, {_ms(many['median'])} ms with {many['waiters']:,}.",
            f"- **`alive()` in a loop: {_time(sections['alive']['alive']['median'])}**, but once a "
            "second, when it writes two keys.",
            f"- **A lock that is due is removed {_time(unlocker['single']['median'])} later**, of "
            f"{unlocker['locks']:,} that one unlocker watches with "
            f"{_mb(unlocker['peak_rss'])} of memory.",
        ]
    )


def _cycle(section: Results) -> str:
    rows = [
        [
            name,
            _ms(row["median"]),
            _ms(row["p99"]),
            _ms(row["loop_of_100"]),
            _us(row["client_cpu"]),
            _us(row["caller_cpu"]),
            _times(row["ours_over_this"]["ratio"]),
        ]
        for name, row in section.items()
    ]
    head = [
        *("", "median, ms", "p99, ms", f"{LOOP} in a loop, ms"),
        *("client CPU, µs", "of the caller's thread, µs", "ClusterMutex / this"),
    ]
    return table(head, rows)


def _handover(section: list[Results]) -> str:
    rows = []
    for row in section:
        over = row.get("over_floor")
        rows.append(
            [
                NAMES[row["contender"]],
                f"{row['waiters']:,}{', busy' * row['busy']}",
                _ms(row["median"]),
                _ms(row["p99"]),
                f"{row['requests']:.1f}",
                f"{row['watch_messages']:.1f}",
                _times(over["ratio"]) if over else "",
            ]
        )
    head = ["", "waiters", "median, ms", "p99, ms", "requests", "watch messages", "/ bare floor"]
    return table(head, rows)


def _throughput(section: list[Results]) -> str:
    rows = [
        [
            f"{_count(row['processes'], 'process', 'processes')}, "
            f"{_count(row['threads'], 'thread', 'threads')}{' each' * (row['processes'] > 1)}",
            f"{row['floor']:,.0f}",
            f"{row['ours']:,.0f}",
            _times(row["ours_over_floor"]["ratio"]),
        ]
        for row in section
    ]
    return table(["", "bare floor", "ClusterMutex", "ClusterMutex / floor"], rows)


def _costs(sections: Results) -> str:
    alive, costs = sections["alive"], sections["costs"]
    rows = [
        [f"`alive()`, one of {alive['calls']:,} in a loop", _time(alive["alive"]["median"])],
        [f"`alive()`, all {alive['calls']:,} of them", _time(alive["total"])],
        ["`check_health()`", _time(alive["check_health"]["median"])],
        ["`alive()` that pushes: one request", _time(alive["push"]["median"])],
        ["`ClusterMutex(…)`, constructing one", _time(costs["construct"]["median"])],
        *(
            [f"backtrace of {each['frames']} frames, captured", _time(each["median"])]
            for each in costs["capture"]
        ),
        ["backtrace, what it adds to a cycle", _time(costs["backtrace"]["seconds"])],
        ["subkeys, what they add to a cycle of the floor", _time(costs["subkeys"]["seconds"])],
    ]
    if "table" in sections:
        found = sections["table"]
        rows += [
            *(
                [f"table, loading {int(size):,} locks", _time(seconds)]
                for size, seconds in found["load"].items()
            ),
            ["table, CPU time to follow one change", _time(found["cpu_a_change"])],
            ["table, from sending a change until it shows", _time(found["seen_after"]["median"])],
        ]
    return table(["", "median"], rows)


def _cluster(section: Results) -> str:
    rows = [
        [
            f"{NAMES[row['contender']]}, {row['work']}",
            f"{row['rate']:,.0f}",
            _us(row["leader_cpu"]),
            _us(row["follower_cpu"]),
            f"{row['syncs']:.2f}",
            _ms(row["sync"]),
        ]
        for row in section["rows"]
    ]
    head = [
        *("", "a second", "leader CPU, µs", "follower CPU, µs"),
        *("syncs for one", "a sync, ms"),
    ]
    return table(head, rows)


def _capacity(section: Results) -> str:
    """Work out from what was measured what a cluster carries; every number is one of the run's."""
    by_work = {row["work"]: row for row in section["rows"] if row["contender"] == "ours"}
    cycle, push = by_work["cycle"], by_work["push"]
    quiet = 300 / 8  # the default expected_runtime, pushed at an eighth of it
    return "\n".join(
        [
            f"- Measured: **{_round(cycle['rate'])} locks taken and released a second** or "
            f"**{_round(push['rate'])} pushes a second**, with {section['members']} members and "
            f"{section['processes']} client processes of {section['threads']} threads on the same "
            "cores, each member syncing to the same disk.",
            f"- The leader spends {_us(cycle['leader_cpu'])} µs of CPU time on a cycle and "
            f"{_us(push['leader_cpu'])} µs on a push: one core of its own is worth about "
            f"{_round(1 / cycle['leader_cpu'])} cycles or {_round(1 / push['leader_cpu'])} pushes "
            "a second.",
            f"- etcd writes what comes together to its log in one go: {cycle['syncs']:.2f} syncs "
            f"a cycle, {push['syncs']:.2f} a push, so that a sync of {_ms(cycle['sync'])} ms "
            "limits how long one cycle takes, not how many there are.",
            f"- A holder that calls `alive()` in a hot loop pushes once a second: "
            f"{_round(push['rate'])} such holders at once. One with `keepalive=True` and the "
            f"default `expected_runtime` pushes every {quiet:g} s: "
            f"{_round(push['rate'] * quiet)} of them.",
        ]
    )


def _unlocker(section: Results) -> str:
    many = section["at_once_locks"]
    rows = [
        ["start to ready", _time(section["ready"])],
        ["start to ready, CPU time", _time(section["ready_cpu"])],
        ["memory (RSS) at the end", _mb(section["rss"])],
        ["memory (RSS) at most", _mb(section["peak_rss"])],
        ["CPU with nothing changing", f"{section['idle']:.1%} of a core"],
        [
            f"all locks read again every {section['resync']} s, reckoned as the start",
            f"{section['ready_cpu'] / section['resync']:.1%} of a core",
        ],
        [
            f"CPU with {section['target']} pushes a second (of {section['rate']:.0f} measured)",
            f"{section['busy']:.1%} of a core",
        ],
        [f"from due to removed, median of {section['single_locks']}", _of(section, "single")],
        ["from due to removed, p99", _of(section, "single", "p99")],
        [f"{many:,} due at the same moment: all removed after", _time(section["at_once"])],
        ["a scrape of `/metrics`, median", _of(section, "scrape")],
        ["a scrape of `/metrics`, p99", _of(section, "scrape", "p99")],
        ["a scrape while locks are pushed, median", _of(section, "busy_scrape")],
        ["a scrape while locks are pushed, p99", _of(section, "busy_scrape", "p99")],
    ]
    return table([f"with {section['locks']:,} locks", "measured"], rows)


def _dashboard(section: Results) -> str:
    listed, many = section["listed"], f"with {section['locks']:,} locks, one of them just changed"
    polls = f"an unchanged list of {listed:,} locks, asked for by {section['viewers']} viewers"
    rows = [
        [f"{polls}: median", _of(section, "poll")],
        [f"{polls}: p99", _of(section, "poll", "p99")],
        [f"the list of {listed:,} locks as JSON", _kb(section["json"])],
        [f"the list of {listed:,} locks as JSON, compressed", _kb(section["json_compressed"])],
    ]
    for what, text in (
        ("first_page", "first page"),
        ("search", "search that finds some"),
        ("search_one", "search that finds one"),
        ("sorted", "first page in another order"),
    ):
        rows += [[f"{text} {many}: {key}", _of(section, what, key)] for key in ("median", "p95")]
    rows += [
        ["memory (RSS) at the end", _mb(section["rss"])],
        ["memory (RSS) at most", _mb(section["peak_rss"])],
    ]
    return table(["", "measured"], rows)


def _bucket(section: Results) -> str:
    ratio = section["acquire_over_request"]
    one, took = f"{section['delay'] * 1e3:.0f} ms", section["seconds"]
    rows = [
        [what, _ms(took[name]["median"]), _ms(took[name]["p99"])]
        for name, what in (
            ("request", "one bare request"),
            ("acquire", "`acquire()`"),
            ("release", "`release()`"),
        )
    ]
    return "\n".join(
        [
            table([f"in a bucket that answers after {one}", "median, ms", "p99, ms"], rows),
            "",
            f"`acquire()` takes {_times(ratio['ratio'])} of one bare request. Requests: "
            f"{section['take']} to take, {section['release']} to release, {section['between']} "
            "between.",
        ]
    )


def _valkey(section: Results) -> str:
    cycles = []
    for servers, contenders in section["cycle"].items():
        where = _count(int(servers), "server", "servers")
        for name, row in contenders.items():
            main, own = row["main"], row["thread"]
            cycles.append(
                [
                    f"{where}: {name}",
                    *(_ms(main["median"]), _ms(own["median"]), _us(main["client_cpu"])),
                    _us(own["client_cpu"]),
                    _times(main["ours_over_this"]["ratio"]),
                    _times(own["ours_over_this"]["ratio"]),
                ]
            )
    head = [
        *("take and release", "main thread, ms", "another thread, ms", "CPU, µs"),
        *("another's, µs", "ClusterMutex / this", "in another thread"),
    ]
    handovers = [
        [
            _count(int(servers), "server", "servers"),
            *(_ms(row["bare floor"]["median"]), _ms(row["ClusterMutex"]["median"])),
            _times(row["over_floor"]["ratio"]),
        ]
        for servers, row in section["handover"].items()
    ]
    services = section["services"]
    locks = f"with {services['locks']:,} locks, five servers"
    looks = [
        ["a look at all of them, of which none has changed", _of(services, "look")],
        ["CPU time of a look", _time(services["look_cpu"])],
        ["unlocker, which looks every 5 s", f"{services['unlocker']['cpu']:.0%} of a core"],
        ["dashboard, the same", f"{services['mutexdash']['cpu']:.0%} of a core"],
        [
            "memory (RSS) of either, at most",
            _mb(max(services[each]["peak_rss"] for each in ("unlocker", "mutexdash"))),
        ],
    ]
    return "\n\n".join(
        [
            table(head, cycles),
            table(["hand-over, 1 waiter", "bare, ms", "ClusterMutex, ms", "ratio"], handovers),
            table([locks, "measured"], looks),
        ]
    )


def _kb(size: float) -> str:
    return f"{size / 1e3:,.1f} kB"


def _of(section: Results, what: str, key: str = "median") -> str:
    return _time(section[what][key])


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


def _figures(rows: list[Results]) -> str:
    def number(row: Results, key: str) -> str:
        value = row[key]
        if value is None:
            return ""
        decimals = 0 if float(value).is_integer() else 2
        return f"{value:.{decimals}f}{' ' * bool(row['unit'])}{row['unit']}"

    found = []
    for row in rows:
        limit = "at least" if row["at_least"] else "at most"
        spread = "" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
        met = {None: "not measured", True: "yes", False: "**no**"}[row["met"]]
        target = f"{limit} {number(row, 'target')}"
        found.append([row["what"], target, number(row, "reached"), spread, met])
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


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"


def _time(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    unit, size = next((each for each in _UNITS if abs(seconds) >= each[1]), _UNITS[-1])
    return f"{seconds / size:,.2f} {unit}"


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def _times(ratio: float) -> str:
    return f"{ratio:.2f}"


def _round(value: float) -> str:
    """Return a number with two digits that count, so that it does not claim more."""
    return f"{float(f'{value:.1e}'):,.0f}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
