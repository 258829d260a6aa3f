"""`clustermutex run` on the bad day: the lock is lost, etcd is away, the command hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_protocol import ServiceStore
from tests.acceptance.shells import (
    PATIENCE,
    Start,
    environment,
    finished,
    gone,
    held,
    in_line,
    remove,
    written,
)
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.locks import has
from tests.support.processes import Figure, Service, wait_until
from tests.support.terminal import COMMAND, called, one_line
from tests.support.unlocker_process import unlocker as unlocker_on

NAME = "deploy/prod"
BEATING = """
import pathlib, signal, sys, time
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    with open("beats", "a") as file:
        file.write(f"{time.monotonic()}\\n")
    time.sleep(0.02)
"""
"""A command that writes down that it runs; with an argument it does not listen to SIGTERM."""


@pytest.fixture
def env(settings: Settings, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a shell, for a test of an etcd of its own that of this one."""
    if "own_etcd" in request.fixturenames:
        settings = Settings(endpoints=(request.getfixturevalue("own_etcd").endpoint,))
    return environment(settings)


@pytest.fixture
def beating(tmp_path: Path) -> list[str]:
    program = tmp_path / "beating.py"
    program.write_text(BEATING)
    return [sys.executable, str(program)]


def _beats(folder: Path) -> list[float]:
    file = folder / "beats"
    return [float(beat) for beat in file.read_text().split()] if file.exists() else []


# ---------------------------------------------------------------- the lock is removed


def test_a_lost_lock_ends_the_command(
    start: Start, store: ServiceStore, tmp_path: Path, figure: Figure
) -> None:
    """SIGTERM to all of its process group, which may clean up; then status 76."""
    child = "trap 'echo child >> told; exit' TERM; echo > up; while :; do sleep 0.05; done"
    script = "trap 'echo parent >> told; exit 0' TERM; sh -c \"$1\"; sleep 60"
    with start("run", NAME, "--", "sh", "-c", script, "sh", child) as run:
        run.up()
        time.sleep(1.2)  # the loss of one that was taken just now is watched for a second later
        removed_at = time.monotonic()
        remove(store, NAME)
        run.ends(76)
        figure(f"a removed lock ended its command after {time.monotonic() - removed_at:.2f} s")
    assert sorted((tmp_path / "told").read_text().split()) == ["child", "parent"]
    said = run.said
    assert "force-unlock by a person" in said
    assert "SIGTERM" in said


def test_who_does_not_listen_is_killed_after_the_grace(
    start: Start, store: ServiceStore, tmp_path: Path, beating: list[str]
) -> None:
    """The command and what it has started, be it that only that does not listen."""
    # The command itself ends by SIGTERM; what it leaves in the background does not.
    script = 'trap "" TERM; "$@" deaf & trap - TERM; echo $! > pid; wait'
    words = ["run", NAME, "--grace", "1", "--", "sh", "-c", script, "sh", *beating]
    with start(*words) as run:
        pid = int(written(tmp_path / "pid"))
        wait_until(lambda: _beats(tmp_path), what="the first beat")
        remove(store, NAME)
        wait_until(lambda: "SIGTERM" in run.said, what="the loss")
        told_at = time.monotonic()
        run.ends(76)
        wait_until(lambda: gone(pid), what="the last of the group to be gone")
    assert _beats(tmp_path)[-1] > told_at + 0.5, "it had its grace"


def test_the_command_may_go_on_without_its_lock(start: Start, store: ServiceStore) -> None:
    """--on-lost ignore: it is said, and the status stays the command's own."""
    script = "echo > up; until test -e go; do sleep 0.05; done; exit 3"
    words = ["run", NAME, "--on-lost", "ignore", "--", "sh", "-c", script]
    with start(*words) as run:
        run.up()
        remove(store, NAME)
        wait_until(lambda: "continues" in run.said, what="the loss")
        run.go(3)


def test_a_loss_in_the_last_moment_is_told(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    """A command that ended well, but without its lock, has not been protected: 76."""
    words = ["run", NAME, "--", "sh", "-c", "echo $$ > pid; until test -e go; do :; done"]
    with start(*words) as run:
        written(tmp_path / "pid")
        os.kill(run.pid, signal.SIGSTOP)  # so that it can't notice before the command has ended
        remove(store, NAME)
        (tmp_path / "go").touch()
        wait_until(lambda: gone(int((tmp_path / "pid").read_text())), what="the command's end")
        os.kill(run.pid, signal.SIGCONT)
        run.ends(76)
    assert "removed" in run.said


# ---------------------------------------------------------------- etcd is away


@pytest.mark.promise(number=3)
def test_etcd_away_ends_the_command_at_the_deadline(
    start: Start,
    own_etcd: Etcd,
    own_store: ServiceStore,
    tmp_path: Path,
    beating: list[str],
    figure: Figure,
) -> None:
    """It goes on until then and not a moment longer, though nobody can be asked."""
    times = ["--expected-runtime", "2", "--auto-unlock-after", "4", "--grace", "0"]
    words = ["run", NAME, *times, "--", *beating, "deaf"]
    with start(*words) as run:
        first = held(own_store, NAME).alive_at
        wait_until(lambda: held(own_store, NAME).alive_at != first, what="a push")
        with frozen(own_etcd):
            frozen_at = time.monotonic()
            run.ends(76)
    last = _beats(tmp_path)[-1]
    figure(f"with 4 s until the auto-unlock it ran on for {last - frozen_at:.2f} s without etcd")
    assert last > frozen_at + 4 - 2 / 8 - 1, "not sooner than its last push allows"
    assert last < frozen_at + 4 + 0.5, "not longer"
    assert "is lost" in run.said


def test_a_stderr_that_nobody_reads_does_not_hold_up_the_end(
    env: dict[str, str], own_etcd: Etcd, tmp_path: Path
) -> None:
    """A pager that is left alone: only what is to be said waits for it, be it to the kill."""
    full, end = os.pipe()
    os.set_blocking(end, False)
    with suppress(BlockingIOError):
        while os.write(end, b"." * 4096):
            pass
    os.set_blocking(end, True)
    times = ["--expected-runtime", "2", "--auto-unlock-after", "6", "--grace", "1"]
    script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done"
    words = [COMMAND, "run", NAME, *times, "--", "sh", "-c", script]
    run = subprocess.Popen(words, env=env, cwd=tmp_path, stderr=end)
    os.close(end)
    try:
        pid = int(written(tmp_path / "pid"))
        with frozen(own_etcd):
            wait_until(lambda: gone(pid), what="the end of the command")
            with os.fdopen(full, "rb") as reading:
                said = reading.read().strip(b".").decode()
            assert run.wait(PATIENCE) == 76
    finally:
        run.kill()
        run.wait()
    assert "could not be pushed" in said, "there was a warning to wait with"
    assert "is lost" in said


def test_etcd_away_for_a_while_is_no_loss(
    start: Start, own_etcd: Etcd, own_store: ServiceStore
) -> None:
    """The command does not notice; the lock is pushed and released when etcd is back."""
    script = "echo > up; until test -e go; do sleep 0.05; done; exit 5"
    times = ["--expected-runtime", "1", "--auto-unlock-after", "60"]
    with start("run", NAME, *times, "--", "sh", "-c", script) as run:
        run.up()
        with frozen(own_etcd):
            wait_until(lambda: "could not be pushed" in run.said, what="word")
        run.go(5)
    assert has(own_store, NAME) is None


def test_a_signal_while_etcd_is_silent_promises_nothing(
    start: Start, own_etcd: Etcd, own_store: ServiceStore
) -> None:
    """The end waits for the withdrawal, but not for ever; then it does not say "not taken"."""
    with ClusterMutex(NAME, store=own_store), start("run", NAME, "--", "true") as run:
        in_line(own_store, NAME)
        with frozen(own_etcd):
            run.send_signal(signal.SIGTERM)
            run.ends(-signal.SIGTERM)
    assert "a ticket or the lock may be left" in run.said
    assert "it was not taken" not in run.said


@pytest.mark.parametrize(("options", "longest"), [(["--timeout", "2"], 2.0), (["--no-wait"], 3.0)])
def test_etcd_away_at_the_start_is_69(options: list[str], longest: float, figure: Figure) -> None:
    """Within the timeout; the message says which etcd, and the command is not run."""
    began = time.monotonic()
    nowhere = Settings(("127.0.0.1:1",))
    said = one_line(called(nowhere, "run", NAME, *options, "--", "echo", "ran", status=69))
    took = time.monotonic() - began
    figure(f"{' '.join(options)}: given up after {took:.1f} s")
    assert "127.0.0.1:1" in said
    assert took < longest + 2


def test_a_release_that_fails_is_told(start: Start, own_etcd: Etcd) -> None:
    """The command has done its work: its status stays; a line says that the lock is still there."""
    words = ["run", NAME, "--", "sh", "-c", "echo > up; until test -e go; do sleep 0.05; done"]
    with start(*words) as run:
        run.up()
        own_etcd.stop()
        run.go()
    assert "could not be released" in run.said


# ---------------------------------------------------------------- we are killed


@pytest.fixture
def unlocker(settings: Settings) -> Iterator[Service]:
    with unlocker_on(settings) as service:
        assert service.url
        yield service


@pytest.mark.usefixtures("unlocker")
def test_sigkill_of_us_leaves_the_lock_to_the_unlocker(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    """The command goes on, and is protected until its lock's time has run out: not longer."""
    times = ["--expected-runtime", "1", "--auto-unlock-after", "3"]
    script = "echo $$ > pid; exec sleep 60"
    with start("run", NAME, *times, "--", "sh", "-c", script) as run:
        pid = int(written(tmp_path / "pid"))
        run.kill()
        run.wait()
        assert not gone(pid)
        assert has(store, NAME)
        wait_until(lambda: has(store, NAME) is None, PATIENCE, "the unlocker")
        assert not gone(pid)


# ---------------------------------------------------------------- commands that can hang


def test_output_as_a_sign_of_life(start: Start, store: ServiceStore) -> None:
    """As long as it prints it is kept; one that falls silent is ended when its time is over."""
    script = """
        i=0; while [ $i -lt 14 ]; do sleep 0.3; echo $i; echo e$i >&2; i=$((i + 1)); done
        exec sleep 60"""
    times = ["--expected-runtime", "1", "--auto-unlock-after", "3"]
    words = ["run", NAME, *times, "--alive-on-output", "--", "sh", "-c", script]
    with start(*words) as run:
        first = held(store, NAME)
        output, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 76
    assert output.split() == [str(i) for i in range(14)], "longer than without its output"
    said = run.said
    assert [line for line in said.split("\n") if line.startswith("e")] == [
        f"e{i}" for i in range(14)
    ]
    assert first.uuid


def test_all_output_comes_through(env: dict[str, str]) -> None:
    """In its order, to the last byte, also what is still on its way when the command ends."""
    script = "seq 100000; echo error >&2; printf end; exit 4"
    done = finished(["run", NAME, "--alive-on-output", "--", "sh", "-c", script], env)
    numbers = "".join(f"{i}\n" for i in range(1, 100001))
    assert (done.returncode, done.stderr) == (4, "error\n")
    assert done.stdout == numbers + "end"
    mixed = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo e$i >&2; done"
    script = f"clustermutex run {NAME} --alive output -- sh -c '{mixed}' 2>&1"
    done = finished(["sh", "-c", script], env)
    assert done.stdout == "".join(f"{i}\ne{i}\n" for i in range(1, 10))


def test_what_runs_on_in_the_background_is_not_waited_for(env: dict[str, str]) -> None:
    """Though it has the output open still."""
    script = "sleep 600 & echo $!"
    done = finished(["run", NAME, "--alive-on-output", "--", "sh", "-c", script], env)
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0


def test_its_own_word_as_a_sign_of_life(
    start: Start,
    settings: Settings,
    store: ServiceStore,
    etcdctl: Etcdctl,
    tmp_path: Path,
) -> None:
    """`clustermutex alive` in the command, nothing else; when it comes no more, it is ended.

    It counts also where somebody has spoilt what the lock says of itself.
    """
    script = """
        until test -e enough; do clustermutex alive || exit; echo >> said-so; sleep 1; done
        while :; do echo noise; sleep 0.05; done"""
    times = ["--expected-runtime", "2", "--auto-unlock-after", "8"]
    words = ["run", NAME, *times, "--alive", "manual", "--", "sh", "-c", script]
    with start(*words) as run:
        kept_until = held(store, NAME).auto_unlock_at or 0
        etcdctl("put", f"{settings.root}/locks/deploy%2Fprod/about", "{}")
        wait_until(lambda: time.time() > kept_until + 1, what="the time it would have had")
        assert run.poll() is None
        (tmp_path / "enough").touch()
        run.communicate(timeout=PATIENCE)
        assert run.returncode == 76
    assert (tmp_path / "said-so").read_text()
