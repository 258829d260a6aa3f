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
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import machine, pictures, report
from benchmarks.figures import FIGURES, Results
from benchmarks.servers import Missing, Servers

CHECKOUT = Path(__file__).parents[1]
PAGE = CHECKOUT / "docs" / "performance.md"
PICTURES = PAGE.with_suffix("")
OUTPUT = CHECKOUT / "artifacts" / "benchmarks"

_MODULES = dict.fromkeys(("cycle", "alive", "costs"), "micro")
_MODULES |= dict.fromkeys(("throughput", "cluster"), "rates")
_ORDER = (
    "cycle",
    "handover",
    "hot",
    "throughput",
    "alive",
    "costs",
    "table",
    "unlocker",
    "dashboard",
    "cluster",
    "bucket",
    "valkey",
)
SECTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(import_module(f"benchmarks.{_MODULES.get(name, name)}"), name) for name in _ORDER
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
    if failed := results["failed"]:
        sys.exit(f"\nFailed: {'; '.join(f'{name}: {why}' for name, why in failed.items())}")
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
    sections: Results = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="clustermutex-bench-") as name:
        servers = Servers(Path(name))
        described = machine.describe(servers, Path(name))
        for section in wanted:
            begun = time.monotonic()
            print(f"{section} …", end=" ", file=sys.stderr, flush=True)
            try:
                sections[section] = SECTIONS[section](servers, quick=quick)
            except Exception as error:  # noqa: BLE001 - the other sections' results are kept
                traceback.print_exc()
                failed[section] = f"{type(error).__name__}: {error}"
            print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return {
        "quick": quick,
        "sections": sections,
        "failed": failed,
        "machine": described | {"others": others.share()},
        "missing": servers.missing,
        "figures": [figure.row(sections) for figure in FIGURES],
        "took": time.monotonic() - started,
    }


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
    option = parser.add_argument
    option("--quick", action="store_true", help="only see that it runs")
    option("--only", action="append", choices=SECTIONS, help="measure this section, not all")
    option("--output", type=Path, default=OUTPUT, help="folder for results.json and pictures")
    option("--render", type=Path, metavar="RESULTS", help="print older results, measure nothing")
    option(
        "--write-docs",
        action="store_true",
        help=f"put the results into docs/{PAGE.name}, too; with "
        "--only these sections alone, each with the machine as it was then",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
