"""`clustermutex lock`, `alive` and `unlock`: a script holds a lock without a process of ours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.service_store import ServiceStore
from tests.acceptance.shells import (
    Start,
    environment,
    finished,
    held,
)
from tests.support import locks
from tests.support.locks import has
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until
from tests.support.tcp_proxy import Fault, Proxy
from tests.support.terminal import called, one_line

NAME = "deploy/prod"


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


def _shell(script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return finished(["sh", "-c", script], env)


def test_lock_alive_unlock(env: dict[str, str], store: ServiceStore) -> None:
    """The uuid is all that it takes; the lock is held though no process of ours runs."""
    times = ["--expected-runtime", "40", "--auto-unlock-after", "100", "--reason", "by hand"]
    locked = finished(["lock", NAME, *times], env)
    assert (locked.returncode, locked.stderr) == (0, "")
    uuid = locked.stdout.strip()
    before = held(store, NAME)
    assert (before.uuid, before.reason, before.pid) == (uuid, "by hand", os.getpid())
    assert finished(["alive", NAME, "--uuid", uuid], env).returncode == 0
    after = held(store, NAME)
    said, alert, unlock = after.alive_at or 0, after.alert_at or 0, after.auto_unlock_at or 0
    assert said > (before.alive_at or 0)
    assert (round(alert - said, 3), round(unlock - said, 3)) == (40, 100), "as it was taken"
    done = finished(["unlock", NAME, "--uuid", uuid], env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert has(store, NAME) is None


@pytest.mark.parametrize("name", ["it's; touch hurt", "$(touch hurt) `touch hurt` ü\\n"])
def test_export_sets_the_variables(
    env: dict[str, str], store: ServiceStore, tmp_path: Path, name: str
) -> None:
    """Any name works, and all programs that the script calls get the variables."""
    script = f"""
        cd {tmp_path}; eval "$(clustermutex lock "$1" --export)" || exit
        env | grep ^CLUSTERMUTEX_; clustermutex alive && clustermutex unlock"""
    done = finished(["sh", "-c", script, "sh", name], env)
    assert (done.returncode, done.stderr) == (0, "")
    told = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert told["CLUSTERMUTEX_NAME"] == name
    assert re.fullmatch(r"[0-9a-f-]{36}", told["CLUSTERMUTEX_UUID"])
    assert int(told["CLUSTERMUTEX_FENCING_TOKEN"]) > 0
    assert not list(tmp_path.iterdir())
    assert has(store, name) is None


SCRIPTS = (
    'eval "$(clustermutex lock {} --export)" || exit; echo went on',
    'set -e; eval "$(clustermutex lock {} --export)"; echo went on',
    "lock=$(clustermutex lock {}) || exit; echo went on",
)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (f"{NAME} --no-wait", 75),
        (f"{NAME} --no-wait --conflict-exit-code 9", 9),
        (f"{NAME} --no-such-option", 2),
        ("--timeout 1", 2),
        ("''", 69),
        ("'system gives no thread\t'", 69),
        ("x --url etcd://127.0.0.1:1 --timeout 0.5", 69),
        ("x --url nonsense", 2),
    ],
)
def test_a_script_never_continues_without_its_lock(
    env: dict[str, str], store: ServiceStore, words: str, status: int
) -> None:
    with ClusterMutex(NAME, store=store):
        for script in SCRIPTS if status == 75 else SCRIPTS[:1]:
            done = _shell(script.format(words), env)
            assert (done.returncode, done.stdout) == (status, ""), done.stderr
            assert done.stderr.startswith("clustermutex: ")
            assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_after_the_uuid_was_printed(
    start: Start, store: ServiceStore, number: signal.Signals
) -> None:
    """It has no effect: status 0, and the lock held."""
    with start("lock", NAME) as run:
        assert run.stdout is not None
        uuid = run.stdout.readline().strip()
        while run.poll() is None:
            run.send_signal(number)
            time.sleep(0.0005)
    assert (run.returncode, has(store, NAME)) == (0, uuid)


@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_a_lock_whose_uuid_can_not_be_printed_is_released(
    env: dict[str, str], store: ServiceStore, output: str
) -> None:
    done = _shell(f"clustermutex lock {NAME} {output}", env)
    assert done.returncode == 74
    assert "was released" in done.stderr
    assert done.stderr.count("\n") == 1
    assert has(store, NAME) is None


# ---------------------------------------------------------------- alive, unlock


@pytest.mark.parametrize("verb", ["alive", "unlock"])
def test_alive_and_unlock_of_a_lost_lock_are_status_76(memory: MemoryStore, verb: str) -> None:
    mutex = ClusterMutex(NAME, store=memory)
    mutex.acquire()
    words = (verb, NAME, "--uuid", mutex.uuid or "")
    locks.remove(memory, locks.held(memory, NAME), "to see it", "a person")
    for present in (False, True):
        if present:
            memory.take(NAME)
        told = one_line(called(memory, *words, status=76))
        assert re.search("force-unlock by a person.*to see it", told)
        assert ("It is now held by" in told) is present
    one_line(called(memory, verb, NAME, "--uuid", str(uuid4()), status=76))
    assert has(memory, NAME)


@pytest.mark.parametrize("verb", ["alive", "unlock"])
def test_the_uuid_is_needed(memory: MemoryStore, verb: str) -> None:
    called(memory, verb, NAME, status=2)
    called(memory, verb, status=2, CLUSTERMUTEX_UUID="x")
    called(memory, verb, "", "--uuid", "x", status=69)


@pytest.mark.parametrize(
    ("written", "alert", "unlock", "sound"),
    [
        ({}, 300.0, 900.0, True),
        ({"unlock": None}, 300.0, None, True),  # no auto-unlock is added
        # Spoilt by hand, while the holder's own durations still stand beside them.
        ({"alert_at": "yesterday"}, 300.0, 900.0, True),
        ({"auto_unlock_at": "5"}, 300.0, 900.0, True),
        # A duration that is said counts though the other is missing: the unlocker goes by it.
        ({"expected_runtime": None, "unlock": 8.0}, 8 / 3, 8.0, True),
        ({"expected_runtime": None, "unlock": 86400.0}, 300.0, 86400.0, True),
        # What is broken stays so, as nobody removes it by itself; that the defaults count is said.
        ({"about": b"{}"}, 300.0, None, False),
    ],
)
def test_alive_pushes_both_stamps(
    memory: MemoryStore, written: dict[str, Any], alert: float, unlock: float | None, sound: bool
) -> None:
    """By the durations that the lock was taken with."""
    memory.take(NAME, uuid="u", **written)
    before = time.time()
    done = called(memory, "alive", NAME, "--uuid", "u")
    now = time.time()
    holder = locks.held(memory, NAME)
    for stamp, seconds in ((holder.alert_at, alert), (holder.auto_unlock_at, unlock)):
        if seconds is not None:
            assert before - 0.01 <= (stamp or 0) - seconds <= now + 0.01
    if sound and unlock is None:
        assert holder.auto_unlock_at is None
    assert (holder.faults() == () and not holder.undecided()) is sound
    told = "does not say when to alert" in done.stderr
    assert told is not {"expected_runtime", "about"}.isdisjoint(written)


def test_a_take_sent_twice_is_not_handed_over(
    env: dict[str, str], settings: Settings, store: ServiceStore, tmp_path: Path
) -> None:
    with Proxy(settings.endpoints[0]) as proxy:
        through = environment(Settings(endpoints=(proxy.endpoint,), root=settings.root))
        proxy.inject(Fault.HOLD_TO_THE_END)
        uuid = finished(["lock", NAME], through).stdout.strip()
        assert held(store, NAME).uuid == uuid
        assert finished(["unlock", NAME, "--uuid", uuid], env).returncode == 0
        proxy.deliver()
        wait_until(lambda: has(store, NAME) is None, what="it to be free")
