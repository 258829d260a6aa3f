"""The process around an acquisition: other stores, refused threads, closing, odd clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    LockLost,
    Settings,
    StoreUnavailable,
)
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.overview.force_unlock_request import force_unlock
from lockclient.stores.etcd.store import EtcdStore
from lockclient.threads import daemon_thread
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.etcd_store import etcd_store
from tests.support.locks import HolderProcess, has, queue_up
from tests.support.processes import Figure, run_to_end, wait_until


def own_threads() -> set[threading.Thread]:
    """Our threads, but those of the process: its clock's and its log's."""
    ours = {thread for thread in threading.enumerate() if thread.name.startswith("clustermutex")}
    return {thread for thread in ours if thread.name not in _OF_THE_PROCESS}


_OF_THE_PROCESS = "clustermutex-timers", "clustermutex-log"


def start(work: Callable[[], object]) -> threading.Thread:
    """Do it in a thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_frozen_store_does_not_delay_another(
    store: EtcdStore, own_store: EtcdStore, own_etcd: Etcd
) -> None:
    kept: Any = {"keepalive": True, "auto_unlock_after": 900}
    many = [
        ClusterMutex(f"{number}", store=own_store, expected_runtime=4, **kept)
        for number in range(20)
    ]
    for mutex in many:
        mutex.acquire()
    with ClusterMutex("mine", store=store, expected_runtime=2, **kept) as mine:
        with frozen(own_etcd):
            until = time.monotonic() + 4
            while time.monotonic() < until:
                time.sleep(0.25)
                assert time.time() - (mine.record.alive_at or 0) < 3
                with ClusterMutex("another", store=store, timeout=3):
                    pass
        mine.check_health()
    for mutex in many:
        mutex.release()


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], list[int]]:
    """Let the system refuse the next thread that is started while a condition holds."""

    def refusing(when: Callable[[], bool]) -> list[int]:
        really, refused = threading._start_new_thread, list[int]()  # type: ignore[attr-defined]

        def begin(function: Callable[..., object], *args: Any) -> Any:
            if not refused and when():
                refused.append(1)
                raise RuntimeError("can't start new thread")
            return really(function, *args)

        monkeypatch.setattr(threading, "_start_new_thread", begin)
        monkeypatch.setattr(daemon_thread, "start_new_thread", begin)
        return refused

    return refusing


REFUSED = """
import asyncio, sys
from lockclient import AsyncClusterMutex, Settings, StoreUnavailable, open_store
from lockclient.threads import daemon_thread

def refuse(*_):
    raise RuntimeError("can't start new thread")

daemon_thread.start_new_thread = refuse
try:
    asyncio.run(AsyncClusterMutex("x", store=open_store(Settings.load(sys.argv[1]))).acquire())
except StoreUnavailable as error:
    print(error)
"""


class TestRefusedThreads:
    @pytest.mark.parametrize("number", range(4))
    def test_a_thread(
        self, settings: Settings, refuse: Callable[[Callable[[], bool]], list[int]], number: int
    ) -> None:
        """Whichever it is: acquiring says so, or the lock is pushed and watched as ever."""
        count = iter(range(100))
        refused = refuse(lambda: next(count) >= number)
        with contextlib.closing(etcd_store(settings)) as store:
            losses: list[LockLost] = []
            held = ClusterMutex(
                "x",
                store=store,
                keepalive=True,
                expected_runtime=2,
                auto_unlock_after=900,
                on_lost=losses.append,
            )
            with contextlib.suppress(StoreUnavailable):
                held.acquire(timeout=20)
            if not held.locked():
                assert held.acquire(timeout=20)
            first = held.record.alive_at
            wait_until(lambda: held.record.alive_at != first, what="a push")
            wait_until(store.connected, what="the watch")
            waiter = ClusterMutex("x", store=store)
            thread = start(waiter.acquire)
            wait_until(held.waiters, what="the ticket")
            held.release()
            thread.join(60)
            force_unlock(store, "x", waiter.uuid, "ann", "why", Deadline.after(10))
            with pytest.raises(LockLost):
                waiter.release()
        assert refused

    @pytest.mark.skipif(os.geteuid() != 0, reason="a limit for another user than the tests' own")
    @pytest.mark.parametrize("most", [1, 3, 10])
    def test_all_threads_of_a_command(
        self, settings: Settings, store: EtcdStore, most: int
    ) -> None:
        """`ulimit -u`, in which gRPC by itself would end the process by SIGABRT."""
        reading = "+dac_override,+dac_read_search"  # the tests' own files
        nobody = ["setpriv", "--reuid=54321", f"--inh-caps=-all,{reading}"]
        nobody += [f"--ambient-caps=-all,{reading}", "prlimit", f"--nproc={most}:{most}"]
        command = [sys.executable, "-m", "lockclient", "run", "x", "--", "true"]
        url = {"CLUSTERMUTEX_URL": settings.url()}
        done = run_to_end(*nobody, *command, env=url, status=71)
        assert "the system gives no thread" in done.stderr.lower()
        assert has(store, "x") is None

    def test_the_only_thread_of_a_task(self, settings: Settings, store: EtcdStore) -> None:
        """No lock is taken that nobody could push, or tell of the loss of."""
        done = run_to_end(sys.executable, "-c", REFUSED, settings.url())
        assert "can't start new thread" in done.stdout
        assert has(store, "x") is None

    def test_a_certificate_being_replaced(self, tmp_path: Path) -> None:
        from lockclient.stores.etcd.wire.rpc_methods import _content  # what a channel is made of

        (tmp_path / "ca.pem").write_bytes(b"one")
        path = str(tmp_path / "ca.pem")
        assert _content(path) == b"one"
        (tmp_path / "ca.pem").unlink()
        assert _content(path) == b"one"
        (tmp_path / "ca.pem").write_bytes(b"two")
        assert _content(path) == b"two"

    def test_a_missing_certificate_is_named(
        self, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "no.pem"
        path.write_text("it was there when the program began")
        missing = Settings(endpoints=settings.endpoints, cacert=str(path))
        path.unlink()
        with (
            contextlib.closing(etcd_store(missing)) as store,
            pytest.raises(StoreUnavailable, match=r"no\.pem"),
        ):
            ClusterMutex("x", store=store).acquire(timeout=0.5)
        assert caplog.text.count("does not answer") == 1


def test_a_closed_store_leaves_no_thread_and_no_descriptor(
    settings: Settings, figure: Figure
) -> None:
    def use() -> None:
        store = etcd_store(settings)
        with ClusterMutex("x", store=store):
            assert not ClusterMutex("x", store=store).acquire(timeout=0.01)
        store.close()

    async def use_as_a_task() -> None:
        store = etcd_store(settings)
        async with AsyncClusterMutex("x", store=store):
            assert not await AsyncClusterMutex("x", store=store).acquire(timeout=0.01)
        store.close()

    async def tasks(count: int) -> None:
        for _ in range(count):
            await use_as_a_task()

    def stand() -> tuple[int, ...]:
        gc.collect()
        return tuple(len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("fd", "task"))

    others = own_threads()
    for run in (use, lambda: asyncio.run(tasks(1))):
        for _ in range(3):
            run()
    wait_until(lambda: not own_threads() - others, what="the end of all its threads")
    before = stand()
    for _ in range(30):
        use()
    asyncio.run(tasks(30))
    wait_until(lambda: not own_threads() - others, what="the end of all its threads")
    wait_until(
        lambda: all(now <= was + 6 for now, was in zip(stand(), before, strict=True)),
        what="as few descriptors and threads as before",
    )
    figure(f"descriptors and threads: {before} before, {stand()} after 60 stores")


def test_an_idle_store_has_no_thread(settings: Settings) -> None:
    """A program that forgets to close one, or replaces it by another `setup`, loses nothing."""
    others = own_threads()
    store = etcd_store(settings)
    with ClusterMutex("x", store=store):
        assert not ClusterMutex("x", store=store).acquire(timeout=0.01)
    wait_until(lambda: not own_threads() - others, what="the end of its threads")
    with ClusterMutex("x", store=store):  # and it works on
        pass
    store.close()


def test_the_guard_belongs_to_the_store_of_the_lock(
    etcd: Etcd, root: str, settings: Settings
) -> None:
    ClusterMutex.setup(settings.url())
    with ClusterMutex("g") as held:
        key = held.guard.key
        ClusterMutex.setup(f"etcd://{etcd.endpoint}{root}-other")
        assert held.guard.key == key


def test_a_foreign_ticket_is_watched_by_its_own_key(store: EtcdStore, etcdctl: Etcdctl) -> None:
    lease = etcdctl("lease", "grant", "600").split()[1]
    key = f"{store.location.root}/queue/x/host%2f17"
    etcdctl("put", f"--lease={lease}", key, '{"hostname": "go-service"}')
    got: list[float] = []
    waiter = ClusterMutex("x", store=store)
    thread = start(lambda: got.append(bool(waiter.acquire()) and time.monotonic()))
    wait_until(lambda: len(waiter.waiters()) == 2, what="the line")
    time.sleep(0.5)
    etcdctl("del", key)
    left = time.monotonic()
    thread.join(30)
    assert got
    assert got[0] - left < 20, "not by the look once a minute"
    waiter.release()


def test_no_lock_is_taken_over_within_the_process(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing tells processes apart, this one still knows what it holds."""
    monkeypatch.setattr("lockclient.acquisition.base_mutex.fingerprint", lambda _: None)
    one = ClusterMutex("x", store=store, identity="worker-7")
    one.acquire()
    uuid = one.uuid
    assert not ClusterMutex("x", store=store, identity="worker-7").acquire(timeout=0.3)
    assert one.healthy
    assert one.uuid == uuid
    one.release()


def test_reclaiming_waits_for_the_end_of_the_predecessor(
    store: EtcdStore, settings: Settings
) -> None:
    heir = ClusterMutex("x", store=store, identity="worker-7")
    with HolderProcess(settings, "x", identity="worker-7"):
        thread = queue_up(heir, 60)
        time.sleep(0.5)
        assert not heir.locked(), "not from a process that lives"
    died = time.monotonic()
    thread.join(60)
    assert time.monotonic() - died < 20
    heir.release()
    assert heir.waiters() == []
