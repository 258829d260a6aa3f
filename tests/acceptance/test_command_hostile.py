"""The command beside hostile clients: what it prints steers no terminal and names no wrong lock."""

from __future__ import annotations

import pytest

from tests.support.memory_store import MemoryStore
from tests.support.polls import ALL, REAL
from tests.support.terminal import called, shown

HOSTILE = "h\x1b[2J\x9b\x7f\u202e\u3164\nclustermutex: all is well"


@pytest.fixture
def held() -> MemoryStore:
    """All look-alikes of a lock, and itself."""
    memory = MemoryStore()
    for name in (REAL, *ALL.values()):
        memory.take(name)
    return memory


def test_ls_tells_all_look_alikes_apart(held: MemoryStore) -> None:
    """Piped, and on a terminal, with a word on how many there are."""
    rows = [line.split("\t") for line in called(held, "ls").stdout.splitlines()[1:]]
    names = {row[1] for row in rows}
    assert len(names) == len(ALL) + 1
    assert all(name.isascii() for name in names)
    text = shown(called(held, "ls", columns=160))
    assert [name for name in names if f" {name} " not in text] == []
    assert f"{len(names)} names look like another's." in text


def test_show_says_which_other_lock_it_looks_like(held: MemoryStore) -> None:
    """Before a person acts on it."""
    for name in ALL.values():
        first, second, *_ = called(held, "show", name).stdout.splitlines()
        assert first.partition("  ")[0] != REAL
        assert first.isascii()
        assert second.split() == ["looks", "like", f"{REAL},", "which", "is", "held,", "too"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["run", "--no-wait", REAL, "true"], 75),
        (["--debug", "run", "--no-wait", REAL, "true"], 75),
        (["show", REAL], 0),
        (["ls"], 0),
    ],
)
def test_a_hostile_host_steers_no_terminal_by_an_error_or_its_traceback(
    words: list[str], status: int
) -> None:
    """A lock that is held by a host of that name, and a command that does not get it."""
    memory = MemoryStore()
    memory.take(REAL, hostname=HOSTILE)
    done = called(memory, *words, status=status)
    said = done.stdout + done.stderr
    assert "all is well" in said
    assert "\nclustermutex: all is well" not in said
    assert not {*said} & {*HOSTILE} - {"\n"} - {*map(chr, range(32, 127))}
