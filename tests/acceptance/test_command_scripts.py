"""`clustermutex lock`, `alive` and `unlock`: a lock that no process stays for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Taken
from lockclient.stores.requests import Take
from tests.acceptance.shells import (
    PATIENCE,
    Start,
    environment,
    finished,
    held,
    in_line,
    remove,
)
from tests.support.etcd_binary import Etcdctl
from tests.support.locks import has, read
from tests.support.processes import wait_until
from tests.support.tcp_proxy import Fault, Proxy

NAME = "deploy/prod"


def _shell(script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return finished(["sh", "-c", script], env)


def test_lock_alive_unlock(env: dict[str, str], store: EtcdStore) -> None:
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


@pytest.mark.parametrize(
    "name", ["plain", "it's; touch hurt", "$(touch hurt) `touch hurt`", "ü\\n"]
)
def test_export_sets_the_variables(
    env: dict[str, str], store: EtcdStore, tmp_path: Path, name: str
) -> None:
    """Whatever the name, and for all that the script calls."""
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
        ("x --url etcd://127.0.0.1:1 --timeout 0.5", 69),
        ("x --url nonsense", 2),
    ],
)
def test_a_script_never_goes_on_without_its_lock(
    env: dict[str, str], store: EtcdStore, words: str, status: int
) -> None:
    """`eval` of nothing would succeed: what is printed makes it fail, also under `set -e`."""
    with ClusterMutex(NAME, store=store):
        for script in SCRIPTS if status == 75 else SCRIPTS[:1]:
            done = _shell(script.format(words), env)
            assert (done.returncode, done.stdout) == (status, ""), done.stderr
            assert done.stderr.startswith("clustermutex: ")
            assert done.stderr.count("\n") == 1


def test_it_waits_in_line(start: Start, store: EtcdStore) -> None:
    """As everybody does, and leaves no ticket and no lease behind when it has it."""
    mutex = ClusterMutex(NAME, store=store)
    mutex.acquire()
    with start("lock", NAME) as waiter:
        in_line(store, NAME)
        mutex.release()
        uuid = waiter.communicate(timeout=PATIENCE)[0].strip()
        assert waiter.returncode == 0
    assert held(store, NAME).uuid == uuid
    assert not read(store, NAME).waiters


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_waiting(start: Start, store: EtcdStore, number: signal.Signals) -> None:
    """No ticket is left; `eval` is told."""
    with ClusterMutex(NAME, store=store), start("lock", NAME, "--export") as run:
        in_line(store, NAME)
        run.send_signal(number)
        assert run.communicate(timeout=PATIENCE)[0] == f"(exit {128 + number})\n"
        assert run.returncode == -number
        assert not read(store, NAME).waiters


@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_a_uuid_that_nobody_gets(env: dict[str, str], store: EtcdStore, output: str) -> None:
    """Nobody could release the lock, so that is done."""
    done = _shell(f"clustermutex lock {NAME} {output}", env)
    assert done.returncode == 1
    assert "was released" in done.stderr
    assert done.stderr.count("\n") == 1
    assert has(store, NAME) is None


@pytest.mark.parametrize("verb", ["alive", "unlock"])
def test_a_lock_that_is_not_ours_any_more(env: dict[str, str], store: EtcdStore, verb: str) -> None:
    """76, by whom it was removed, and who has it now; that holder is left alone."""
    uuid = finished(["lock", NAME], env).stdout.strip()
    remove(store, NAME)
    for present in (False, True):
        if present:
            assert ClusterMutex(NAME, store=store).acquire()
        done = finished([verb, NAME, "--uuid", uuid], env)
        assert done.returncode == 76
        assert re.search("force-unlock by a person.*to see it", done.stderr)
        assert ("It is now held by" in done.stderr) is present
        assert done.stderr.count("\n") == 1
    assert finished([verb, NAME, "--uuid", str(uuid4())], env).returncode == 76
    assert held(store, NAME)


@pytest.mark.parametrize("verb", ["alive", "unlock"])
def test_the_uuid_is_needed(env: dict[str, str], verb: str) -> None:
    """Neither name nor uuid is guessed."""
    assert finished([verb, NAME], env).returncode == 2
    assert finished([verb], env | {"CLUSTERMUTEX_UUID": "x"}).returncode == 2
    assert finished([verb, "", "--uuid", "x"], env).returncode == 69


def test_never_expiring_stays_so(env: dict[str, str], store: EtcdStore) -> None:
    """`alive` adds no auto-unlock to a lock that has none, and makes good what is spoilt."""
    uuid = finished(["lock", NAME, "--auto-unlock-after", "never"], env).stdout.strip()
    assert finished(["alive", NAME, "--uuid", uuid], env).returncode == 0
    assert held(store, NAME).auto_unlock_at is None


def test_spoilt_stamps_are_made_good(
    env: dict[str, str], store: EtcdStore, settings: Settings, etcdctl: Etcdctl
) -> None:
    """They were moved by hand: the holder's own durations still stand beside them."""
    uuid = finished(["lock", NAME, "--expected-runtime", "100"], env).stdout.strip()
    lock = f"{settings.root}/locks/deploy%2Fprod"
    for part, value in (("alert_at", "yesterday"), ("auto_unlock_at", "5")):
        etcdctl("put", f"{lock}/{part}", value)
        assert held(store, NAME).faults() or held(store, NAME).undecided()
        assert finished(["alive", NAME, "--uuid", uuid], env).returncode == 0
        holder = held(store, NAME)
        assert (holder.faults(), holder.undecided()) == ((), "")
        assert (holder.expected_runtime, holder.auto_unlock_after) == (100, 300)


@pytest.mark.parametrize(("after", "alert"), [(8.0, 8 / 3), (86400.0, 300.0)])
def test_a_duration_that_is_said_counts_though_the_other_is_missing(
    env: dict[str, str], store: EtcdStore, after: float, alert: float
) -> None:
    """The unlocker goes by it, and so must whoever pushes."""
    said = Holder(
        NAME, "u", hostname="h", alert_at=5.0, auto_unlock_at=9.0, auto_unlock_after=after
    )
    assert isinstance(store.ask(Take(said), Deadline.after(PATIENCE)), Taken)
    before = time.time()
    assert finished(["alive", NAME, "--uuid", "u"], env).returncode == 0
    now = time.time()
    holder = held(store, NAME)
    for stamp, seconds in ((holder.alert_at, alert), (holder.auto_unlock_at, after)):
        assert before - 0.01 <= (stamp or 0) - seconds <= now + 0.01


def test_without_durations_the_defaults_count(
    env: dict[str, str], store: EtcdStore, settings: Settings, etcdctl: Etcdctl
) -> None:
    """And it is said."""
    uuid = finished(["lock", NAME], env).stdout.strip()
    etcdctl("put", f"{settings.root}/locks/deploy%2Fprod/about", "{}")
    before = held(store, NAME)
    done = finished(["alive", NAME, "--uuid", uuid], env)
    assert (done.returncode, "does not say when to alert" in done.stderr) == (0, True)
    after = held(store, NAME)
    assert (after.alert_at or 0) > (before.alert_at or 0)
    assert after.faults() == before.faults(), "what is broken stays so: nobody removes it by itself"


def test_a_take_that_was_sent_twice_is_not_handed_over(
    env: dict[str, str], settings: Settings, store: EtcdStore, tmp_path: Path
) -> None:
    """The second sending could arrive after the unlock, when nobody knows of it any more."""
    with Proxy(settings.endpoints[0]) as proxy:
        through = environment(Settings(endpoints=(proxy.endpoint,), root=settings.root))
        proxy.inject(Fault.HOLD_TO_THE_END)
        uuid = finished(["lock", NAME], through).stdout.strip()
        assert held(store, NAME).uuid == uuid
        assert finished(["unlock", NAME, "--uuid", uuid], env).returncode == 0
        proxy.deliver()
        wait_until(lambda: has(store, NAME) is None, what="it to be free")
