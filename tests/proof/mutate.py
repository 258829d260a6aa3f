"""Planted bugs: `python -m tests.proof.mutate [NAME …]` plants each, and runs its test.

A mutant is a patch in `tests/proof/mutants/`: a sentence, the test that must find it, and for each
file the lines to remove (`-`) and to add (`+`). It has no line numbers: the removed lines must
occur exactly once. It is planted in a copy of the checkout, and counts as found if a rule breaks
there, or a test fails that passes otherwise. Status 0: all were found within their processor time;
1: some were not.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
MUTANTS = Path(__file__).parent / "mutants"
LIMIT_S = 60
"""Seconds of processor time in which a mutant must be found."""
SEED = 1
COPIED = ("lockclient", "unlocker", "mutexdash", "tests", "docs", "pyproject.toml", "README.md")


@dataclass(frozen=True)
class Hunk:
    """A replacement in one file."""

    file: str
    old: str
    new: str

    def planted(self, text: str) -> str:
        """Return the text of the file with the bug in it.

        Raises:
            ValueError: the place is not there, or there are several.
        """
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has the place {found} times:\n{self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutant:
    """A bug: its name, its sentence, the test that must find it, and its place."""

    name: str
    what: str
    found_by: str
    hunks: tuple[Hunk, ...]

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Return the mutant of a patch."""
        what, found_by, *rest = path.read_text().splitlines()
        return cls(path.stem, what, found_by.removeprefix("found by: "), tuple(_hunks(rest)))

    def plant(self, checkout: Path) -> None:
        """Write it into a copy of the checkout."""
        for hunk in self.hunks:
            file = checkout / hunk.file
            file.write_text(hunk.planted(file.read_text()))

    def command(self) -> list[str]:
        """Return what is to find it."""
        if self.found_by == "simulation":
            how = ["--seconds", "600", "--seed", str(SEED), "--shrink-seconds", "0"]
            return [sys.executable, "-m", "tests.simulation", *how]
        if self.found_by == "exhaustion":
            return [sys.executable, "-m", "tests.proof.exhaust", "--faults", "1"]
        if self.found_by.startswith("notifications"):
            seed = self.found_by.removeprefix("notifications").strip() or str(SEED)
            how = ["--seeds", "300", "--seed", seed]
            return [sys.executable, "-m", "tests.simulation.notifying", *how]
        return [sys.executable, "-m", *self.found_by.split(), "-q", "-x", "-p", "no:cacheprovider"]


def _hunks(lines: Sequence[str]) -> Iterator[Hunk]:
    file, old, new = "", "", ""
    for line in (*lines, "@@"):
        if line.startswith(("--- ", "@@")):
            if old:
                yield Hunk(file, old, new)
            old = new = ""
            file = line.removeprefix("--- ") if line.startswith("--- ") else file
        elif line.startswith("-"):
            old += line[1:] + "\n"
        elif line.startswith("+"):
            new += line[1:] + "\n"


def all_mutants() -> list[Mutant]:
    """Return them in the order of their names."""
    return [Mutant.read(path) for path in sorted(MUTANTS.glob("*.patch"))]


def hunt(mutant: Mutant) -> tuple[str, float]:
    """Return what was found, empty for nothing, and in how many seconds of the processor's time."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for name in COPIED:
            source = CHECKOUT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        mutant.plant(copy)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            mutant.command(),
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            preexec_fn=_limit,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _finding(done.returncode, done.stdout), spent


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))


def _finding(status: int, said: str) -> str:
    """Return by name what found it: rules or tests; status 1 alone means that anything did."""
    if status != 1:
        return ""
    tests = re.findall(r"^FAILED \S+::(\w+)", said, re.MULTILINE)
    rules = re.findall(r"^([a-z_]+): ", said, re.MULTILINE)
    return ", ".join(dict.fromkeys([*tests, *rules]))


def main(names: Sequence[str]) -> int:
    """Hunt these, or all."""
    missed = 0
    for mutant in all_mutants():
        if names and mutant.name not in names:
            continue
        finding, seconds = hunt(mutant)
        missed += not finding
        print(f"| {mutant.name} | {mutant.what} | {finding or 'NOT FOUND'} | {seconds:.0f} |")
        sys.stdout.flush()
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
