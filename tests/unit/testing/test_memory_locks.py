"""`lockclient.testing`: locks in memory, and the programs that may not use them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lockclient import (
    ClusterMutex,
    ClusterMutexError,
    LockLost,
    LockTimeout,
    Settings,
    StoreError,
    StoreUnavailable,
    open_store,
)
from lockclient.stores import registry
from lockclient.stores.location import UrlLocation
from lockclient.testing import MemoryLocks, MemoryStore
from lockclient.testing.plugin import clustermutex
from tests.support.processes import run_to_end, wait_until

__all__ = ["clustermutex"]  # the fixture


class TestFixture:
    def test_a_mutex_without_a_store_uses_the_fixture(self, clustermutex: MemoryLocks) -> None:
        with ClusterMutex("x", reason="totals") as held:
            holder = clustermutex.holder("x")
            assert holder is not None
            assert (holder.uuid, holder.reason) == (held.uuid, "totals")
            assert clustermutex.held() == ["x"]
        assert clustermutex.holder("x") is None
        assert clustermutex.held() == []

    def test_the_fixture_overrides_setup(self, clustermutex: MemoryLocks) -> None:
        ClusterMutex.setup("etcd://production:2379/locks")
        with ClusterMutex("x"):
            assert clustermutex.held() == ["x"]
        with pytest.raises(ValueError, match="must begin with etcd"):
            ClusterMutex.setup("nonsense://x", owner="nobody")
        with ClusterMutex("x") as held:
            assert held.record.owner is None  # a setup that raises changes nothing

    @pytest.mark.parametrize("again", [1, 2])
    def test_the_fixture_forgets_all_locks(self, clustermutex: MemoryLocks, again: int) -> None:
        held = ClusterMutex("x").acquire(blocking=False)
        assert held is not None
        assert (held.record.owner, held.record.labels) == (None, None)
        ClusterMutex.setup(owner="team", labels={"env": "test"}, instruments=[lambda _: None])

    def test_waiters_end_with_the_fixture(self) -> None:
        locks, ended = MemoryLocks(), list[StoreError]()
        held = ClusterMutex("x", store=locks.store).acquire()
        assert held is not None

        def wait() -> None:
            try:
                ClusterMutex("x", store=locks.store).acquire()
            except StoreError as error:
                ended.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: held.waiters(), what="the waiter")
        locks.close()
        waiting.join(60)
        assert "closed" in str(ended[0])


class TestLoss:
    @pytest.mark.parametrize(
        ("lose", "text"),
        [
            (MemoryLocks.expire, "silent for too long"),
            (lambda locks, name: locks.take_away(name, "ann", "It hangs."), r"ann.*It hangs\."),
        ],
        ids=["expire", "take_away"],
    )
    def test_the_holder_knows_at_once(
        self, clustermutex: MemoryLocks, lose: Callable[[MemoryLocks, str], None], text: str
    ) -> None:
        told: list[LockLost] = []
        held = ClusterMutex("x", on_lost=told.append).acquire()
        assert held is not None
        lose(clustermutex, "x")
        assert not held.healthy
        for call in (held.check_health, held.alive, held.release):
            with pytest.raises(LockLost, match=text):
                call()
        assert clustermutex.held() == []
        with ClusterMutex("x", timeout=0):  # another one has it next
            assert clustermutex.held() == ["x"]
        wait_until(lambda: told, what="on_lost")
        assert told[0].removal is not None

    def test_a_free_lock_can_not_expire(self, clustermutex: MemoryLocks) -> None:
        with pytest.raises(ClusterMutexError, match="Nobody holds the lock 'x'"):
            clustermutex.expire("x")


class TestOthers:
    def test_held_elsewhere_holds_the_lock_for_a_block(self, clustermutex: MemoryLocks) -> None:
        with clustermutex.held_elsewhere("x", reason="the other host") as holder:
            assert ClusterMutex("x").acquire(blocking=False) is None
            there = clustermutex.holder("x")
            assert there is not None
            assert there.uuid == holder.uuid
            with pytest.raises(LockTimeout, match="the other host"):
                ClusterMutex("x", timeout=0).__enter__()
        assert ClusterMutex("x").acquire(blocking=False)

    def test_an_unavailable_store(self, clustermutex: MemoryLocks) -> None:
        with ClusterMutex("x") as held:
            with clustermutex.unavailable():
                held.alive()
                with pytest.raises(StoreUnavailable, match="the test says so"):
                    held.alive(force=True)
                with ThreadPoolExecutor(1) as threads:
                    taker = threads.submit(ClusterMutex("y").acquire)
                    # Against a store that is silent it would take ten seconds.
                    assert isinstance(taker.exception(timeout=5), StoreUnavailable)
                assert held.healthy
            held.alive(force=True)
        assert ClusterMutex("y").acquire(blocking=False)

    def test_a_loss_while_unavailable_is_known_afterwards(self, clustermutex: MemoryLocks) -> None:
        held = ClusterMutex("x").acquire()
        assert held is not None
        with clustermutex.unavailable():
            clustermutex.expire("x")
            assert held.healthy
        wait_until(lambda: not held.healthy, what="the loss")


class TestRefusedPrograms:
    """By a typo it would exclude nobody."""

    def test_no_url_names_a_memory_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLUSTERMUTEX_URL", "memory://")
        for url in (None, "memory://x"):
            with pytest.raises(ValueError, match=r"exclude nobody in another process.*MemoryStore"):
                Settings.load(url)
        with pytest.raises(ValueError, match="exclude nobody"):
            ClusterMutex("x").acquire()

    def test_no_url_of_another_package_names_a_memory_store(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "_factory", lambda scheme: lambda url: MemoryStore())
        with pytest.raises(ValueError, match="no store that other processes reach"):
            open_store(Settings(location=UrlLocation("theirs://x")))

    def test_a_forked_child_gets_an_error(self, clustermutex: MemoryLocks) -> None:
        program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: there are threads
from lockclient import ClusterMutex, LockNotHeld, StoreError
from lockclient.testing import MemoryStore
ClusterMutex.setup(store=MemoryStore())
with ClusterMutex("x") as held:
    child = os.fork()
    if child == 0:
        try:
            ClusterMutex("y").acquire()
        except StoreError as error:
            print(error, flush=True)
        os._exit(1 if held.healthy else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.alive(force=True)
"""
        done = run_to_end(sys.executable, "-c", program)
        assert "is one process's: locks that this child of a fork took there" in done.stdout

    def test_setup_takes_a_store_or_a_url(self) -> None:
        with pytest.raises(ValueError, match="Give the store, or where it is, not both"):
            ClusterMutex.setup("etcd://x/y", store=MemoryStore())
        with pytest.raises(ValueError, match="store must be what open_store"):
            ClusterMutex.setup(store="memory")  # type: ignore[arg-type]


def test_the_library_does_not_import_pytest() -> None:
    program = "import sys, lockclient; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True, env=os.environ)
    assert not {"pytest", "lockclient.testing", "importlib.metadata"} & {*loaded.split()}
