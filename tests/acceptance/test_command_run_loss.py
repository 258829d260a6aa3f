"""`clustermutex run` in trouble: the lock is lost, etcd is unreachable, the command hangs."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from tests.acceptance.shells import (
    PATIENCE,
    Running,
    Start,
    environment,
    gone,
    held,
    in_line,
    remove,
    written,
)
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.locks import has
from tests.support.processes import Figure, wait_until

NAME = "deploy/prod"
UNTIL_GO = "echo $$ > pid; until test -e go; do sleep 0.05; done"
BEATING = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    with open("beats", "a") as file:
        file.write(f"{time.monotonic()}\\n")
    time.sleep(0.02)
"""
"""A command that writes down that it runs, and does not listen to SIGTERM."""


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


def _last_beat(folder: Path) -> float:
    file = folder / "beats"
    wait_until(lambda: file.exists() and file.read_text(), what="the first beat")
    return float(file.read_text().split()[-1])


# ---------------------------------------------------------------- the lock is removed


def test_a_lost_lock_ends_the_command(start: Start, store: ServiceStore, tmp_path: Path) -> None:
    """SIGTERM to all of its process group, which may clean up; then status 76."""
    child = "trap 'echo child >> told; exit' TERM; echo > up; while :; do sleep 0.05; done"
    script = "trap 'echo parent >> told; exit 0' TERM; sh -c \"$1\"; sleep 60"
    with start("run", NAME, "--", "sh", "-c", script, "sh", child) as run:
        run.up()
        remove(store, NAME)
        run.ends(76)
    assert sorted((tmp_path / "told").read_text().split()) == ["child", "parent"]
    assert "force-unlock by a person" in run.said
    assert "SIGTERM" in run.said


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(
    start: Start, store: ServiceStore, tmp_path: Path, beating: list[str]
) -> None:
    script = '"$@" & echo $! > pid; wait'
    with start("run", NAME, "--grace", "1", "--", "sh", "-c", script, "sh", *beating) as run:
        pid = int(written(tmp_path / "pid"))
        _last_beat(tmp_path)
        remove(store, NAME)
        wait_until(lambda: "SIGTERM" in run.said, what="the loss")
        told_at = time.monotonic()
        run.ends(76)
        wait_until(lambda: gone(pid), what="the last of the group to be gone")
    assert _last_beat(tmp_path) > told_at + 0.5, "it had its grace"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a command to another user")
def test_run_says_at_once_that_it_may_not_signal_its_command(
    env: dict[str, str], store: ServiceStore, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    user = "setpriv --reuid=65534 --clear-groups"
    run_ = f"exec setpriv --bounding-set=-kill clustermutex run {NAME} --grace 0.1"
    with Running(["sh", "-c", f"{run_} -- {user} sh -c '{UNTIL_GO}'"], env, tmp_path) as run:
        written(tmp_path / "pid")
        run.terminate()
        wait_until(lambda: "SIGTERM: this user may not signal" in run.said, what="the refusal")
        remove(store, NAME)
        wait_until(lambda: "is lost, and this user may not signal" in run.said, what="the loss")
        assert "SIGKILL" not in run.said
        run.go(76)


def test_the_command_may_go_on_without_its_lock(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    """--on-lost ignore: it is said, and the status stays the command's own."""
    with start("run", NAME, "--on-lost", "ignore", "--", "sh", "-c", f"{UNTIL_GO}; exit 3") as run:
        written(tmp_path / "pid")
        remove(store, NAME)
        wait_until(lambda: "continues" in run.said, what="the loss")
        run.go(3)


def test_a_loss_just_before_the_end_is_status_76(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    with start("run", NAME, "--", "sh", "-c", UNTIL_GO) as run:
        pid = int(written(tmp_path / "pid"))
        os.kill(run.pid, signal.SIGSTOP)  # so that it can't notice before the command has ended
        remove(store, NAME)
        (tmp_path / "go").touch()
        wait_until(lambda: gone(pid), what="the command's end")
        os.kill(run.pid, signal.SIGCONT)
        run.ends(76)
    assert "removed" in run.said


# ---------------------------------------------------------------- etcd is away


@pytest.mark.promise(number=3)
def test_an_unreachable_etcd_ends_the_command_at_the_deadline(
    start: Start,
    own_etcd: Etcd,
    own_store: ServiceStore,
    tmp_path: Path,
    beating: list[str],
    figure: Figure,
) -> None:
    times = ["--expected-runtime", "2", "--auto-unlock-after", "4", "--grace", "0"]
    with start("run", NAME, *times, "--", *beating) as run:
        first = held(own_store, NAME).alive_at
        wait_until(lambda: held(own_store, NAME).alive_at != first, what="a push")
        with frozen(own_etcd):
            frozen_at = time.monotonic()
            run.ends(76)
    last = _last_beat(tmp_path)
    figure(f"with 4 s until the auto-unlock it ran on for {last - frozen_at:.2f} s without etcd")
    assert last > frozen_at + 4 - 2 / 8 - 1, "not sooner than its last push allows"
    assert last < frozen_at + 4 + 0.5, "not longer"
    assert "is lost" in run.said


def test_an_unread_stderr_does_not_delay_the_end(
    env: dict[str, str], own_etcd: Etcd, tmp_path: Path
) -> None:
    full, end = os.pipe()
    os.set_blocking(end, False)
    with suppress(BlockingIOError):
        while os.write(end, b"." * 4096):
            pass
    os.set_blocking(end, True)
    times = "--expected-runtime 2 --auto-unlock-after 6 --grace 1"
    command = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done"
    script = f'exec clustermutex run {NAME} {times} -- sh -c "$0" 2>/proc/{os.getpid()}/fd/{end}'
    with Running(["sh", "-c", script, command], env, tmp_path) as run:
        pid = int(written(tmp_path / "pid"))
        os.close(end)
        with frozen(own_etcd):
            wait_until(lambda: gone(pid), what="the end of the command")
            with os.fdopen(full, "rb") as reading:
                said = reading.read().strip(b".").decode()
            run.ends(76)
    assert "could not be pushed" in said, "there was a warning to wait with"
    assert "is lost" in said


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


def test_a_failed_release_is_reported(start: Start, own_etcd: Etcd, tmp_path: Path) -> None:
    with start("run", NAME, "--", "sh", "-c", f"{UNTIL_GO}; exit 5") as run:
        written(tmp_path / "pid")
        own_etcd.stop()
        run.go(5)
    assert "could not be released" in run.said


def test_sigkill_of_us_ends_neither_command_nor_lock(
    start: Start, store: ServiceStore, tmp_path: Path
) -> None:
    """It is protected until its lock's time has run out."""
    with start("run", NAME, "--", "sh", "-c", "echo $$ > pid; exec sleep 60") as run:
        pid = int(written(tmp_path / "pid"))
        run.kill()
        run.wait()
        assert not gone(pid)
        assert has(store, NAME)


# ---------------------------------------------------------------- commands that can hang


def test_output_as_a_sign_of_life(start: Start) -> None:
    """A command that prints keeps its lock; a silent one is ended when its time is over."""
    script = """
        i=0; while [ $i -lt 14 ]; do sleep 0.3; echo $i; echo e$i >&2; i=$((i + 1)); done
        exec sleep 60"""
    times = ["--expected-runtime", "1", "--auto-unlock-after", "3"]
    with start("run", NAME, *times, "--alive", "output", "--", "sh", "-c", script) as run:
        output, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 76
    assert output.split() == [str(i) for i in range(14)], "longer than without its output"
    assert [word for word in run.said.split() if word[0] == "e" and word[1:].isdigit()] == [
        f"e{i}" for i in range(14)
    ]


def test_its_own_word_as_a_sign_of_life(
    start: Start, settings: Settings, store: ServiceStore, etcdctl: Etcdctl, tmp_path: Path
) -> None:
    """`clustermutex alive` in the command, nothing else; when it comes no more, it is ended.

    It counts also if another program has spoilt the lock's record.
    """
    script = """
        until test -e enough; do clustermutex alive || exit; sleep 1; done
        while :; do echo noise; sleep 0.05; done"""
    times = ["--expected-runtime", "2", "--auto-unlock-after", "8"]
    with start("run", NAME, *times, "--alive", "manual", "--", "sh", "-c", script) as run:
        kept_until = held(store, NAME).auto_unlock_at or 0
        etcdctl("put", f"{settings.root}/locks/deploy%2Fprod/about", "{}")
        wait_until(lambda: time.time() > kept_until + 1, what="the time it would have had")
        assert run.poll() is None
        (tmp_path / "enough").touch()
        run.communicate(timeout=PATIENCE)
        assert run.returncode == 76
