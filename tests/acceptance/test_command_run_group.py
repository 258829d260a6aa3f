"""`clustermutex run`: the rest of the command's process group after a signal ended the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockclient.stores.service_protocol import ServiceStore
from tests.acceptance.shells import (
    PATIENCE,
    Start,
    Terminal,
    gone,
    held,
    remove,
    written,
)
from tests.support.locks import has
from tests.support.processes import needed, wait_until
from tests.support.soak import soaking
from tests.support.terminal import COMMAND

NAME = "deploy/prod"
WORKER = """
import os, pathlib, signal, sys, time
number, lasts = signal.Signals["SIG" + sys.argv[1]], float(sys.argv[2])
told = []
if len(sys.argv) > 3:
    os.setsid()
signal.signal(number, lambda *_: told.append(time.monotonic()))
pathlib.Path("pid").write_text(f"{os.getpid()}\\n")
while not told or time.monotonic() < told[0] + lasts:
    if told:
        pathlib.Path("told").touch()
    time.sleep(0.01)
pathlib.Path("ended").write_text(f"{time.time()}\\n")
"""
"""A process that works on for some seconds after a signal, and writes down when it ended.

With a third argument it has a session and a process group of its own.
"""
HEADLESS = """
import ctypes, os, pathlib, platform, signal, threading, time

def work():
    signal.sigwait({signal.SIGTERM})
    pathlib.Path("told").touch()
    time.sleep(1.5)
    pathlib.Path("ended").touch()
    os._exit(0)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
threading.Thread(target=work).start()
pathlib.Path("pid").write_text(f"{os.getpid()}\\n")
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
"""A process whose first thread ends by itself, and whose second one works on after SIGTERM."""
SCRIPT = '"$@" & wait'
"""A script that dies of a signal at once, whatever its worker does."""


@pytest.fixture
def worker(tmp_path: Path) -> list[str]:
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    return [sys.executable, str(program)]


@pytest.mark.parametrize("name", ["TERM", *soaking("INT", "QUIT")])
@pytest.mark.parametrize("whom", ["us", "the command"])
def test_the_lock_is_held_until_the_last_of_the_group_has_ended(
    start: Start, store: ServiceStore, tmp_path: Path, worker: list[str], name: str, whom: str
) -> None:
    """The signal is sent to us, who pass it on, or to the whole process group."""
    number = signal.Signals[f"SIG{name}"]
    words = ["--grace", "60", "--", "sh", "-c", SCRIPT, "sh", *worker, name, "1.5"]
    with start("run", NAME, *words) as run:
        group = os.getpgid(int(written(tmp_path / "pid")))
        os.kill(run.pid, number) if whom == "us" else os.killpg(group, number)
        wait_until(lambda: (tmp_path / "told").exists(), what="the signal in the worker")
        wait_until(lambda: gone(group), what="the end of the script")
        assert has(store, NAME)
        wait_until(lambda: has(store, NAME) is None, PATIENCE, "the release")
        assert (tmp_path / "ended").exists()
        dies_of_it = (whom, name) == ("us", "INT")  # a script around us ends by that alone
        run.ends(-number if dies_of_it else 128 + number)
    assert run.said == ""


def test_it_is_pushed_meanwhile(
    start: Start, store: ServiceStore, tmp_path: Path, worker: list[str]
) -> None:
    """A worker that outlives the lock's time without a push still has the lock."""
    times = ["--grace", "60", "--expected-runtime", "0.4", "--auto-unlock-after", "1.5"]
    script = ["sh", "-c", SCRIPT, "sh", *worker, "TERM", "4"]
    with start("run", NAME, *times, "--", *script) as run:
        written(tmp_path / "pid")
        run.terminate()
        wait_until(lambda: (tmp_path / "told").exists(), what="the signal in the worker")
        kept_until = held(store, NAME).auto_unlock_at or 0
        wait_until(lambda: (held(store, NAME).alive_at or 0) > kept_until, PATIENCE, "pushes")
        run.ends(128 + signal.SIGTERM)
    assert (tmp_path / "ended").exists()
    assert run.said == ""


def test_what_does_not_end_within_the_grace_is_killed_before_the_release(
    start: Start, store: ServiceStore, tmp_path: Path, worker: list[str]
) -> None:
    script = ["sh", "-c", SCRIPT, "sh", *worker, "TERM", "600"]
    with start("run", NAME, "--grace", "1", "--", *script) as run:
        pid = int(written(tmp_path / "pid"))
        run.terminate()
        wait_until(lambda: (tmp_path / "told").exists(), what="the signal in the worker")
        told_at = time.monotonic()
        assert has(store, NAME)
        wait_until(lambda: has(store, NAME) is None, PATIENCE, "the release")
        assert gone(pid)
        assert time.monotonic() > told_at + 0.8, "it had its grace"
        run.ends(128 + signal.SIGTERM)
    assert "SIGKILL ends what the command left in its process group" in run.said


def test_a_second_signal_is_passed_on_to_what_is_left(
    start: Start, tmp_path: Path, worker: list[str]
) -> None:
    script = ["sh", "-c", SCRIPT, "sh", *worker, "TERM", "600"]
    with start("run", NAME, "--grace", "60", "--", *script) as run:
        pid = int(written(tmp_path / "pid"))
        group = os.getpgid(pid)
        run.terminate()
        wait_until(lambda: (tmp_path / "told").exists() and gone(group), what="the first signal")
        run.send_signal(signal.SIGUSR1)
        wait_until(lambda: gone(pid), what="the end of the worker")
        run.ends(128 + signal.SIGTERM)


def test_a_lock_that_is_lost_meanwhile_ends_what_is_left(
    start: Start, store: ServiceStore, tmp_path: Path, worker: list[str]
) -> None:
    """By SIGTERM again, and SIGKILL at the earlier one of both moments."""
    script = ["sh", "-c", SCRIPT, "sh", *worker, "INT", "600"]
    with start("run", NAME, "--grace", "60", "--", *script) as run:
        pid = int(written(tmp_path / "pid"))
        group = os.getpgid(pid)
        run.send_signal(signal.SIGINT)
        wait_until(lambda: (tmp_path / "told").exists() and gone(group), what="the first signal")
        remove(store, NAME)
        wait_until(lambda: gone(pid), what="the end of the worker")
        run.ends(76)
    assert "is lost" in run.said


def test_the_command_itself_is_never_killed_for_a_signal_that_was_passed_on(
    start: Start, store: ServiceStore, tmp_path: Path, worker: list[str]
) -> None:
    """The grace begins when it has ended."""
    with start("run", NAME, "--grace", "0.2", "--", *worker, "TERM", "2") as run:
        written(tmp_path / "pid")
        run.terminate()
        run.ends(0)
    assert (tmp_path / "ended").exists()
    assert has(store, NAME) is None
    assert run.said == ""


@pytest.mark.parametrize("before", ["a signal that ends it", "nothing"])
def test_what_is_outside_of_the_group_or_left_on_purpose_is_not_waited_for(
    start: Start, store: ServiceStore, tmp_path: Path, worker: list[str], before: str
) -> None:
    """A daemon with its own session; and what a command leaves that ends by itself."""
    signalled = before != "nothing"
    apart = ["apart"] if signalled else []
    script = '"$@" & until test -e go; do sleep 0.05; done'
    words = ["--grace", "60", "--", "sh", "-c", script, "sh", *worker, "USR1", "0", *apart]
    with start("run", NAME, *words) as run:
        pid = int(written(tmp_path / "pid"))
        if signalled:
            run.terminate()
            run.ends(128 + signal.SIGTERM)
        else:
            run.go()
        assert has(store, NAME) is None
        assert not gone(pid)


def test_zombies_are_not_waited_for(
    env: dict[str, str], store: ServiceStore, tmp_path: Path, worker: list[str]
) -> None:
    """Where process 1 of a container, which inherits orphans, waits for none: here we are that."""
    reaper = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    script = ["sh", "-c", SCRIPT, "sh", *worker, "TERM", "0.5"]
    words = [sys.executable, "-c", reaper, COMMAND, "run", NAME, "--grace", "60", "--", *script]
    run = subprocess.Popen(words, env=env, cwd=tmp_path)
    try:
        written(tmp_path / "pid")
        run.terminate()
        assert run.wait(PATIENCE) == 128 + signal.SIGTERM
        assert has(store, NAME) is None
    finally:
        run.kill()
        run.wait()


def test_a_process_whose_first_thread_has_ended_is_waited_for(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    """The system shows it as a zombie, while its other threads work."""
    (tmp_path / "worker.py").write_text(HEADLESS)
    words = ["--grace", "60", "--", "sh", "-c", SCRIPT, "sh", sys.executable, "worker.py"]
    with start("run", NAME, *words) as run:
        pid = int(written(tmp_path / "pid"))
        group = os.getpgid(pid)
        wait_until(lambda: gone(pid), what="the end of its first thread")
        run.terminate()
        wait_until(lambda: (tmp_path / "told").exists() and gone(group), what="the signal")
        assert has(store, NAME)
        wait_until(lambda: has(store, NAME) is None, PATIENCE, "the release")
        assert (tmp_path / "ended").exists()
        run.ends(128 + signal.SIGTERM)


def test_ctrl_c_in_a_terminal_waits_as_well(
    env: dict[str, str], store: ServiceStore, tmp_path: Path, worker: list[str]
) -> None:
    """The terminal sends it to the command's group, and nothing to us."""
    (tmp_path / "script").write_text(SCRIPT)
    run = f"clustermutex run {NAME} --grace 60 -- sh ./script {' '.join(worker)} INT 1.5"
    with Terminal([needed("bash"), "--norc", "--noediting", "-i"], env, tmp_path) as terminal:
        terminal.shows("ready> ")
        terminal.enter(f"{run}\n")
        group = os.getpgid(int(written(tmp_path / "pid")))
        terminal.enter("\x03")
        wait_until(lambda: (tmp_path / "told").exists() and gone(group), what="the signal")
        assert has(store, NAME)
        wait_until(lambda: has(store, NAME) is None, PATIENCE, "the release")
        assert (tmp_path / "ended").exists()
        terminal.shows("ready> ")
