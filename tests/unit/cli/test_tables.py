"""Tables on a terminal: columns that are shortened, left out, or always whole."""

from __future__ import annotations

import re
import time

import click
import pytest

from tests.support.memory_store import MemoryStore
from tests.support.terminal import called, shown

URL = "https://ci.example.org/shop/builds/1234567890"
LONG = "terraform/shop-production-eu-west-1"


@pytest.fixture
def memory() -> MemoryStore:
    """A lock past its alert for which twelve wait, and one that never ends."""
    memory = MemoryStore()
    memory.take(
        *(LONG,), hostname="ci-runner-3.prod.example.com", pid=30415, reason=URL,
        held_for=750, alert=600, unlock=1650,
    )  # fmt: skip
    for number in range(12):
        memory.wait(LONG, f"w{number}", hostname="h", since=time.time() - 930)
    reason = "nightly base backup of shop-db"
    memory.take("backup", hostname="db", pid=1, reason=reason, held_for=150, unlock=None)
    return memory


def table(memory: MemoryStore, width: int) -> list[str]:
    """Return the lines of `ls` on a terminal of this width, without the sentence below."""
    lines = [line.rstrip() for line in shown(called(memory, "ls", columns=width)).splitlines()]
    return lines[: lines.index("")] if "" in lines else lines[:-1]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_states_and_times_are_never_cut(memory: MemoryStore, width: int) -> None:
    """A time without its last character is another time; how long people wait goes as a whole."""
    titles, *lines = table(memory, width)
    wait = r" · 15 min" if width > 100 else ""
    first = r" +12 min \d+ s" if width > 100 else ""  # the first to go
    second = r" +2 min \d+ s ago" if width > 150 else ""
    alert = rf"alert +.* 12{wait} .*12 min \d+ s{first}{second} +in 1[45] min( \d+ s)?"
    assert re.fullmatch(alert, lines[0])
    first, second = (
        (r" +2 min \d+ s" if width > 100 else ""),
        (r" +in 2 min \d+ s" if second else ""),
    )
    assert re.fullmatch(rf"ok +backup +0 .*2 min \d+ s{first}{second} +never", lines[1])
    assert all(len(line) <= width for line in (titles, *lines))
    assert titles.split()[:3] == ["STATE", "NAME", "WAIT"]


def test_columns_are_shortened_then_left_out(memory: MemoryStore) -> None:
    titles, line, _ = table(memory, 80)
    assert "REASON" not in titles
    assert re.search(r"terraform…\S*-west-1 +12  ci-runner-3:30415", line)
    assert "HOLDER" not in table(memory, 60)[0]
    assert URL in table(memory, 200)[1]
    short = MemoryStore()
    short.take("backup", hostname="db", pid=1, reason="", held_for=9)
    assert "REASON" in table(short, 90)[0]
    titles = table(short, 75)[0]
    assert "ALERT" in titles, "an empty column is left out before one with times"
    assert "REASON" not in titles


def test_no_two_names_look_alike(memory: MemoryStore) -> None:
    """Names that differ in their middle only take more lines."""
    for number in (1, 2):
        memory.take(f"deploy/service-{number}/eu-west/production", hostname="bill-3", held_for=9)
    text = re.sub(r"\s", "", "".join(line[7:30].split("  ")[0] for line in table(memory, 60)))
    for number in (1, 2):
        assert f"deploy/service-{number}/eu-west/production" in text


def test_an_ordinary_removal_fits_a_terminal(memory: MemoryStore) -> None:
    how = {"removed_by": "unlocker@vm:777", "how": "auto-unlock", "why": "no heartbeat for 12.3 s"}
    memory.removed("nightly-report", "u", hostname="vm", pid=12345, removed_at=time.time(), **how)
    lines = shown(called(memory, "removed", columns=80)).splitlines()
    assert lines[0].split() == ["REMOVED", "NAME", "HOLDER", "HOW", "BY", "WHY"]
    assert re.search(r"nightly-report  vm:12345  auto-unlock  unlocker", lines[1])


def test_wide_characters_count_twice(memory: MemoryStore) -> None:
    memory.take("鍵" * 60, held_for=9, unlock=None)
    (line,) = [line for line in table(memory, 60) if "鍵" in line]
    assert line.endswith("never")
    assert len(line) + line.count("鍵") <= 60


def test_a_passed_auto_unlock_is_no_unlock(memory: MemoryStore) -> None:
    """The lock still stands, so the time is not written as the time of an unlock."""
    memory.take("abandoned", held_for=750, alert=600, unlock=700)
    (line,) = [line for line in table(memory, 120) if "abandoned" in line]
    assert re.search(r" 5\d s overdue$", line)
    assert re.search(
        r"auto-unlock .* UTC, 5\d s overdue", called(memory, "show", "abandoned").stdout
    )


def test_the_reason_of_a_removal_is_never_left_out(memory: MemoryStore) -> None:
    how = {"removed_by": "root@vm", "how": "force-unlock", "why": "the host is dead"}
    memory.removed("nightly-report", "u", hostname="vm", pid=1, removed_at=time.time(), **how)
    assert "the host" in shown(called(memory, "removed", columns=60))


def test_an_error_breaks_between_words(memory: MemoryStore) -> None:
    said = click.unstyle(called(memory, "show", "nobody's", columns=40, status=1).stderr)
    whole = called(memory, "show", "nobody's", status=1).stderr
    assert max(map(len, said.splitlines())) <= 40
    assert said.split() == whole.split()
