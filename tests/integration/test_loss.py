"""A lock that was taken away: its holder knows, soon, and in every way that it is told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from lockclient import (
    ClusterMutex,
    HeldLock,
    LockLost,
    Removal,
    StoreUnavailable,
)
from lockclient.acquisition import holding
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.stores import protocol
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Done
from lockclient.stores.requests import Remove
from tests.support.etcd_binary import Etcdctl, frozen, served
from tests.support.processes import Figure, wait_until


def remove(store: EtcdStore, held: ClusterMutex, why: str = "web-1 burnt down.") -> None:
    """Force-unlock it, as a person does from the dashboard."""
    removal = Removal(held.record, time.time(), "ann", "force-unlock", why)
    assert isinstance(store.ask(Remove(removal, None), Deadline.after(10)), Done)


@pytest.fixture
def delete(store: EtcdStore, etcdctl: Etcdctl) -> Callable[[], str]:
    """Delete the lock `x` as a person with etcdctl does."""
    return lambda: etcdctl("del", "--prefix", f"{store.location.root}/locks/x/")


class TestRemoved:
    def test_whoever_deletes_it_is_noticed(
        self, store: EtcdStore, delete: Callable[[], str], figure: Figure
    ) -> None:
        """`healthy` turns false without a request, checks raise, `on_lost` is called once."""
        losses: list[LockLost] = []
        held = ClusterMutex("x", store=store, on_lost=losses.append)
        held.acquire()
        held.check_health()
        wait_until(store.connected, what="the watch for its loss")
        delete()
        deleted_at = time.monotonic()
        wait_until(lambda: not held.healthy, what="the loss to be noticed")
        figure(f"the loss was noticed after {(time.monotonic() - deleted_at) * 1000:.0f} ms")
        wait_until(lambda: losses, what="on_lost")
        assert not held.locked(), "though it must be released all the same"
        raised: list[LockLost] = []
        for call in (held.check_health, held.alive, lambda: held.alive(force=True), held.release):
            with pytest.raises(LockLost, match="'x' was removed from this holder") as caught:
                call()
            assert (caught.value.name, caught.value.removal) == ("x", None)
            assert caught.value.uuid == losses[0].uuid
            raised.append(caught.value)
        assert len(set(map(id, raised))) == 4, "each with a traceback of its own"
        assert not held.locked()
        assert len(losses) == 1

    def test_who_asks_waits_for_no_lock_of_ours(self, store: EtcdStore) -> None:
        """A finalizer or a handler may ask on top of our own code, which has locks of Python's."""
        losses: list[LockLost] = []
        mutex = ClusterMutex(
            "x", store=store, on_lost=losses.append, expected_runtime=0.5, auto_unlock_after=2.5
        )
        held = mutex.acquire()
        assert held
        wait_until(lambda: held._holding._watch is not None, what="the watch for its loss")
        with store._streams[0]._lock, store.background.tickets._lock:
            wait_until(lambda: time.monotonic() > held._acquisition.deadline, what="its deadline")
            answers: list[bool] = []

            def ask() -> None:
                answers.extend((held.healthy, mutex.locked(), "held" in repr(held).split()[0]))

            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(60)
            assert answers == [False, False, False]
            wait_until(lambda: losses, what="on_lost, which waits for none either")


Delete = Callable[[], str]


class TestLeavingWith:
    @pytest.fixture
    def leave(self, store: EtcdStore, delete: Delete) -> Callable[..., LockLost]:
        """Lose the lock in a block that then does `end`; return what comes out of it."""

        def run(end: Callable[[HeldLock], object]) -> LockLost:
            def block() -> None:
                with ClusterMutex("x", store=store) as held:
                    delete()
                    end(held)

            with pytest.raises(LockLost) as caught:
                block()
            return caught.value

        return run

    def test_no_chain_of_exceptions_bites_its_tail(self, leave: Callable[..., LockLost]) -> None:
        """The block caught the loss and raised something else: whoever walks along it, ends."""

        def end(held: ClusterMutex) -> None:
            try:
                held.alive(force=True)
            except LockLost as loss:
                raise RuntimeError("the work is spoilt") from loss

        seen: list[BaseException] = []
        error: BaseException | None = leave(end)
        while error is not None:
            assert error not in seen
            seen.append(error)
            error = error.__cause__ or error.__context__
        # The runner itself may be handling an exception of its own, which then ends the chain.
        assert [type(met) for met in seen[:3]] == [LockLost, RuntimeError, LockLost]

    def test_an_interrupt_goes_on(self, store: EtcdStore, delete: Delete) -> None:
        """Ctrl-C stays Ctrl-C."""

        @ClusterMutex("x", store=store)
        def block() -> None:
            delete()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            block()


class TestTimeRunsOut:
    @pytest.fixture(autouse=True)
    def _less_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A push that nobody answers is given up soon."""
        monkeypatch.setattr(protocol, "STORE_TIMEOUT_S", 0.5)
        monkeypatch.setattr(holding, "PUSH_TRY", 0.5)

    def test_the_deadline_passes_while_etcd_is_frozen(
        self, own_etcd: Etcd, own_store: EtcdStore, own_etcdctl: Etcdctl
    ) -> None:
        """On the holder's own clock, whether anyone can be asked or not."""
        losses: list[LockLost] = []
        held = ClusterMutex(
            "x", store=own_store, expected_runtime=1, auto_unlock_after=5, on_lost=losses.append
        )
        held.acquire()
        with frozen(own_etcd):
            pushed_at = time.monotonic()
            held.alive()  # nobody answers: no error as long as the lock is ours
            assert held.healthy
            with pytest.raises(StoreUnavailable):
                held.alive(force=True)
            held.check_health()
            wait_until(lambda: not held.healthy, what="the deadline")
            assert time.monotonic() - pushed_at > 3
            wait_until(lambda: losses, what="on_lost, with nobody asking")
            for call in (held.check_health, held.alive, held.release):
                with pytest.raises(LockLost, match="confirmed no heartbeat of it for 5 s"):
                    call()
            assert not held.locked()
        assert len(losses) == 1
        key = "/clustermutex/locks/x/"
        wait_until(lambda: not own_etcdctl("get", "--prefix", key), what="the lock to be let go")

    def test_leaving_with_says_lost_and_not_unavailable(
        self, own_etcd: Etcd, own_store: EtcdStore
    ) -> None:
        """What matters to the work comes first, even where the store can't be asked."""
        mutex = ClusterMutex("x", store=own_store, expected_runtime=0.2, auto_unlock_after=0.5)

        def block(stack: contextlib.ExitStack) -> None:
            with mutex as held:
                stack.enter_context(frozen(own_etcd))
                wait_until(lambda: not held.healthy, what="the deadline")

        with contextlib.ExitStack() as stack, pytest.raises(LockLost):
            block(stack)

    def test_a_late_answer_comes_in_time(
        self, own_etcd: Etcd, own_store: EtcdStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store that was away for a moment costs nothing but a warning."""
        mutex = ClusterMutex("x", store=own_store, expected_runtime=1, auto_unlock_after=60)
        with mutex as held:
            with frozen(own_etcd), pytest.raises(StoreUnavailable):
                held.alive(force=True)
            monkeypatch.undo()
            held.alive(force=True)
            held.check_health()


class TestNoFalseAlarm:
    def test_a_loss_that_nobody_minds_asks_no_more(
        self, own_etcd: Etcd, own_store: EtcdStore
    ) -> None:
        """A holder that hangs must not send a request for each one that comes after it."""
        losses: list[LockLost] = []
        held = ClusterMutex("x", store=own_store, on_lost=losses.append)
        held.acquire()
        remove(own_store, held)
        wait_until(lambda: losses, what="on_lost")
        other = EtcdStore(own_store.location)
        before = served(own_etcd)["Txn"]
        for _ in range(20):
            with ClusterMutex("x", store=other):
                pass
        assert served(own_etcd)["Txn"] - before == 40
        other.close()
