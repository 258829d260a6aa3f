"""The checker against detangle's, which searches orders (Wing and Gong).

It gets the same small histories: the calls, their times, and their outcomes by revisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detangle import lin
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.proof.check import check
from tests.proof.history import Line
from tests.unit.proof.test_rules import gone, taken

ABOUT_IT = {"one_holder", "tokens_rise", "linearizable"}


@dataclass(frozen=True)
class Hold:
    """One acquisition and its release: when each was called and answered, and its revision."""

    uuid: str
    acquire: tuple[int, int, int]
    release: tuple[int, int, int]


@st.composite
def histories(draw: st.DrawFn) -> list[Hold]:
    """Up to four holds: as a mutex has them, with calls that overlap, or with turns exchanged."""
    count = draw(st.integers(2, 4))
    order = list(range(2 * count))
    for turn in draw(st.lists(st.integers(0, count - 2), max_size=2)):
        place = 2 * turn + 1
        order[place], order[place + 1] = order[place + 1], order[place]
    early = st.integers(0, 40)
    steps = []
    for place in order:
        at = 30 * (place + 1)
        steps.append((at - draw(early), at + draw(early), 10 + order.index(place)))
    # A program calls release after its acquire was answered.
    held = [Hold(f"u{n}", steps[2 * n], steps[2 * n + 1]) for n in range(count)]
    return [
        hold for hold in held if hold.release[0] > hold.acquire[1]
    ]  # fmt: skip


class Fenced(lin.Model):
    """A mutex with numbered transactions: its holder, the number of its take, the last number."""

    def init(self) -> Any:
        return (None, 0)

    def step(self, state: Any, op: lin.Operation) -> tuple[bool, Any]:
        holder, last = state
        fits = holder is None if op.f == "acquire" else holder == op.arg
        after = op.arg if op.f == "acquire" else None
        return fits and op.output > last, (after, op.output)


def found_by_search(holds: list[Hold]) -> bool:
    calls = [
        (time, number, what, hold.uuid, step[2])
        for hold in holds
        for what, step in (("acquire", hold.acquire), ("release", hold.release))
        for number, time in enumerate(step[:2])
    ]
    history = lin.History()
    running: dict[tuple[str, str], lin.Operation] = {}
    for _, answered, what, uuid, revision in sorted(calls):
        if answered:
            history.ok(running[what, uuid], revision)
        else:
            running[what, uuid] = history.invoke(f"{what} {uuid}", what, uuid)
    return not history.check(Fenced()).ok


def found_by_revisions(holds: list[Hold]) -> bool:
    lines = []
    for number, hold in enumerate(holds):
        for what, (called, answered, revision) in (
            ("acquire", hold.acquire),
            ("release", hold.release),
        ):
            # The recorder's clock is not what is asked here: it has seen all before.
            seen = revision / 1000
            lines += taken(seen, revision, hold.uuid) if what == "acquire" else gone(seen, revision)
            uuid = "" if what == "acquire" else hold.uuid
            lines.append(Line(called, "p", what, 2 * number, "x", uuid))
            done = {"acquire": "acquired", "release": "released"}[what]
            lines.append(Line(answered, "p", done, 2 * number, "x", hold.uuid, revision))
    return bool(ABOUT_IT & {broken.rule for broken in check(lines)})


@settings(max_examples=500, deadline=None)
@given(histories())
def test_both_checkers_agree(holds: list[Hold]) -> None:
    found = found_by_search(holds)
    event("not linearizable" if found else "linearizable")
    assert found_by_revisions(holds) is found
