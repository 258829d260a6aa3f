"""Results as tables: printed, and put into the documentation between its marks.

What is said stands in `report.md.j2`, a block for each part; here are its units and its tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.figures import Results

NAMES = {"ours": "ClusterMutex", "floor": "bare floor", "etcd3": "etcd3 Lock"}

PARTS: dict[str, tuple[str, set[str]]] = {
    "machine": ("The machine", set()),
    "short": ("In short", {"cycle", "handover", "alive", "unlocker"}),
    "cycle": ("Lock and unlock, nobody else wants it", {"cycle"}),
    "handover": ("Hand-over", {"handover"}),
    "hot": ("One lock that many want, locks a second", {"hot"}),
    "throughput": ("Cycles a second, each thread with a lock of its own", {"throughput"}),
    "costs": ("What single parts cost", {"alive", "costs"}),
    "cluster": ("A three-member etcd, all of it on this machine", {"cluster"}),
    "capacity": ("What a three-member etcd carries", {"cluster"}),
    "unlocker": ("The unlocker with very many locks", {"unlocker"}),
    "dashboard": ("The dashboard with many viewers, and with very many locks", {"dashboard"}),
    "bucket": ("A lock in a bucket", {"bucket"}),
    "valkey": ("Locks in Valkey and Redis", {"valkey"}),
    "figures": ("The figures to reach", set()),
}
"""The title of each part of the report, and the sections that it needs."""


def _duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    scales = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, size = next((scale for scale in scales if abs(seconds) >= scale[1]), scales[-1])
    return f"{seconds / size:,.2f} {unit}"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.{0 if float(value).is_integer() else 2}f}{' ' * bool(unit)}{unit}"


_FILTERS: dict[str, Callable[..., str]] = {
    "ms": lambda seconds: f"{seconds * 1e3:,.2f}",
    "us": lambda seconds: f"{seconds * 1e6:,.0f}",
    "time": _duration,
    "times": lambda ratio: f"{ratio:.2f}",
    "percent": lambda share: f"{share:.0%}",
    "whole": lambda number: f"{number:,.0f}",
    "round2": lambda number: f"{float(f'{number:.1e}'):,.0f}",  # two digits that count
    "kb": lambda size: f"{size / 1e3:,.1f} kB",
    "mb": lambda size: f"{size / 1e6:,.0f} MB",
    "count": lambda number, one, many: f"{number} {one if int(number) == 1 else many}",
    "figure": _figure,
}


def _drawn(table: re.Match[str]) -> str:
    """Return a table that reads well on a terminal and in Markdown; numbers stand right."""
    lines = table[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    written = [
        f"| {' | '.join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])} |"
        for first, *others in (head, *rows)
    ]
    return "\n".join([written[0], f"|{rule}|", *written[1:]]) + "\n" * table[0].endswith("\n")


def blocks(results: Results) -> dict[str, str]:
    """Return each part of the report by its name, Markdown; parts not measured are left out."""
    loader = FileSystemLoader(Path(__file__).parent)
    how: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    environment = Environment(loader=loader, **how)  # noqa: S701 - it is Markdown, of our figures
    environment.filters |= _FILTERS
    template = environment.get_template("report.md.j2")
    sections = {name: found for name, found in results["sections"].items() if found}
    context = template.new_context({"table": None, **results, **sections, "names": NAMES})
    return {
        part: re.sub(
            r"(?:^\|.*\|$\n?)+",
            *(_drawn, "".join(template.blocks[part](context)).strip()),
            flags=re.MULTILINE,
        )
        for part, (_, needed) in PARTS.items()
        if needed <= sections.keys()
    }


def text(results: Results) -> str:
    """Return the whole report."""
    found = blocks(results)
    return "\n\n".join(f"{PARTS[part][0]}\n\n{said}" for part, said in found.items())


def write_docs(page: Path, results: Results, *, whole: bool = True) -> None:
    """Replace the parts of a page that stand between `<!-- bench: NAME -->` and `<!-- end -->`.

    Of a run that is not `whole` only the sections that it measured, each with what is said of its
    own run: the page's machine and figures are those of another one.

    Raises:
        ValueError: the page has a mark that nothing was measured for.
    """
    if whole:
        found = blocks(results)
    else:
        reached = [row for row in results["figures"] if row["reached"] is not None]
        every = blocks(results | {"figures": reached})
        around = every["machine"], every["figures"]
        sections = results["sections"].keys() & every.keys()
        found = {part: "\n\n".join([around[0], every[part], around[1]]) for part in sections}

    def part(match: re.Match[str]) -> str:
        name = match[1]
        if name in found:
            return f"<!-- bench: {name} -->\n\n{found[name]}\n\n<!-- end -->"
        if whole:
            raise ValueError(f"{page} asks for {name!r}, which was not measured: run all sections.")
        return match[0]

    marks = re.compile(r"<!-- bench: (\w+) -->.*?<!-- end -->", re.DOTALL)
    page.write_text(marks.sub(part, page.read_text(encoding="utf-8")), encoding="utf-8")
