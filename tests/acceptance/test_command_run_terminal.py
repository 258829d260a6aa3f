"""`clustermutex run` in a terminal: keys, job control, programs that query the terminal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from lockclient.stores.service_store import ServiceStore
from tests.acceptance.shells import (
    PATIENCE,
    Terminal,
    held,
    remove,
)
from tests.support.locks import has
from tests.support.processes import needed, wait_until

NAME = "deploy/prod"
CTRL_C, CTRL_Z = "\x03", "\x1a"
READING = f"""clustermutex run {NAME} -- sh -c 'echo up; read line; echo "got $line"'"""
# By exec: in the moment of a vfork Debian's sh drops a SIGINT for the program that it starts.
LONG = f"clustermutex run {NAME} -- sh -c 'echo up; exec sleep 600'"
BASH_OPTIONS = ["--norc", "--noediting", "-i"]

STEPS = """
import pathlib, signal, sys, time

def end(*_):
    pathlib.Path("told").touch()
    sys.exit()

signal.signal(signal.SIGTERM, end)
with open("steps", "a") as steps:
    print("up", flush=True)
    while True:
        steps.write("x")
        steps.flush()
        time.sleep(0.05)
"""

COUNTING = """
import signal, sys

told = []
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.signal(signal.SIGINT, lambda *_: (told.append(1), print("INT", len(told), flush=True)))
print("up", flush=True)
while signal.sigtimedwait({signal.SIGUSR1}, 0.05) is None: pass
print("after", len(told), flush=True)
sys.exit(7)
"""


@pytest.fixture
def shell(env: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    """A shell with job control, at its prompt."""
    with Terminal([needed("bash"), *BASH_OPTIONS], env, tmp_path) as terminal:
        terminal.shows("ready> ")
        yield terminal


def _free(store: ServiceStore) -> None:
    wait_until(lambda: has(store, NAME) is None, PATIENCE, "the lock to be free")


@pytest.mark.parametrize("option", ["", "--alive=output"])
def test_the_terminal_is_the_commands_own(shell: Terminal, option: str) -> None:
    """All three streams are a terminal to it, of the right size, with it in the foreground."""
    code = (
        "import os; print(*map(os.isatty, range(3)), *os.get_terminal_size(1), "
        "os.tcgetpgrp(0) == os.getpgrp())"
    )
    shell.enter("stty cols 91 rows 17\n")
    shell.enter(f"clustermutex run {NAME} {option} -- {sys.executable} -c '{code}'; echo end-$?\n")
    shell.shows("True True True 91 17 True\r+\n")
    shell.shows("end-0")


@pytest.mark.parametrize("around", ["{}", "cat /dev/null | {} </dev/tty | cat"])
def test_the_command_reads_from_the_terminal(shell: Terminal, around: str) -> None:
    shell.runs(f"{around.format(READING)}; echo end-$?")
    shell.enter("a line\n")
    shell.shows("got a line\r+\n")
    shell.shows("end-0")


@pytest.mark.parametrize("streams", ["", " | cat"])
def test_ctrl_c_ends_the_command_and_the_script_around(
    shell: Terminal, store: ServiceStore, tmp_path: Path, streams: str
) -> None:
    """The command ends as without us; the lock is released."""
    (tmp_path / "script").write_text(f"{LONG}{streams}\necho not-to-be-reached\n")
    for script in ("sh ./script", "bash ./script"):
        shell.runs(f"{script}; echo end-$?")
        held(store, NAME)
        shell.enter(CTRL_C)
        shell.enter("echo now-$?\n")
        shell.shows("now-130")
        _free(store)
    assert "\nnot-to-be-reached" not in shell.text


def test_ctrl_c_is_the_commands_to_handle(
    shell: Terminal, store: ServiceStore, tmp_path: Path
) -> None:
    """It comes once: from the terminal, or from us if another program sent it to us alone."""
    (tmp_path / "counting.py").write_text(COUNTING)
    shell.runs(f"clustermutex run {NAME} -- {sys.executable} counting.py; echo end-$?")
    shell.enter(CTRL_C)
    shell.shows("INT 1")
    os.kill(held(store, NAME).pid or 0, signal.SIGINT)
    shell.shows("INT 2")
    os.kill(held(store, NAME).pid or 0, signal.SIGUSR1)
    shell.shows("after 2")
    shell.shows("end-7")


def test_a_waiting_run_names_the_holder(
    shell: Terminal, store: ServiceStore, tmp_path: Path
) -> None:
    mutex = ClusterMutex(NAME, reason="first", store=store)
    assert mutex.acquire()
    shell.enter("stty tostop\n")
    shell.enter(f"clustermutex run {NAME} --quiet -- true 2>log & true\n")
    shell.enter(f"clustermutex run {NAME} -- touch had & true\n")
    wait_until(lambda: len(mutex.waiters()) == 2, what="two waiters")
    shell.enter(f"clustermutex run {NAME} -- echo had; echo end-$?\n")
    told = shell.shows(f"Waiting for the lock '{NAME}' for [^\r]+").group()
    assert f"pid {os.getpid()}" in told
    mutex.release()
    shell.shows(f"Got the lock '{NAME}' after [^\r]+\r+\nhad\r+\n")
    shell.shows("end-0")
    assert (tmp_path / "had").exists(), "it was not stopped, so it kept its place"
    assert "Waiting" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("around", ["{}", "{} | cat", "{} &"])
def test_a_stopped_job_continues_with_fg(shell: Terminal, store: ServiceStore, around: str) -> None:
    shell.runs(around.format(READING))
    if around.endswith("&"):
        shell.enter("\nuntil jobs | grep Stopped; do sleep 0.1; done\n")
    else:
        shell.enter(CTRL_Z)
    shell.shows("Stopped ")
    assert held(store, NAME)
    shell.enter("fg; echo end-$?\n")
    shell.shows("fg; echo.*\n")
    shell.enter("after all\n")
    shell.shows("got after all\r+\n")
    shell.shows("end-0")
    _free(store)


def test_a_lock_lost_while_stopped(shell: Terminal, store: ServiceStore, tmp_path: Path) -> None:
    """The command is ended as soon as it continues: its time ran out while all stood still."""
    # Not in sh: one that starts a program by vfork can't be stopped at that moment, nor continued.
    (tmp_path / "steps.py").write_text(STEPS)
    times = "--expected-runtime 0.5 --auto-unlock-after 1"
    shell.runs(f"clustermutex run {times} {NAME} -- {sys.executable} steps.py; echo end-$?")
    shell.enter(CTRL_Z)
    shell.shows("Stopped")
    until = held(store, NAME).auto_unlock_at or 0
    shell.enter(f"while [ $(date +%s) -lt {int(until) + 2} ]; do sleep 0.1; done; echo over\n")
    shell.shows("\nover")
    steps = len((tmp_path / "steps").read_text())
    shell.enter("fg; echo end-$?\n")
    shell.shows("The lock is lost: ending the command")
    shell.shows("end-76")
    assert (tmp_path / "told").exists()
    assert len((tmp_path / "steps").read_text()) <= steps + 20, "within a second"


def test_without_a_shell(env: dict[str, str], tmp_path: Path, store: ServiceStore) -> None:
    """Like `docker run -it`: no shell could continue a stopped job, so Ctrl-Z stops none."""
    words = ["clustermutex", "run", NAME, "--", "sh", "-c", 'echo up; read line; echo "got $line"']
    with Terminal(words, env, tmp_path) as terminal:
        terminal.shows("up\r\n")
        terminal.enter(CTRL_Z)
        terminal.enter("a line\n")
        terminal.shows("got a line")
        assert terminal.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("option", ["", "--alive=output"])
def test_run_on_a_terminal_with_tostop(shell: Terminal, store: ServiceStore, option: str) -> None:
    command = "sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.1; done'"
    shell.enter("stty tostop\n")
    shell.runs(f"clustermutex run --grace 1 {option} {NAME} -- {command}; echo end-$?")
    remove(store, NAME)
    shell.shows("The lock is lost")
    shell.shows("end-76")
    shell.enter("echo still-$((40 + 2))\n")
    shell.shows("still-42")


def test_a_hang_up_ends_the_command(
    env: dict[str, str], tmp_path: Path, store: ServiceStore
) -> None:
    words = ["clustermutex", "run", NAME, "--", "sh", "-c", "echo up; exec sleep 600"]
    with Terminal(words, env, tmp_path) as terminal:
        terminal.shows("up\r\n")
        held(store, NAME)
        terminal.hang_up()
        terminal.process.wait(PATIENCE)
    _free(store)
