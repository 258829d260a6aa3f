"""Locks in a bucket, which nothing but the URL says: the library and the command, end to end."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    LockLost,
    StoreError,
    default_store,
)
from lockclient.model.holder import Holder
from tests.acceptance.shells import Running, finished
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
