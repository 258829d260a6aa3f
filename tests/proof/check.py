"""Checks histories: `python -m tests.proof.check FILES`. Status 0: nothing found; 1: something.

What the files say is in `history`, what is looked for in `rules`.

Why looking at intervals is enough. To find out whether a history of overlapping operations is
linearizable one has in general to search the orders that they may have taken effect in (Wing and
Gong), since nobody knows at which moment each did. Here that is known: an operation of a lock takes
effect in one transaction, and etcd numbers transactions by revisions, one after the other. The
recorder has all of them. So each operation has its place, there is one order to look at, and two
questions remain: is this order one that a mutex with fencing allows (`one_holder`, `tokens_rise`,
`queue_order`, `unlocked_by_holder`), and does it respect real time, that is, does no operation that
was over before another one began stand behind it (`linearizable`)? Both take one pass. An operation
without an answer may have a revision, and then it stands at that, or none, and then it did nothing.
What is left out by this are reads that decide nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.proof.evidence import History
from tests.proof.history import Limits, Line, read
from tests.proof.rules import RULES, WITHOUT_EVENTS


@dataclass(frozen=True)
class Broken:
    """A rule that a history breaks, and how."""

    rule: str
    how: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.how}"


def check(lines: Sequence[Line]) -> list[Broken]:
    """Return all that is found in a history."""
    said = next((line.limits for line in lines if line.what == "limits"), {})
    history = History(sorted(lines, key=lambda line: line.at), Limits.of(said))
    # Stores other than etcd tell nobody what happens in them.
    rules = RULES if history.by_what["written"] else WITHOUT_EVENTS
    return [Broken(rule.__name__, how) for rule in rules for how in rule(history)]


def main(files: Sequence[str]) -> int:
    """Check these files as one history."""
    if not files:
        print("Which files? python -m tests.proof.check FILES", file=sys.stderr)
        return 2
    try:
        lines = read(map(Path, files))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    broken = check(lines)
    for one in broken:
        print(one)
    counts = {what: sum(line.what == what for line in lines) for what in ("acquired", "written")}
    print(f"{counts['acquired']} acquisitions, {counts['written']} writes: {len(broken)} breaks")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
