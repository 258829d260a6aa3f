"""The process around an acquisition: other stores, refused threads, closing, odd clients."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    LockLost,
    Settings,
    StoreClosed,
    StoreUnavailable,
)
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.overview.force_unlock import force_unlock
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.protocol import STORE_TIMEOUT_S
from lockclient.stores.requests import Push, RequestState
from lockclient.threads import scheduler
from lockclient.threads.scheduler import Scheduler
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.etcd_store import etcd_store
from tests.support.processes import Figure, wait_until
from tests.support.tcp_proxy import Fault, Proxy


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


class TestTwoStores:
    def test_a_frozen_one_delays_nothing_of_the_other(
        self,
        store: EtcdStore,
        own_store: EtcdStore,
        own_etcd: Etcd,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Its pushes, its clean-ups and its tickets are its own; so are its threads."""
        monkeypatch.setattr("lockclient.stores.etcd.store.TICKET_TTL_S", 4)
        monkeypatch.setattr("lockclient.stores.common.ticket_keeper.TICKET_RENEWAL_S", 1.0)
        many = [
            ClusterMutex(
                f"{i}", store=own_store, keepalive=True, expected_runtime=4, auto_unlock_after=900
            )
            for i in range(20)
        ]
        for mutex in many:
            mutex.acquire()
        losses: list[LockLost] = []
        mine = ClusterMutex(
            "mine",
            store=store,
            keepalive=True,
            expected_runtime=2,
            auto_unlock_after=8,
            on_lost=losses.append,
        )
        held = ClusterMutex("line", store=store)
        mine.acquire()
        held.acquire()
        waiter = start(ClusterMutex("line", store=store).acquire)
        wait_until(held.waiters, what="the ticket")
        place = held.waiters()[0].revision
        with frozen(own_etcd):
            until = time.monotonic() + 6  # longer than a ticket lives without renewal
            while time.monotonic() < until:
                time.sleep(0.25)
                alive_at = mine.record.alive_at
                assert alive_at is not None
                assert time.time() - alive_at < 7
                assert mine.healthy
            assert [ticket.revision for ticket in held.waiters()] == [place]
        assert losses == []
        held.release()
        waiter.join(60)
        mine.release()
        for mutex in many:
            mutex.release()

    def test_no_quiet_time_reaches_beyond_the_deadline(
        self, own_store: EtcdStore, own_etcd: Etcd
    ) -> None:
        """A push that failed puts the next one off, but not what `alive()` says at the deadline."""
        mutex = ClusterMutex("x", store=own_store, expected_runtime=1, auto_unlock_after=2.6)
        held = mutex.acquire()
        assert held is not None
        confirmed = held._acquisition
        with frozen(own_etcd):
            late, losses = 0, list[LockLost]()
            while not losses and time.monotonic() < confirmed.deadline + 5:
                before = time.monotonic()
                try:
                    held.alive()
                except LockLost as error:
                    losses.append(error)
                else:
                    late += before > confirmed.deadline
                    time.sleep(0.002)
            assert losses
            assert late == 0
            assert not held.healthy
        with contextlib.suppress(LockLost):
            held.release()


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
        monkeypatch.setattr(scheduler, "start_new_thread", begin)
        return refused

    return refusing


class TestWhatTheSystemRefuses:
    @pytest.mark.parametrize("number", range(4))
    def test_a_thread(
        self, settings: Settings, refuse: Callable[[Callable[[], bool]], list[int]], number: int
    ) -> None:
        """Whichever it is: the lock is had, pushed, watched and let go of as ever."""
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

    def test_the_only_thread_of_a_task(
        self, store: EtcdStore, root: str, etcdctl: Etcdctl, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No lock is taken that nobody could push, or tell of the loss of."""

        def refuse(*_: object) -> int:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(scheduler, "shared", Scheduler())
        monkeypatch.setattr(scheduler, "start_new_thread", refuse)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            asyncio.run(AsyncClusterMutex("x", store=store).acquire())
        assert etcdctl("get", "--prefix", root) == ""

    def test_a_certificate_that_is_being_replaced(self, tmp_path: Path) -> None:
        """For as long as the file is gone, what stood in it is used."""
        from lockclient.stores.etcd.wire.rpc_methods import _content  # what a channel is made of

        (tmp_path / "ca.pem").write_bytes(b"one")
        path = str(tmp_path / "ca.pem")
        assert _content(path) == b"one"
        (tmp_path / "ca.pem").unlink()
        assert _content(path) == b"one"
        (tmp_path / "ca.pem").write_bytes(b"two")
        assert _content(path) == b"two"

    def test_a_certificate_that_was_never_there(
        self, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The store is unavailable, by the file's name; said once, while it is retried."""
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


class TestLosses:
    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError, None])
    def test_each_is_told_once_whatever_else_is_raised(
        self,
        store: EtcdStore,
        kind: type[BaseException] | None,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Found as the block ends, before any watch could tell."""
        losses: list[LockLost] = []
        mutex = ClusterMutex("x", store=store, on_lost=losses.append)

        def lose_it() -> None:
            with mutex:
                force_unlock(store, "x", mutex.uuid, "ann", "why", Deadline.after(10))
                if kind is not None:
                    raise kind

        with pytest.raises((kind or LockLost, LockLost)):
            lose_it()
        wait_until(lambda: losses, what="on_lost")
        time.sleep(0.1)
        assert len(losses) == 1
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1

    def test_a_uuid_that_was_removed_holds_no_more(self, own_etcd: Etcd) -> None:
        """Force-unlocked before its first push was confirmed: it goes on with another uuid."""
        removed: list[str] = []
        with Proxy(own_etcd.endpoint) as proxy:
            direct = etcd_store(Settings(endpoints=(own_etcd.endpoint,)))

            class Removing(EtcdStore):
                def send(self, sending: RequestState, deadline: Deadline) -> Any:
                    if isinstance(sending.request, Push) and not removed:
                        uuid = sending.request.uuid
                        removed.append(uuid)
                        force_unlock(direct, "x", uuid, "ann", "why", Deadline.after(5))
                    return super().send(sending, deadline)

            store = Removing(EtcdLocation(endpoints=(proxy.endpoint,)))
            ClusterMutex("warm", store=store).holder()
            proxy.inject(Fault.LOSE_ANSWER)
            mutex = ClusterMutex("x", store=store)
            assert mutex.acquire(timeout=20)
            assert removed
            assert mutex.uuid not in removed
            mutex.release()
            proxy.done()
            assert mutex.holder() is None
            store.close()
            direct.close()


class TestTimeouts:
    @pytest.mark.parametrize("timeout", [0, 0.01])
    def test_there_is_time_for_one_answer(self, own_etcd: Etcd, timeout: float) -> None:
        """However short the time is: a free lock is had, a held one is not, and no error."""
        with Proxy(own_etcd.endpoint) as proxy:
            store = etcd_store(Settings(endpoints=(proxy.endpoint,)))
            for _ in range(5):
                free, held = ClusterMutex("free", store=store), ClusterMutex("held", store=store)
                assert free.acquire(timeout=timeout)
                assert held.acquire()
                assert ClusterMutex("held", store=store).acquire(timeout=timeout) is None
                assert held.waiters() == []
                free.release()
                held.release()
            store.close()


class TestClosing:
    def test_whoever_waits_is_told_within_a_second(self, settings: Settings) -> None:
        """A thread and a task alike; and their tickets are gone."""
        store, other = etcd_store(settings), etcd_store(settings)
        held = ClusterMutex("x", store=other)
        held.acquire()
        ended: list[tuple[type, float]] = []

        def wait() -> None:
            try:
                ClusterMutex("x", store=store).acquire()
            except StoreClosed as error:
                ended.append((type(error), time.monotonic()))

        async def wait_as_a_task() -> None:
            try:
                await AsyncClusterMutex("x", store=store).acquire()
            except StoreClosed as error:
                ended.append((type(error), time.monotonic()))

        threads = [start(wait), start(lambda: asyncio.run(wait_as_a_task()))]
        wait_until(lambda: len(held.waiters()) == 2, what="both in line")
        before = time.monotonic()
        store.close()
        closed = time.monotonic() - before
        for thread in threads:
            thread.join(60)
        assert len(ended) == 2
        assert max(at for _, at in ended) - before < STORE_TIMEOUT_S
        assert closed < STORE_TIMEOUT_S
        wait_until(lambda: held.waiters() == [], 8, "their tickets to go, sooner than their lease")
        held.release()
        other.close()

    @pytest.fixture
    def _soon_idle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread that has nothing to do ends after a second."""
        monkeypatch.setattr("lockclient.threads.pool.IDLE_S", 1.0)
        monkeypatch.setattr("lockclient.stores.etcd.wire.watch_stream.IDLE_S", 1.0)

    @pytest.mark.usefixtures("_soon_idle")
    def test_nothing_of_it_is_left(self, settings: Settings, figure: Figure) -> None:
        """Opened, waited on, closed, again and again: no thread and no descriptor more."""

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

    @pytest.mark.usefixtures("_soon_idle")
    def test_an_idle_store_has_no_thread(self, settings: Settings) -> None:
        """Who forgets to close one, or replaces it by another `setup`, loses nothing by it."""
        others = own_threads()
        store = etcd_store(settings)
        with ClusterMutex("x", store=store):
            assert not ClusterMutex("x", store=store).acquire(timeout=0.01)
            time.sleep(1.2)
        wait_until(lambda: not own_threads() - others, what="the end of its threads")
        with ClusterMutex("x", store=store):  # and it works on
            pass
        store.close()


class TestCopies:
    @pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
    @pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
    def test_there_are_none(
        self, store: EtcdStore, kind: type[ClusterMutex], how: Callable[[object], object]
    ) -> None:
        """A copy of a held one would hold the same lock; it says what to do instead."""
        with pytest.raises(TypeError, match="make another one with the same name, 'x'"):
            how(kind("x", store=store))

    def test_the_guard_is_of_the_store_that_holds(
        self, etcd: Etcd, root: str, settings: Settings
    ) -> None:
        """Not of the one that `setup` names now."""
        ClusterMutex.setup(settings.url())
        with ClusterMutex("g") as held:
            key = held.guard.key
            ClusterMutex.setup(f"etcd://{etcd.endpoint}{root}-other")
            assert held.guard.key == key


class TestNames:
    @pytest.mark.parametrize("name", ["w-\udcff", "x" * 100_000, "é" * 3_000])
    def test_a_thread_may_be_named_anything(self, store: EtcdStore, name: str) -> None:
        """What is told of it is bounded, and UTF-8."""
        seen: list[str | None] = []

        def work() -> None:
            with ClusterMutex("x", store=store) as mutex:
                holder = mutex.holder()
                seen.append(None if holder is None else holder.thread)

        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join(60)
        assert seen
        assert seen[0] is not None
        assert len(seen[0]) <= 200

    def test_a_foreign_ticket_is_watched_by_the_key_that_was_read(
        self, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        """Its client may have encoded its name otherwise than we would."""
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


BLOCKED = """
import asyncio, sys
from lockclient import AsyncClusterMutex, Settings, open_store
from lockclient.stores.etcd import store as etcd_store

etcd_store.TICKET_TTL_S = 3

async def main():
    store = open_store(Settings.load(sys.argv[1]))
    async def wait():
        async with AsyncClusterMutex("x", store=store, reason="blocked"):
            print("got it", flush=True)
    task = asyncio.create_task(wait())
    await asyncio.sleep(1)
    print("blocked", flush=True)
    sys.stdin.readline()
    await task

asyncio.run(main())
"""


@contextlib.contextmanager
def blocked(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """A program whose task stands in line, and whose loop is blocked."""
    command = [sys.executable, "-c", BLOCKED, settings.url()]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as program:
        try:
            yield program
        finally:
            program.kill()


def test_a_blocked_loop_keeps_nobody_waiting(
    store: EtcdStore, settings: Settings, figure: Figure
) -> None:
    """Its ticket ends, as it can't act; the others go on, and it queues again at the end."""
    held = ClusterMutex("x", store=store)
    held.acquire()
    with blocked(settings) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "blocked\n"
        assert [ticket.reason for ticket in held.waiters()] == ["blocked"]
        held.release()
        began = time.monotonic()
        with ClusterMutex("x", store=store, timeout=60):
            seconds = time.monotonic() - began
            figure(f"the next in line had the lock {seconds:.1f} s after its release")
        assert program.stdin is not None
        print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "got it\n"


HOLDING = """
import sys, time
from lockclient import ClusterMutex, Settings, open_store

with ClusterMutex("x", store=open_store(Settings.load(sys.argv[1])), identity="worker-7"):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_predecessor_that_is_still_dying_is_asked_for_again(
    store: EtcdStore, settings: Settings
) -> None:
    """It runs as the new one asks, and does not a moment later."""
    command = [sys.executable, "-c", HOLDING, settings.url()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as old:
        assert old.stdout is not None
        assert old.stdout.readline() == "held\n"
        heir, got = ClusterMutex("x", store=store, identity="worker-7"), list[float]()
        thread = start(lambda: got.append(bool(heir.acquire(timeout=60)) and time.monotonic()))
        wait_until(heir.waiters, what="the new one in line")
        time.sleep(0.5)
        assert not got, "not from a process that lives"
        old.kill()
        old.wait()
    died = time.monotonic()
    thread.join(60)
    assert got
    assert 0 < got[0] - died < 20
    wait_until(lambda: heir.waiters() == [], what="its ticket to go")
    heir.release()


def test_no_lock_is_taken_over_within_the_process(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing tells processes apart, this one still knows what it holds."""
    monkeypatch.setattr("lockclient.acquisition.base.fingerprint", lambda _: None)
    one = ClusterMutex("x", store=store, identity="worker-7")
    one.acquire()
    uuid = one.uuid
    assert not ClusterMutex("x", store=store, identity="worker-7").acquire(timeout=0.3)
    assert one.healthy
    assert one.uuid == uuid
    one.release()
