"""Locks in a bucket, which nothing but the URL says: the library and the command, end to end."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    LockLost,
    LockTimeout,
    StoreError,
    default_store,
)
from lockclient.model.holder import Holder
from tests.acceptance.shells import PATIENCE, Running, finished
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import BucketServer
from tests.support.locks import has, held, remove
from tests.support.processes import BIN, wait_until

OBJECT = "of/us/locks/x"
UNTIL_GO = "echo > up; until test -e go; do sleep 0.05; done"


@pytest.fixture
def server(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A bucket, of which this process and all that it starts know by their environment."""
    monkeypatch.setenv("CLUSTERMUTEX_URL", f"gs://{server.bucket.name}/of/us")
    monkeypatch.setattr(default_store, "_default_settings", None)
    monkeypatch.setattr(default_store, "_default_store", None)
    yield server
    default_store.default_store().close()


@pytest.fixture
def env(server: BucketServer) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}


def seen() -> Holder:
    return held(default_store.default_store(), "x")


# ---------------------------------------------------------------- the library


def test_a_lock_is_had_and_given_back(server: BucketServer) -> None:
    """By two requests; in between everyone sees who has it."""
    with ClusterMutex("x", reason="why") as mutex:
        holder = mutex.holder()
        assert holder is not None
        assert (holder.uuid, holder.reason, holder.pid) == (mutex.uuid, "why", os.getpid())
        assert "test_a_lock_is_had" in (holder.backtrace or "")
        assert server.bucket.names() == [OBJECT]
        assert not ClusterMutex("x").acquire(blocking=False)
        with (
            pytest.raises(LockTimeout, match=r"held by .*why") as caught,
            ClusterMutex("x", timeout=0.3),
        ):
            pass
        assert "in line" not in str(caught.value)
        mutex.check_health()
    assert server.bucket.names() == []


@pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
def test_what_a_bucket_can_t_do_is_said_before_anything_is_taken(
    server: BucketServer, kind: Callable[[str], ClusterMutex]
) -> None:
    mutex = kind("x")
    for what, said in (
        (lambda: mutex.fencing_token, "Google Cloud Storage has no number that only grows"),
        (lambda: mutex.guard, "Google Cloud Storage has no transactions"),
    ):
        with pytest.raises(StoreError, match=said):
            what()
    if isinstance(mutex, ClusterMutex):
        with pytest.raises(StoreError, match="Google Cloud Storage keeps no line"):
            mutex.waiters()
    assert not server.asked


def test_setup_says_it_for_the_process(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And beats the environment."""
    monkeypatch.setenv("CLUSTERMUTEX_URL", "etcd://127.0.0.1:1")
    ClusterMutex.setup(url=f"gs://{server.bucket.name}")
    with ClusterMutex("x"):
        assert server.bucket.names() == ["locks/x"]


# ---------------------------------------------------------------- losing it


def foreign(server: BucketServer) -> None:
    server.bucket.insert(OBJECT, b"{}", Conditions(), metadata={"uuid": str(uuid4())})


def deleted(server: BucketServer) -> None:
    server.bucket.delete(OBJECT, Conditions())


def removed(server: BucketServer) -> None:
    remove(default_store.default_store(), seen())


@pytest.mark.parametrize(
    ("how", "keepalive"), [(foreign, False), (foreign, True), (deleted, False), (removed, True)]
)
def test_a_holder_learns_that_it_lost_the_lock(
    server: BucketServer, how: Callable[[BucketServer], None], keepalive: bool
) -> None:
    """Whether it pushes or not, and writes nothing over what stands there now."""
    told: list[LockLost] = []
    runtime = 4.0 if keepalive else 600.0
    mutex = ClusterMutex("x", expected_runtime=runtime, keepalive=keepalive, on_lost=told.append)
    mutex.acquire()
    assert mutex.healthy
    how(server)
    wait_until(lambda: told, what="the loss")
    assert not mutex.healthy
    if how is removed:
        assert told[0].removal is not None
        assert told[0].removal.removed_by == "ann"
    before = server.bucket.names()
    with pytest.raises(LockLost):
        mutex.release()
    assert server.bucket.names() == before


def test_failures_that_pass_are_counted_and_survived(
    server: BucketServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Pushes go on until the deadline; each outage is logged once, with its end.

    (A look in between, which is answered, is an end.)
    """
    with ClusterMutex("x", expected_runtime=2.0, auto_unlock_after=60.0, keepalive=True) as mutex:
        uuid = mutex.uuid
        fault = server.fault("PATCH", 503, times=6)
        wait_until(lambda: fault.times <= 0, what="six failures")
        pushed = server.counted("PATCH")
        wait_until(lambda: server.counted("PATCH") > pushed, what="a push")
        mutex.check_health()
        assert mutex.uuid == uuid
    client = "lockclient.stores.gcs.wire.http_client"
    said = [record.message for record in caplog.records if record.name == client]
    assert said
    both = ("does not answer", "answers again after") * len(said)
    assert all(words in text for words, text in zip(both, said, strict=False))
    assert len(said) % 2 == 0


# ---------------------------------------------------------------- the command


def test_a_command_runs_under_it(env: dict[str, str], tmp_path: Path) -> None:
    """And knows of it; a token that it would inherit from one around it is not its own."""
    env = {**env, "CLUSTERMUTEX_FENCING_TOKEN": "17"}
    script = f'echo "$CLUSTERMUTEX_UUID/$CLUSTERMUTEX_FENCING_TOKEN/" > told; {UNTIL_GO}'
    with Running(["run", "x", "--reason", "v42", "--", "sh", "-c", script], env, tmp_path) as run:
        run.up()
        holder = seen()
        assert (tmp_path / "told").read_text() == f"{holder.uuid}//\n"
        assert (holder.pid, holder.reason) == (run.pid, "v42")
        busy = finished(["run", "x", "--no-wait", "--", "true"], env)
        assert busy.returncode == 75
        assert f"held by {holder.describe()}" in busy.stderr
        run.go()
    assert has(default_store.default_store(), "x") is None
    assert run.said == ""


def test_a_script_takes_pushes_and_releases_it(env: dict[str, str]) -> None:
    taken = finished(["lock", "x", "--export"], env)
    words = dict(word.partition("=")[::2] for word in shlex.split(taken.stdout)[1:])
    holder = seen()
    assert words == {
        "CLUSTERMUTEX_NAME": "x",
        "CLUSTERMUTEX_UUID": holder.uuid,
        "CLUSTERMUTEX_FENCING_TOKEN": "",
    }
    env = {**env, **words}
    assert finished(["alive"], env).returncode == 0
    assert (seen().alert_at or 0) > (holder.alert_at or 0)
    assert finished(["unlock"], env).returncode == 0
    assert has(default_store.default_store(), "x") is None
    again = finished(["alive"], env)
    assert (again.returncode, "Nobody holds it now" in again.stderr) == (76, True)


def test_who_was_frozen_taken_over_and_thawed_changes_nothing(
    env: dict[str, str], server: BucketServer, tmp_path: Path
) -> None:
    """It ends its command; its successor's lock has not been touched."""
    words = ["run", "x", "--expected-runtime", "2", "--auto-unlock-after", "600"]
    with Running([*words, "--", "sh", "-c", UNTIL_GO], env, tmp_path) as run:
        run.up()
        run.send_signal(signal.SIGSTOP)
        remove(default_store.default_store(), seen())
        successor = ClusterMutex("x")
        assert successor.acquire(timeout=PATIENCE)
        before, _ = server.bucket.get(OBJECT)
        run.send_signal(signal.SIGCONT)
        run.ends(76)
    assert "removed from this holder" in run.said
    after, _ = server.bucket.get(OBJECT)
    assert after == before
    successor.release()
