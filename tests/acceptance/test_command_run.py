"""`clustermutex run`: the lock is held while the command and its children live."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from lockclient.stores.request_types import Take
from lockclient.stores.service_store import ServiceStore
from tests.acceptance.shells import (
    PATIENCE,
    Running,
    Start,
    Terminal,
    gone,
    held,
    in_line,
    remove,
    written,
)
from tests.support.locks import has, read
from tests.support.memory_store import MemoryStore
from tests.support.processes import needed, run_to_end, wait_until
from tests.support.soak import soaking
from tests.support.terminal import called, one_line

NAME = "deploy/prod"
UNTIL_GO = "echo > up; until test -e go; do sleep 0.05; done"


@pytest.fixture
def blocked(store: ServiceStore) -> ClusterMutex:
    """The lock, which another client has."""
    mutex = ClusterMutex(NAME, store=store, reason="somebody's own")
    mutex.acquire()
    return mutex


class Opened(MemoryStore):
    """A store whose requests a test sees, also those of the command."""

    def another(self) -> MemoryStore:
        return self


@pytest.fixture
def taken() -> MemoryStore:
    """Another client's lock in memory."""
    memory = Opened()
    memory.take(NAME)
    return memory


# ---------------------------------------------------------------- in a shell


def first(statement: str) -> str:
    """Return a program that executes a statement, and then becomes the program of its arguments."""
    end = "os.execvp(sys.argv[1], sys.argv[1:])"
    return f"{sys.executable} -c 'import os, sys; from signal import *; {statement}; {end}'"


NUMBERS = "".join(f"{number}\n" for number in range(1, 100001))
MIXED = "".join(f"{number}\ne{number}\n" for number in range(1, 10))
MIXING = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo e$i >&2; done"
OPTIONS = ("--reason ours {} printf %s. --reason x --debug -- y", r"--reason\.x\.--debug\.--\.y\.")
SCRIPTS: dict[str, tuple[str, int, str, str]] = {
    # What follows the command is its own: options, streams, files that are open, signals.
    "options": ("clustermutex run " + OPTIONS[0].format(NAME), 0, OPTIONS[1], ""),
    "options after --": ("clustermutex run " + OPTIONS[0].format(f"{NAME} --"), 0, OPTIONS[1], ""),
    "streams": (
        "exec 9>&1; echo in | RUN sh -c 'cat; echo error >&2; echo file >&9; ls /proc/self/fd'",
        *(0, "in\nfile\n0\n1\n2\n[3-8]\n9\n", "error\n"),
    ),
    "SIGPIPE": ("{ RUN yes; echo $? >&2; } | head -1", 0, "y\n", "141\n"),
    "SIGXFSZ": ("RUN sh -c 'ulimit -f 0; echo > large'", 128 + signal.SIGXFSZ, "", ""),
    "nohup": ("trap '' HUP; RUN sh -c 'kill -HUP $$; echo on'", 0, "on\n", ""),
    "its own command": (
        "CLUSTERMUTEX_URL=etcd://127.0.0.1:1/nowhere "
        f"clustermutex run --url $CLUSTERMUTEX_URL {NAME} -- clustermutex alive",
        *(0, "", ""),
    ),
    # The end of a child is seen where a parent has ignored or blocked the signal.
    "ignored": (f"{first('signal(SIGCHLD, SIG_IGN)')} RUN sh -c 'exit 3'", 3, "", ""),
    "blocked": (f"{first('pthread_sigmask(0, [SIGCHLD])')} RUN sh -c 'exit 3'", 3, "", ""),
    # Its status is ours, also one that has a meaning of ours; by a signal as in a shell.
    "0": ("RUN true", 0, "", ""),
    "75": ("RUN sh -c 'exit 75'", 75, "", ""),
    "SIGKILL": ("RUN sh -c 'kill -KILL $$'", 128 + signal.SIGKILL, "", ""),
    "SIGINT": ("RUN sh -c 'kill -INT $$'", 128 + signal.SIGINT, "", ""),
    # One that can't be started is a line.
    "no such name": ("RUN nothing-of-this-name", 127, "", "clustermutex: .*was not found.*\n"),
    "no name": ("RUN ''", 127, "", "clustermutex: .*was not found.*\n"),
    "no such path": ("RUN ./nothing", 127, "", "clustermutex: .*was not found.*\n"),
    "no interpreter": ("RUN ./no-interpreter", 127, "", "clustermutex: .*was not found.*\n"),
    "not executable": ("RUN ./not-executable", 126, "", "clustermutex: .*can't be executed.*\n"),
    "a folder": ("RUN .", 126, "", "clustermutex: .*can't be executed.*\n"),
    "no program": ("RUN ./no-program", 126, "", "clustermutex: .*#!.*\n"),
    # Its output as a sign of life comes through in order, to the last byte, and waits where it
    # does not fit; a program in the background that has it open is not waited for.
    "output": (
        "LIVE sh -c 'seq 100000; echo error >&2; printf end; exit 4'",
        *(4, f"{NUMBERS}end", "error\n"),
    ),
    "mixed output": (f"LIVE sh -c '{MIXING}' 2>&1", 0, MIXED, ""),
    "slow reader": (
        f"{first('os.set_blocking(1, False)')} LIVE head -c 1000000 /dev/zero | (sleep 1; wc -c)",
        *(0, "1000000\n", ""),
    ),
    "no output": ("LIVE true >&- 2>log; true", 0, "", ""),
    "background": ("LIVE sh -c 'sleep 600 & echo $! > pid'; kill $(cat pid)", 0, "", ""),
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_command_runs_as_without_us(
    env: dict[str, str], store: ServiceStore, tmp_path: Path, case: str
) -> None:
    """By what a shell sees of it; the lock is free afterwards."""
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    for name, text in (("no-interpreter", "#!/no/where\n"), ("no-program", "what?\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script, status, output, errors = SCRIPTS[case]
    run = f"clustermutex run {NAME}"
    script = script.replace("RUN", f"{run} --").replace("LIVE", f"{run} --alive output --")
    done = run_to_end("sh", "-c", script, env=env, folder=tmp_path, status=None)
    assert done.returncode == status, done
    assert re.fullmatch(output, done.stdout), done
    assert re.fullmatch(errors, done.stderr), done
    assert has(store, NAME) is None


def test_the_command_knows_its_lock(env: dict[str, str]) -> None:
    """Name, uuid and a fencing token that grows stand in its environment, beside what is there."""
    variables = ("NAME", "UUID", "FENCING_TOKEN", "OTHER")
    words = ["run", "it's $HOME", "printenv", *(f"CLUSTERMUTEX_{name}" for name in variables)]
    outer = env | {"CLUSTERMUTEX_OTHER": "kept", "CLUSTERMUTEX_UUID": "outer"}
    (first, *_), (second, *_) = told = [
        run_to_end("clustermutex", *words, env=outer).stdout.splitlines() for _ in range(2)
    ]
    assert first == second == "it's $HOME"
    assert [row[3] for row in told] == ["kept", "kept"]
    assert all(re.fullmatch(r"[0-9a-f-]{36}", row[1]) for row in told)
    assert told[0][1] != told[1][1]
    assert 0 < int(told[0][2]) < int(told[1][2])


# ---------------------------------------------------------------- while it runs


def test_the_lock_is_held_while_the_command_runs(start: Start, store: ServiceStore) -> None:
    """It shows its holder and the reason; it is free when the command has ended."""
    with start("run", NAME, "--reason", "v42", "--", "sh", "-c", UNTIL_GO) as run:
        run.up()
        holder = held(store, NAME)
        assert holder.hostname == socket.gethostname()
        assert (holder.pid, holder.reason) == (run.pid, "v42")
        assert not holder.faults()
        run.go()
    assert has(store, NAME) is None
    assert run.said == ""


@pytest.mark.parametrize(
    ("options", "durations"),
    [
        ([], (300.0, 900.0)),
        (["--expected-runtime", "10"], (10.0, 30.0)),
        (["--auto-unlock-after", "400"], (300.0, 400.0)),
        (["--auto-unlock-after", "never"], (300.0, None)),
    ],
)
def test_the_default_auto_unlock_of_run(
    taken: MemoryStore, options: list[str], durations: tuple[float, float | None]
) -> None:
    called(taken, "run", "--no-wait", *options, NAME, "true", status=75)
    (asked,) = [request.holder for request in taken.asked if isinstance(request, Take)]
    assert (asked.expected_runtime, asked.auto_unlock_after) == durations


@pytest.mark.parametrize("name", ["HUP", "INT", "TERM", "USR1", *soaking("QUIT", "USR2", "WINCH")])
def test_signals_are_passed_on(start: Start, tmp_path: Path, name: str) -> None:
    child = f"trap 'echo child >> told; exit 0' {name}; echo > up; while :; do sleep 0.05; done"
    script = f"trap 'echo parent >> told; exit 7' {name}; sh -c \"$1\"; sleep 1"
    with start("run", NAME, "--", "sh", "-c", script, "sh", child) as run:
        run.up()
        run.send_signal(signal.Signals[f"SIG{name}"])
        run.ends(7)
    assert sorted((tmp_path / "told").read_text().split()) == ["child", "parent"]


def test_a_stopped_command_keeps_its_lock(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    """A SIGSTOP by another program changes nothing; SIGCONT is passed on."""
    script = f"echo $$ > pid; {UNTIL_GO}"
    with start("run", NAME, "--expected-runtime", "0.5", "--", "sh", "-c", script) as run:
        os.kill(int(written(tmp_path / "pid")), signal.SIGSTOP)
        until = held(store, NAME).auto_unlock_at or 0
        wait_until(lambda: (held(store, NAME).alive_at or 0) > until, PATIENCE, "pushes")
        run.send_signal(signal.SIGCONT)
        run.go()


# ---------------------------------------------------------------- not acquired


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (["--no-wait"], 75, "is not free"),
        (["--timeout", "0"], 75, "is not free"),
        (["--timeout", "0.5"], 75, "could not be acquired within 0.5 s"),
        # As flock has it.
        (["--no-wait", "--conflict-exit-code", "0"], 0, "is not free"),
    ],
)
def test_not_acquired_is_75(
    taken: MemoryStore, tmp_path: Path, options: list[str], status: int, told: str
) -> None:
    """A line on stderr names the holder; the command is not run, and no ticket is left."""
    command = ("touch", str(tmp_path / "ran"))
    said = one_line(called(taken, "run", NAME, *options, "--", *command, status=status))
    held_by = "It is held by worker-1, pid 4711, for 'rebuild totals'"
    assert said.startswith(f"clustermutex: The lock '{NAME}' {told}. {held_by}")
    assert not (tmp_path / "ran").exists()
    assert not taken.model.lock(NAME).queue()


def test_run_waits_in_the_queue(start: Start, store: ServiceStore, blocked: ClusterMutex) -> None:
    with start("run", NAME, "--reason", "next", "--", "echo", "ran") as run:
        in_line(store, NAME)
        ticket = read(store, NAME).waiters[0]
        assert (ticket.pid, ticket.reason) == (run.pid, "next")
        wait_until(lambda: run.said.endswith("\n"), what="a line")
        blocked.release()
        assert run.communicate(timeout=PATIENCE)[0] == "ran\n"
        assert run.returncode == 0
    waiting, got = run.said.splitlines()
    assert waiting.startswith(f"clustermutex: Waiting for the lock '{NAME}' for ")
    assert f"; it is held by {socket.gethostname()}, pid {os.getpid()}, " in waiting
    assert ', for "somebody\'s own", since ' in waiting
    assert got.startswith(f"clustermutex: Got the lock '{NAME}' after ")


@pytest.mark.parametrize("alive", ["output", "process"])
def test_a_command_that_gets_no_descriptor_is_71(
    start: Start, store: ServiceStore, blocked: ClusterMutex, tmp_path: Path, alive: str
) -> None:
    """The limit falls during the wait: the command is not run, and the lock is free."""
    with start("run", NAME, "--alive", alive, "--", "touch", "ran") as run:
        in_line(store, NAME)
        resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (3, 3))
        blocked.release()
        run.ends(71)
    assert run.said.endswith("clustermutex: The system gives no file descriptor (ulimit -n).\n")
    assert not (tmp_path / "ran").exists()
    assert has(store, NAME) is None


@pytest.mark.parametrize("words", [["run", NAME, "true"], ["lock", NAME, "--export"]])
@pytest.mark.parametrize(
    "number",
    [
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1),
        *soaking(signal.SIGALRM, signal.SIGXCPU, signal.SIGRTMIN),
    ],
)
@pytest.mark.usefixtures("blocked")
def test_a_signal_while_waiting_leaves_no_ticket(
    start: Start, store: ServiceStore, words: list[str], number: signal.Signals
) -> None:
    """Gone before the process is, though its lease lasts for ten seconds; we die of the signal.

    A shell that evaluates the output of `lock --export` learns of it.
    """
    with start(*words) as run:
        in_line(store, NAME)
        run.send_signal(number)
        output, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == -number
        assert not read(store, NAME).waiters
    assert f"{number.name} came while waiting" in run.said
    assert output == ("" if words[0] == "run" else f"(exit {128 + number})\n")


# ---------------------------------------------------------------- no name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "make", "all"], "NAME is missing before --."),
        (["--timeout", "0", "--reason", "--", "--", "make"], "NAME is missing before --."),
        (["--"], "NAME is missing before --."),
        (["--no-wait", "--", "make", "--", "all"], "NAME is missing before --."),
        ([], "Missing argument 'NAME'."),
        ([NAME, "--"], "Missing argument '-- COMMAND...'."),
    ],
)
def test_a_command_is_not_taken_for_the_name(words: list[str], said: str) -> None:
    """`run $UNSET -- make all` took the lock `make` and ran `all`."""
    memory = Opened()
    error = one_line(called(memory, "run", *words, status=2))
    assert error == f"clustermutex: {said} See clustermutex run --help."
    assert not memory.asked


def test_help_is_shown_without_a_name() -> None:
    done = called(Opened(), "run", "--help", "--", "make")
    assert done.stdout.startswith("Usage: clustermutex run ")


def test_a_name_may_begin_with_a_hyphen(
    start: Start, env: dict[str, str], store: ServiceStore
) -> None:
    """It stands after `--`, as for the other commands."""
    with start("run", "--", "-x", "sh", "-c", UNTIL_GO) as run:
        run.up()
        assert held(store, "-x").pid == run.pid
        shown = run_to_end("clustermutex", "show", "--json", "--", "-x", env=env).stdout
        assert '"name": "-x"' in shown
        run.go()
    uuid = run_to_end("clustermutex", "lock", "--", "-x", env=env).stdout.strip()
    for command in ("alive", "unlock"):
        run_to_end("clustermutex", command, "--uuid", uuid, "--", "-x", env=env)
    assert has(store, "-x") is None


# ---------------------------------------------------------------- all that it started

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
pathlib.Path("ended").touch()
"""
"""A process that works on for some seconds after a signal.

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
"""A process whose first thread ends by itself, and whose second one works on after SIGTERM.

The system shows it as a zombie.
"""
DIES_AT_ONCE = ("sh", "-c", '"$@" & wait', "sh", sys.executable)
"""A script that dies of a signal at once, whatever its worker does."""


@pytest.fixture(autouse=True)
def _workers(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "headless.py").write_text(HEADLESS)


def _group(folder: Path) -> int:
    return os.getpgid(int(written(folder / "pid")))


def _told(folder: Path, group: int) -> None:
    wait_until(lambda: (folder / "told").exists(), what="the signal in the worker")
    wait_until(lambda: gone(group), what="the end of the script")


def _held_until_it_has_ended(store: ServiceStore, folder: Path) -> None:
    assert has(store, NAME)
    wait_until(lambda: has(store, NAME) is None, PATIENCE, "the release")
    assert (folder / "ended").exists()


@pytest.mark.parametrize("name", ["TERM", *soaking("INT", "QUIT")])
@pytest.mark.parametrize("whom", ["us", "its group"])
def test_the_lock_is_held_until_the_last_process_has_ended(
    start: Start, store: ServiceStore, tmp_path: Path, name: str, whom: str
) -> None:
    number = signal.Signals[f"SIG{name}"]
    options = ["--grace", "60", "--expected-runtime", "0.4", "--auto-unlock-after", "1.5"]
    with start("run", NAME, *options, "--", *DIES_AT_ONCE, "worker.py", name, "3") as run:
        group = _group(tmp_path)
        os.kill(run.pid, number) if whom == "us" else os.killpg(group, number)
        _told(tmp_path, group)
        kept_until = held(store, NAME).auto_unlock_at or 0
        wait_until(lambda: (held(store, NAME).alive_at or 0) > kept_until, PATIENCE, "pushes")
        _held_until_it_has_ended(store, tmp_path)
        dies_of_it = (whom, name) == ("us", "INT")  # a script around us ends by that alone
        run.ends(-number if dies_of_it else 128 + number)
    assert run.said == ""


def test_run_waits_for_a_process_without_its_first_thread(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    with start("run", NAME, "--grace", "60", "--", *DIES_AT_ONCE, "headless.py") as run:
        group, pid = _group(tmp_path), int(written(tmp_path / "pid"))
        wait_until(lambda: gone(pid), what="the end of its first thread")
        run.terminate()
        _told(tmp_path, group)
        _held_until_it_has_ended(store, tmp_path)
        run.ends(128 + signal.SIGTERM)


def test_ctrl_c_in_a_terminal_waits_as_well(
    env: dict[str, str], store: ServiceStore, tmp_path: Path
) -> None:
    """The terminal sends it to us and to all of the command."""
    (tmp_path / "script").write_text(f"{sys.executable} worker.py INT 1.5 & wait")
    with Terminal([needed("bash"), "--norc", "--noediting", "-i"], env, tmp_path) as terminal:
        terminal.shows("ready> ")
        terminal.enter(f"clustermutex run {NAME} --grace 60 -- sh ./script\n")
        written(tmp_path / "pid")
        terminal.enter("\x03")
        wait_until(lambda: (tmp_path / "told").exists(), what="the signal in the worker")
        _held_until_it_has_ended(store, tmp_path)
        terminal.shows("ready> ")


Act = Callable[[Running, ServiceStore], object]


@pytest.mark.parametrize(
    ("name", "grace", "act", "status", "said"),
    [
        ("TERM", "1", lambda *_: None, 143, "SIGKILL ends what the command left running"),
        ("TERM", "60", lambda run, _: run.send_signal(signal.SIGUSR1), 143, ""),
        ("INT", "60", lambda _, store: remove(store, NAME), 76, "is lost"),
    ],
    ids=["grace", "another signal", "loss"],
)
def test_remaining_processes_are_ended_before_the_release(
    *, start: Start, store: ServiceStore, tmp_path: Path, name: str, grace: str, act: Act,
    status: int, said: str,
) -> None:  # fmt: skip
    words = ["run", NAME, "--grace", grace, "--", *DIES_AT_ONCE, "worker.py", name, "600"]
    with start(*words) as run:
        group, pid = _group(tmp_path), int(written(tmp_path / "pid"))
        run.send_signal(signal.Signals[f"SIG{name}"])
        _told(tmp_path, group)
        told_at = time.monotonic()
        assert has(store, NAME)
        act(run, store)
        if status != 76:
            wait_until(lambda: has(store, NAME) is None, PATIENCE, "the release")
            assert gone(pid)
        assert grace != "1" or time.monotonic() > told_at + 0.8, "it had its grace"
        run.ends(status)
        wait_until(lambda: gone(pid), what="the end of the worker")
    assert said in run.said


def test_a_passed_on_signal_never_kills_the_command(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    with start("run", NAME, "--grace", "0.2", sys.executable, "worker.py", "TERM", "2") as run:
        written(tmp_path / "pid")
        run.terminate()
        run.ends(0)
    assert (tmp_path / "ended").exists()
    assert has(store, NAME) is None
    assert run.said == ""


@pytest.mark.parametrize("act", ["a signal", "loss"])
def test_a_process_with_a_session_of_its_own_is_ended_as_well(
    start: Start, store: ServiceStore, tmp_path: Path, act: str
) -> None:
    """`setsid` takes it out of the process group. Its parent has ended before."""
    script = '"$@" & until test -e go; do sleep 0.05; done'
    worker = [sys.executable, "worker.py", "TERM", "1.5", "apart"]
    outer = ["sh", "-c", '"$@" & wait; exec sleep 600', "sh", "sh", "-c", script, "sh", *worker]
    with start("run", NAME, "--grace", "60", "--", *outer) as run:
        pid = int(written(tmp_path / "pid"))
        (tmp_path / "go").touch()
        status = Path(f"/proc/{pid}/status")
        wait_until(lambda: f"PPid:\t{run.pid}\n" in status.read_text(), what="its parent's end")
        run.terminate() if act == "a signal" else remove(store, NAME)
        run.ends(76 if act == "loss" else 128 + signal.SIGTERM)
        assert has(store, NAME) is None
        assert (tmp_path / "ended").exists()


def test_run_does_not_wait_for_a_daemon(start: Start, store: ServiceStore, tmp_path: Path) -> None:
    script = '"$@" & until test -e go; do sleep 0.05; done'
    worker = [sys.executable, "worker.py", "USR1", "0"]
    with start("run", NAME, "--grace", "60", "--", "sh", "-c", script, "sh", *worker) as run:
        pid = int(written(tmp_path / "pid"))
        run.go()
        assert has(store, NAME) is None
        assert not gone(pid)


def test_processes_from_before_are_left_alone(env: dict[str, str], tmp_path: Path) -> None:
    """A container's first script that starts a server, and then becomes us."""
    server = f"{sys.executable} worker.py TERM 0 & until test -e pid; do sleep 0.05; done"
    command = "echo up > up; exec sleep 600"
    script = f"{server}; exec clustermutex run {NAME} -- sh -c '{command}'"
    with Running(["sh", "-c", script], env, tmp_path) as run:
        run.up()
        run.terminate()
        run.ends(128 + signal.SIGTERM)
        assert not gone(int(written(tmp_path / "pid")))
