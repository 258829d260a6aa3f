"""The protocol as a model: `python -m tests.proof.model [--clients N] [--faults N]`.

Spin visits all states of `protocol.pml`, and then looks for each transaction that has a comparison
left out: an assertion must fail. Status 0: the one holds, and all the others are found.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.machine_needs import find

MODEL = Path(__file__).with_name("protocol.pml")
BROKEN = (
    "a take that does not look for its mark",
    "a take of a lock that is held",
    "a take past the line",
    "a claim that does not compare its ticket",
    "an unlock that does not compare the holder",
    "a push that does not compare the holder",
    "a removal that does not compare the stamps",
    "a removal that leaves no mark",
)


def visit(clients: int, faults: int, broken: int = 0) -> tuple[int, str]:
    """Return how many states there are, and which assertion failed; empty: none did."""
    spin, compiler = find("spin"), find("gcc")
    assert spin, "spin is needed: apt-get install spin"
    assert compiler, "gcc is needed: apt-get install gcc"
    sizes = [f"-DCLIENTS={clients}", f"-DFAULTS={faults}", f"-DBROKEN={broken}"]
    with tempfile.TemporaryDirectory() as folder:

        def run(*words: str) -> str:
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
            return done.stdout

        run(spin, *sizes, "-a", str(MODEL))
        run(compiler, "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
        said = run("./pan", "-m1000000")
    if "max search depth too small" in said or ("Search not completed" in said and not broken):
        return 0, "the search was not complete"
    failed = re.search(r"^pan:\d+: (.*) \(at depth", said, re.MULTILINE)
    states = re.search(r"(\d+) states, stored", said)
    return int(states[1]) if states else 0, failed[1] if failed else ""


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.model", description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--faults", type=int, default=1, help="in a run, at most")
    said = parser.parse_args(words)
    states, failed = visit(said.clients, said.faults)
    print(
        f"model: {states} states of {said.clients} clients, all there are: {failed or 'it holds'}"
    )
    missed = 0
    for number, what in enumerate(BROKEN, 1):
        _, found = visit(said.clients, said.faults, number)
        print(f"{what}: {found or 'NOT FOUND'}", flush=True)
        missed += not found
    return int(bool(failed) or bool(missed))


if __name__ == "__main__":
    sys.exit(main())
