"""An identity names a process: does it still run?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient.model.process_identity import (
    fingerprint,
    provably_runs,
)
from tests.support.processes import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is proved by /proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_running_process_provably_runs(child: subprocess.Popen[bytes]) -> None:
    """This one, and any other on the machine."""
    assert provably_runs(fingerprint(os.getpid()))
    assert provably_runs(fingerprint(child.pid))


def test_a_dead_process_does_not_run(child: subprocess.Popen[bytes]) -> None:
    said = fingerprint(child.pid)
    assert said is not None
    child.kill()
    wait_until(lambda: not provably_runs(said), what="the end of the child")
    child.wait()
    assert not provably_runs(said)


@pytest.mark.parametrize("word", range(5))
def test_every_part_counts(word: int) -> None:
    """Another boot, namespace, pid, start time or image is another process."""
    words = (fingerprint(os.getpid()) or "").split(" ")
    words[word] = "1" if word >= 2 else "other"
    assert not provably_runs(" ".join(words))


@pytest.mark.parametrize("pid", ["", "x", "-1", "²", "١", "9" * 5000, "1/../self", "self"])
def test_hostile_words_prove_nothing(pid: str) -> None:
    """It stands in the store, where anyone may have written it."""
    boot, namespace, _, *rest = (fingerprint(os.getpid()) or "").split(" ")
    assert provably_runs(" ".join((boot, namespace, pid, *rest))) is False


@pytest.mark.parametrize("said", [None, "", " ", "a b c", "a b c d e f", "\0 \0 1 \0"])
def test_another_form_proves_nothing(said: str | None) -> None:
    assert provably_runs(said) is False


@pytest.mark.parametrize("name", [b"a) R 1 (b", b"tr\xc3\xbcmmer\xc3", b"\xff\n\xff"])
def test_a_process_may_call_itself_anything(name: bytes) -> None:
    """The kernel cuts names off in the middle of a character, and they may hold brackets."""
    code = f"open('/proc/self/comm', 'wb').write({name!r}); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        try:
            wait_until(lambda: comm.read_bytes() == name + b"\n", what="the new name")
            said = fingerprint(process.pid)
            assert said is not None
            assert said.split(" ")[3].isdecimal()
            assert provably_runs(said)
        finally:
            process.kill()


def test_a_missing_process_has_no_fingerprint() -> None:
    assert fingerprint(2**40) is None


REPLACED = """
import os, sys
from lockclient.model.process_identity import fingerprint, provably_runs
mine = fingerprint(os.getpid())
if len(sys.argv) < 3:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], mine])
before = sys.argv[2]
print(before.split()[:4] == mine.split()[:4], provably_runs(before), provably_runs(mine))
"""


def test_a_program_knows_the_fingerprint_from_before_its_exec() -> None:
    said = subprocess.check_output([sys.executable, "-c", REPLACED, REPLACED], text=True)
    assert said == "True False True\n"


def test_another_image_proves_nothing_of_another_process(child: subprocess.Popen[bytes]) -> None:
    """It may have ended or not; of this process it has."""
    for pid, runs in ((os.getpid(), False), (child.pid, True)):
        said = fingerprint(pid)
        assert said is not None
        assert provably_runs(f"{said[:-16]}{'0' * 16}") is runs
