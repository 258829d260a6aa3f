"""Locks in a bucket, which nothing but the URL says: the library and the command, end to end."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
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
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.outcomes import Done, ReadResult
from lockclient.stores.requests import Read, Remove
from tests.acceptance.shells import PATIENCE, finished, running, written
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import HANG, BucketServer
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
    """The environment of a shell."""
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}


def seen(name: str = "x") -> Holder | None:
    """Return who has the lock."""
    found = default_store.default_store().ask(Read(name), Deadline.after(PATIENCE))
    assert isinstance(found, ReadResult)
    return found.holder


def remove(holder: Holder) -> None:
    """Remove a lock as a person does."""
    removal = Removal(holder, time.time(), "ann", "force-unlock", "It hangs.")
    done = default_store.default_store().ask(Remove(removal, None), Deadline.after(PATIENCE))
    assert isinstance(done, Done)


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
    """Another acquisition stands there."""
    server.bucket.insert(OBJECT, b"{}", Conditions(), metadata={"uuid": str(uuid4())})


def deleted(server: BucketServer) -> None:
    """Somebody has deleted it by hand."""
    server.bucket.delete(OBJECT, Conditions())


def removed(server: BucketServer) -> None:
    """Somebody has removed it."""
    holder = seen()
    assert holder is not None
    remove(holder)


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
    said = [
        each.message
        for each in caplog.records
        if each.name == "lockclient.stores.gcs.wire.http_client"
    ]
    assert said
    both = ("does not answer", "answers again after") * len(said)
    assert all(words in text for words, text in zip(both, said, strict=False))
    assert len(said) % 2 == 0


def test_a_task_that_is_cancelled_leaves_nothing(server: BucketServer) -> None:
    """Its request is answered in a moment, so that nothing can come late: no trace is left."""

    async def main() -> None:
        server.fault("POST", HANG, seconds=0.2)
        task = asyncio.create_task(AsyncClusterMutex("x").acquire())
        while not server.counted("POST"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    store = default_store.default_store()
    assert isinstance(store, GcsStore)
    wait_until(lambda: not store.background.unfinished(), what="the clean-up")
    assert server.bucket.names() == []
    assert server.counted("DELETE") == 1


# ---------------------------------------------------------------- the command


def test_a_command_runs_under_it(env: dict[str, str], tmp_path: Path) -> None:
    """And knows of it; a token that it would inherit from one around it is not its own."""
    env = {**env, "CLUSTERMUTEX_FENCING_TOKEN": "17"}
    script = f'echo "$CLUSTERMUTEX_UUID/$CLUSTERMUTEX_FENCING_TOKEN/" > told; {UNTIL_GO}'
    with running(["run", "x", "--reason", "v42", "--", "sh", "-c", script], env, tmp_path) as run:
        written(tmp_path / "up")
        holder = seen()
        assert holder is not None
        assert (tmp_path / "told").read_text() == f"{holder.uuid}//\n"
        assert (holder.pid, holder.reason) == (run.pid, "v42")
        busy = finished(["run", "x", "--no-wait", "--", "true"], env)
        assert busy.returncode == 75
        assert f"held by {holder.describe()}" in busy.stderr
        (tmp_path / "go").touch()
        assert run.wait(PATIENCE) == 0
    assert seen() is None
    assert (tmp_path / "said").read_text() == ""


def test_a_script_takes_pushes_and_releases_it(env: dict[str, str]) -> None:
    taken = finished(["lock", "x", "--export"], env)
    words = dict(each.partition("=")[::2] for each in shlex.split(taken.stdout)[1:])
    holder = seen()
    assert holder is not None
    assert words == {
        "CLUSTERMUTEX_NAME": "x",
        "CLUSTERMUTEX_UUID": holder.uuid,
        "CLUSTERMUTEX_FENCING_TOKEN": "",
    }
    env = {**env, **words}
    assert finished(["alive"], env).returncode == 0
    pushed = seen()
    assert pushed is not None
    assert (pushed.alert_at or 0) > (holder.alert_at or 0)
    assert finished(["unlock"], env).returncode == 0
    assert seen() is None
    again = finished(["alive"], env)
    assert (again.returncode, "Nobody holds it now" in again.stderr) == (76, True)


def test_where_it_is_can_be_told_by_the_flag(
    env: dict[str, str], server: BucketServer, tmp_path: Path
) -> None:
    url = env.pop("CLUSTERMUTEX_URL")
    words = ["--url", url, "run", "x", "--", "sh", "-c", 'test "$CLUSTERMUTEX_URL" = "$0"', url]
    assert finished(words, env).returncode == 0
    assert server.counted("POST", OBJECT) == 1


def test_who_was_frozen_taken_over_and_thawed_changes_nothing(
    env: dict[str, str], server: BucketServer, tmp_path: Path
) -> None:
    """It ends its command; its successor's lock has not been touched."""
    words = ["run", "x", "--expected-runtime", "2", "--auto-unlock-after", "600"]
    with running([*words, "--", "sh", "-c", UNTIL_GO], env, tmp_path) as run:
        written(tmp_path / "up")
        run.send_signal(signal.SIGSTOP)
        frozen = seen()
        assert frozen is not None
        remove(frozen)
        successor = ClusterMutex("x")
        assert successor.acquire(timeout=PATIENCE)
        before, _ = server.bucket.get(OBJECT)
        run.send_signal(signal.SIGCONT)
        assert run.wait(PATIENCE) == 76
    assert "removed from this holder" in (tmp_path / "said").read_text()
    after, _ = server.bucket.get(OBJECT)
    assert after == before
    successor.release()


def test_a_command_that_is_killed_leaves_its_lock_for_all_to_see(
    env: dict[str, str], tmp_path: Path
) -> None:
    """Until somebody removes it: nothing expires."""
    script = f"echo $$ > pid; {UNTIL_GO}"
    with running(["run", "x", "--", "sh", "-c", script], env, tmp_path) as run:
        written(tmp_path / "up")
        run.kill()
        run.wait(PATIENCE)
        left = seen()
        assert left is not None
        assert left.pid == run.pid
        remove(left)
    assert seen() is None
