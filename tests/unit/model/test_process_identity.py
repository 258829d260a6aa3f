"""Whether the process that gave itself an identity certainly runs still."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient.model.process_identity import (
    _IMAGE,
    fingerprint,
    is_predecessor,
    process_token,
    provably_runs,
    this_thread,
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


def test_a_dead_one_does_not(child: subprocess.Popen[bytes]) -> None:
    """As soon as it is dead, even if its parent has not noticed yet."""
    said = fingerprint(child.pid)
    assert said is not None
    child.kill()
    wait_until(lambda: not provably_runs(said), what="the end of the child")
    child.wait()
    assert not provably_runs(said)


@pytest.mark.parametrize("word", range(4))
def test_every_part_counts(word: int) -> None:
    """Another boot, namespace, pid or start time is another process."""
    words = (fingerprint(os.getpid()) or "").split(" ")
    words[word] = "1" if word >= 2 else "other"
    assert not provably_runs(" ".join(words))


@pytest.mark.parametrize("pid", ["", "x", "-1", "²", "١", "9" * 5000, "1/../self", "self"])
def test_hostile_words_prove_nothing(pid: str) -> None:
    """It stands in the store, where anyone may have written it."""
    boot, namespace, _, start = (fingerprint(os.getpid()) or "").split(" ")
    assert provably_runs(f"{boot} {namespace} {pid} {start}") is False


@pytest.mark.parametrize("said", [None, "", " ", "a b c", "a b c d e", "\0 \0 1 \0"])
def test_another_form_proves_nothing(said: str | None) -> None:
    """Neither nothing, nor too few words, nor too many."""
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


def test_what_does_not_exist_has_no_fingerprint() -> None:
    """A pid beyond all pids names nobody."""
    assert fingerprint(2**40) is None


REPLACED = """
import os, sys
from lockclient.model.process_identity import fingerprint, is_predecessor, this_thread
mine = [fingerprint(os.getpid()), this_thread()[1]]
if len(sys.argv) < 3:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], *mine])
before = sys.argv[2:]
print(before[0] == mine[0], is_predecessor(*before), is_predecessor(*mine))
"""


def test_a_program_knows_what_the_same_process_ran_before() -> None:
    """After `exec` it is the same process, and another image; it is not its own predecessor."""
    said = subprocess.check_output([sys.executable, "-c", REPLACED, REPLACED], text=True)
    assert said == "True True False\n"


@pytest.mark.parametrize("actor", [None, "", ".", "abc.1", _IMAGE.upper(), " i.1"])
def test_what_names_no_image_proves_nothing(actor: str | None) -> None:
    """Nor does one by chance, as an earlier release or another sub-interpreter may draw it."""
    assert not is_predecessor(fingerprint(os.getpid()), actor)


def test_another_image_proves_nothing_of_another_process(child: subprocess.Popen[bytes]) -> None:
    """The same image in the same process is alive, another process may well be."""
    other = f"{_IMAGE}0.1"
    assert is_predecessor(fingerprint(os.getpid()), other)
    assert not is_predecessor(fingerprint(os.getpid()), this_thread()[1])
    for said in (fingerprint(child.pid), None, "", "a b c d"):
        assert not is_predecessor(said, other)


def test_without_an_image_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not say it, the token is drawn by chance."""
    process_token.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: b"")
        drawn = process_token()
        assert not is_predecessor(fingerprint(os.getpid()), f"{_IMAGE}0.1")
    process_token.cache_clear()
    assert not drawn.startswith(_IMAGE)
    assert not is_predecessor(fingerprint(os.getpid()), f"{drawn}.1")
