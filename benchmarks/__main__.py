"""`python -m benchmarks`: start all servers, measure, print the tables, write results and pictures.

Everything runs on loopback, with its data in a temporary folder (TMPDIR says where), and is gone at
the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    bucket,
    cluster,
    cycle,
    dashboard,
    handover,
    machine,
    micro,
    pictures,
    report,
    table,
    throughput,
    unlocker,
    valkey,
)
from benchmarks.figures import Results, figures
from benchmarks.missing import Missing
from benchmarks.servers import Servers

CHECKOUT = Path(__file__).parents[1]
PAGE = CHECKOUT / "docs" / "performance.md"
PICTURES = PAGE.with_suffix("")
OUTPUT = CHECKOUT / "artifacts" / "benchmarks"

SECTIONS: dict[str, Callable[..., Any]] = {
    "cycle": cycle.measure,
    "handover": handover.measure,
    "throughput": throughput.measure,
    "alive": micro.alive,
    "costs": micro.costs,
    "table": table.measure,
    "unlocker": unlocker.measure,
    "dashboard": dashboard.measure,
    "cluster": cluster.measure,
    "bucket": bucket.measure,
    "valkey": valkey.measure,
}


def main() -> None:
    """Do what the command line says."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.render is not None:
        results: Results = json.loads(options.render.read_text(encoding="utf-8"))
    else:
        results = measure(options.only or list(SECTIONS), quick=options.quick)
    whole = results["sections"].keys() == SECTIONS.keys()
    write(results, options.output)  # first, so that nothing can lose what took minutes
    print(report.text(results))
    if options.write_docs:
        if whole:
            write(results, PICTURES)
        else:
            _keep(results, PICTURES / f"{'-'.join(results['sections'])}.json")
        report.write_docs(PAGE, results, whole=whole)
        print(f"\nWritten into {PAGE.relative_to(CHECKOUT)}.")


def measure(wanted: list[str], *, quick: bool) -> Results:
    """Measure these sections and return the results."""
    started, others = time.monotonic(), machine.Others()
    found: Results = {"quick": quick, "sections": {}}
    with tempfile.TemporaryDirectory(prefix="clustermutex-bench-") as name:
        folder = Path(name)
        servers = Servers(folder)
        found["machine"] = machine.describe(servers, folder)
        for section in wanted:
            begun = time.monotonic()
            print(f"{section} …", end=" ", file=sys.stderr, flush=True)
            found["sections"][section] = SECTIONS[section](servers, quick=quick)
            print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    found["missing"] = servers.missing
    found["figures"] = figures(found["sections"])
    found["machine"]["others"] = others.share()
    found["took"] = time.monotonic() - started
    return found


def write(results: Results, folder: Path) -> None:
    """Write `results.json` and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        pictures.draw(results, folder)
    except Missing as reason:
        results["missing"]["pictures"] = str(reason)
    _keep(results, folder / "results.json")


def _keep(results: Results, file: Path) -> None:
    file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="measure this section, not all"
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="the folder for results.json and pictures"
    )
    parser.add_argument(
        "--render", type=Path, metavar="RESULTS", help="print older results, measure nothing"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"put the results into docs/{PAGE.name}, too; with "
        "--only these sections alone, each with the machine as it was then",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
