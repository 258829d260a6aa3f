"""`clustermutex run`: a lock for as long as a command lives."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from lockclient.stores.requests import Take
from lockclient.stores.service_protocol import ServiceStore
from tests.acceptance.shells import (
    PATIENCE,
    Start,
    finished,
    held,
    in_line,
    written,
)
from tests.support.locks import has, read
from tests.support.memory_store import MemoryStore
from tests.support.processes import run_to_end, wait_until
from tests.support.soak import soaking
from tests.support.terminal import COMMAND, called, one_line

NAME = "deploy/prod"
UNTIL_GO = "echo > up; until test -e go; do sleep 0.05; done"


@pytest.fixture
def blocked(store: ServiceStore) -> ClusterMutex:
    """The lock, which somebody else has."""
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


# ---------------------------------------------------------------- while it runs


def test_the_lock_is_held_while_the_command_runs(start: Start, store: ServiceStore) -> None:
    """And shows who holds it, and why; it is free when the command has ended."""
    words = ["run", NAME, "--reason", "v42", "--", "sh", "-c", UNTIL_GO]
    with start(*words) as run:
        run.up()
        holder = held(store, NAME)
        assert holder.hostname == socket.gethostname()
        assert (holder.pid, holder.reason) == (run.pid, "v42")
        assert not holder.faults()
        run.go()
    assert has(store, NAME) is None
    assert run.said == ""


@pytest.mark.parametrize("how", ["signal(SIGCHLD, SIG_IGN)", "pthread_sigmask(0, [SIGCHLD])"])
def test_its_end_is_seen_where_a_parent_hears_nothing_of_the_ends_of_children(
    env: dict[str, str], store: ServiceStore, how: str
) -> None:
    """What is ignored or blocked is inherited."""
    words = [COMMAND, "run", NAME, "--", "sh", "-c", "exit 3"]
    program = f"import os, sys; from signal import *; {how}; os.execv(sys.argv[1], sys.argv[1:])"
    deaf = [sys.executable, "-c", program, *words]
    assert run_to_end(*deaf, env=env, status=3).stderr == ""
    assert has(store, NAME) is None


@pytest.mark.parametrize("before", [[], ["--"]])
def test_what_follows_the_command_is_its_own(env: dict[str, str], before: list[str]) -> None:
    """Its options too, be they called like ours, with our `--` or without."""
    words = ["--reason", "x", "--debug", "--", "y"]
    done = finished(["run", "--reason", "ours", NAME, *before, "printf", "%s.", *words], env)
    assert (done.returncode, done.stdout) == (0, "".join(f"{word}." for word in words))
    assert done.stderr == ""


def test_output_that_does_not_fit_waits(env: dict[str, str]) -> None:
    """Also where whoever shares the stream with us has made it one that does not block."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    words = [COMMAND, "run", NAME, "--alive-on-output", "--", "head", "-c", "1000000", "/dev/zero"]
    with subprocess.Popen(words, env=env, stdout=theirs) as run, os.fdopen(ours, "rb") as reading:
        os.close(theirs)
        assert len(reading.read()) == 1_000_000
        assert run.wait(PATIENCE) == 0


def test_a_lock_is_not_kept_for_a_command_whose_output_goes_nowhere(
    env: dict[str, str], store: ServiceStore
) -> None:
    """Whatever it is that keeps it from being started."""
    command = shlex.join([COMMAND, "run", NAME, "--alive-on-output", "--", "true"])
    script = f"exec {command} >&-"
    run_to_end("sh", "-c", script, env=env, status=None)
    assert has(store, NAME) is None


@pytest.mark.parametrize(
    ("options", "durations"),
    [
        ([], (300.0, 900.0)),
        (["--expected-runtime", "10"], (10.0, 30.0)),
        (["--auto-unlock-after", "400"], (300.0, 400.0)),
        (["--auto-unlock-after", "never"], (300.0, None)),
    ],
)
def test_how_long_it_is_kept_without_a_heartbeat(
    taken: MemoryStore, options: list[str], durations: tuple[float, float | None]
) -> None:
    """By default three times the expected runtime."""
    called(taken, "run", "--no-wait", *options, NAME, "true", status=75)
    (asked,) = [request.holder for request in taken.asked if isinstance(request, Take)]
    assert (asked.expected_runtime, asked.auto_unlock_after) == durations


def test_the_command_knows_its_lock(env: dict[str, str]) -> None:
    """Name, uuid and a fencing token that grows stand in its environment, beside what is there."""
    words = ["run", "it's $HOME", "--", "env"]
    told = []
    for _ in range(2):
        done = finished(words, env | {"CLUSTERMUTEX_OTHER": "kept", "CLUSTERMUTEX_UUID": "outer"})
        told.append(dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line))
    assert told[0]["CLUSTERMUTEX_NAME"] == "it's $HOME"
    assert re.fullmatch(r"[0-9a-f-]{36}", told[0]["CLUSTERMUTEX_UUID"])
    assert told[0]["CLUSTERMUTEX_UUID"] != told[1]["CLUSTERMUTEX_UUID"]
    assert told[0]["CLUSTERMUTEX_OTHER"] == "kept"
    tokens = [int(variables["CLUSTERMUTEX_FENCING_TOKEN"]) for variables in told]
    assert 0 < tokens[0] < tokens[1]


def test_where_the_locks_are_is_passed_on(env: dict[str, str], store: ServiceStore) -> None:
    """With --url, too: the command's own `clustermutex` looks for the lock in the same place."""
    url = env["CLUSTERMUTEX_URL"]
    words = ["run", "--url", url, NAME, "--", "clustermutex", "alive"]
    done = finished(words, env | {"CLUSTERMUTEX_URL": "etcd://127.0.0.1:1/nowhere"})
    assert (done.returncode, done.stderr) == (0, "")
    assert has(store, NAME) is None


def test_its_streams_are_its_own(env: dict[str, str]) -> None:
    """Input, output and errors go past us, and so does a file that is open besides; no other."""
    script = "cat; echo error >&2; echo file >&9; ls /proc/self/fd"
    done = finished(
        ["sh", "-c", f"exec 9>&1; clustermutex run {NAME} -- sh -c '{script}'"], env, "in\n"
    )
    assert done.stderr == "error\n"
    lines = done.stdout.split()
    assert lines[:2] == ["in", "file"]
    extra = set(lines[2:]) - {"0", "1", "2", "9"}
    assert len(extra) == 1, f"ls has its own, and what else? {extra}"


def test_it_may_end_its_output_early(env: dict[str, str]) -> None:
    """A command whose reader has enough dies of SIGPIPE, as without us: Python ignores that."""
    done = finished(
        ["sh", "-c", f"{{ clustermutex run {NAME} -- yes; echo $? >&2; }} | head -1"], env
    )
    assert (done.stdout, done.stderr) == ("y\n", f"{128 + signal.SIGPIPE}\n")


# ---------------------------------------------------------------- its end


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", 0),
        ("exit 75", 75),
        ("kill -KILL $$", 128 + signal.SIGKILL),
        ("kill -INT $$", 128 + signal.SIGINT),
    ],
)
def test_its_exit_status_is_ours(
    env: dict[str, str], store: ServiceStore, script: str, status: int
) -> None:
    """Also one that we have a meaning for (only we say something on stderr, too); as in a shell."""
    done = finished(["run", NAME, "--", "sh", "-c", script], env)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    assert has(store, NAME) is None


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("nothing-of-this-name", 127, "was not found"),
        ("./nothing", 127, "was not found"),
        ("./no-interpreter", 127, "was not found"),
        ("./not-executable", 126, "can't be executed"),
        (".", 126, "can't be executed"),
        ("./no-program", 126, "#!"),
    ],
)
def test_a_command_that_cannot_be_started(
    env: dict[str, str], store: ServiceStore, tmp_path: Path, command: str, status: int, told: str
) -> None:
    """It is said in a line, and the lock is free again at once."""
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    for name, text in (("no-interpreter", "#!/no/where\n"), ("no-program", "what?\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = finished(["sh", "-c", f"cd {tmp_path}; exec clustermutex run {NAME} -- {command}"], env)
    assert done.returncode == status
    assert done.stderr.startswith("clustermutex: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert has(store, NAME) is None


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("name", ["HUP", "INT", "TERM", "USR1", *soaking("QUIT", "USR2", "WINCH")])
def test_signals_are_passed_on(start: Start, tmp_path: Path, name: str) -> None:
    """To the command and all that it has started; the lock is held until they are done with it."""
    child = f"trap 'echo child >> told; exit 0' {name}; echo > up; while :; do sleep 0.05; done"
    script = f"trap 'echo parent >> told; exit 7' {name}; sh -c \"$1\"; sleep 1"
    with start("run", NAME, "--", "sh", "-c", script, "sh", child) as run:
        run.up()
        run.send_signal(signal.Signals[f"SIG{name}"])
        run.ends(7)
    assert sorted((tmp_path / "told").read_text().split()) == ["child", "parent"]


def test_what_we_were_told_to_ignore_the_command_ignores(
    env: dict[str, str], start: Start, tmp_path: Path
) -> None:
    """`nohup clustermutex run …` survives the end of its terminal, command included."""
    with start("run", NAME, "--", "sh", "-c", "grep SigIgn /proc/self/status > ignored") as plain:
        plain.ends(0)
    ours = ignored_by(Path("/proc/self/status").read_text())
    assert ignored_by(written(tmp_path / "ignored")) == ours - {signal.SIGPIPE, signal.SIGXFSZ}
    script = "trap '' HUP; exec clustermutex run x -- grep SigIgn /proc/self/status"
    done = finished(["sh", "-c", script], env)
    assert signal.SIGHUP in ignored_by(done.stdout)


def ignored_by(status: str) -> set[int]:
    """Return which signals a process ignores, by its /proc/…/status.

    Without the two that glibc keeps for itself, and ignores in what posix_spawn starts.
    """
    found = re.search(r"SigIgn:\s*(\w+)", status)
    assert found
    return {number for number in range(1, 32) if int(found[1], 16) >> (number - 1) & 1}


def test_a_stopped_command_keeps_its_lock(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    """SIGSTOP by somebody is not our business; SIGTSTP and SIGCONT are passed on."""
    script = f"echo $$ > pid; {UNTIL_GO}"
    words = ["run", NAME, "--expected-runtime", "0.5", "--", "sh", "-c", script]
    with start(*words) as run:
        pid = int(written(tmp_path / "pid"))
        os.kill(pid, signal.SIGSTOP)
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


def test_a_log_is_told_what_is_waited_for(
    env: dict[str, str], store: ServiceStore, blocked: ClusterMutex
) -> None:
    """As a CI job has one: who has the lock, and when it was had; with --quiet nothing."""
    quiet, loud = (
        subprocess.Popen(
            [COMMAND, "run", NAME, *options, "--", "true"],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for options in (["--quiet"], [])
    )
    with quiet, loud:
        assert loud.stderr is not None
        said = loud.stderr.readline()
        assert said.startswith(f"clustermutex: Waiting for the lock '{NAME}' for ")
        assert f" of 2 in the queue; it is held by {socket.gethostname()}, pid " in said
        assert f'{os.getpid()}, for "somebody\'s own", since ' in said
        in_line(store, NAME, 2)
        blocked.release()
        got, nothing = loud.communicate(timeout=PATIENCE)[1], quiet.communicate(timeout=PATIENCE)[1]
    assert (quiet.returncode, loud.returncode, nothing) == (0, 0, "")
    assert got.startswith(f"clustermutex: Got the lock '{NAME}' after ")
    assert got.count("\n") == 1


def test_it_waits_in_line(start: Start, store: ServiceStore, blocked: ClusterMutex) -> None:
    """Without a timeout for ever, and visibly: reason and pid stand in the ticket."""
    with start("run", NAME, "--reason", "next", "--", "echo", "ran") as run:
        in_line(store, NAME)
        ticket = read(store, NAME).waiters[0]
        assert (ticket.pid, ticket.reason) == (run.pid, "next")
        blocked.release()
        assert run.communicate(timeout=PATIENCE)[0] == "ran\n"
        assert run.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("blocked")
def test_a_signal_while_waiting_leaves_no_ticket(
    start: Start, store: ServiceStore, tmp_path: Path, number: signal.Signals
) -> None:
    """Gone before the process is, though its lease lasts for ten seconds; we die of the signal."""
    with start("run", NAME, "--", "touch", "ran") as run:
        in_line(store, NAME)
        run.send_signal(number)
        run.ends(-number)
        assert not read(store, NAME).waiters
    assert f"{number.name} came while waiting" in run.said
    assert not (tmp_path / "ran").exists()
