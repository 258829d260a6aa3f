"""`ClusterMutex` in one process, over a real etcd: it follows `threading.Lock`, and tells more."""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
import time
from collections.abc import Callable

import pytest

from lockclient import ClusterMutex, InvalidLockName, LockNotHeld, LockTimeout, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from tests.support.etcd_binary import Etcdctl, served
from tests.support.processes import wait_until


@pytest.fixture
def mutex(store: EtcdStore) -> Callable[..., ClusterMutex]:
    """Make a mutex of the test's own root."""
    return lambda name="x", **how: ClusterMutex(name, store=store, **how)


Make = Callable[..., ClusterMutex]


class TestWith:
    def test_it_holds_the_lock_in_the_block_only(self, mutex: Make) -> None:
        """Everyone can see who has it, where and what for; afterwards nobody has."""
        with mutex(reason="why ✓", expected_runtime=60) as held:
            holder = mutex().holder()
            assert holder is not None
            assert holder.subkeys() == held.record.subkeys()
            assert (holder.uuid, holder.reason) == (held.uuid, "why ✓")
            assert holder.thread == threading.current_thread().name
            assert holder.fencing_token == held.fencing_token > 0
            assert holder.alert_at == pytest.approx(time.time() + 60, abs=30)
            assert (holder.identity, holder.process) == (None, None)
            assert held.locked()
            assert held.healthy
        assert mutex().holder() is None
        assert not held.locked()
        assert not held.healthy

    def test_an_exception_of_the_block_goes_on(self, mutex: Make) -> None:
        """As it is, and the lock is free."""
        error = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as caught, mutex():
            raise error
        assert caught.value is error
        assert mutex().holder() is None

    def test_it_raises_where_acquire_returns_false(self, mutex: Make) -> None:
        """`LockTimeout` says which lock, how long, held by whom; and it survives pickling."""
        with mutex(reason="first") as held:
            with pytest.raises(LockTimeout) as caught, mutex(timeout=0.3):
                pytest.fail("the lock is somebody else's")
            error = pickle.loads(pickle.dumps(caught.value))
            assert isinstance(error, TimeoutError)
            assert isinstance(error, LockTimeout)
            assert error.name == "x"
            assert error.holder.subkeys() == held.record.subkeys()
            assert "The lock 'x' could not be had within 0.3 s." in str(error)
            assert f"held by {held.record.describe()}" in str(error)
            assert "for 'first', since 2" in str(error)

    def test_it_can_be_entered_again_after_it_was_left(self, mutex: Make) -> None:
        """One object, one acquisition after the other, each with a uuid and a token of its own."""
        one = mutex()
        with one:
            first = (one.uuid, one.fencing_token)
        with one:
            assert one.uuid != first[0]
            assert one.fencing_token > first[1]


class TestDecorator:
    def test_each_call_holds_the_lock(self, mutex: Make) -> None:
        """The function keeps its name, its arguments and its result."""
        one = mutex()

        @one
        def work(number: int, *, factor: int) -> int:
            """Doc."""
            assert one.locked()
            return number * factor

        assert work(3, factor=4) == 12
        assert (work.__name__, work.__doc__) == ("work", "Doc.")
        assert not one.locked()

    def test_what_runs_later_is_refused(self, mutex: Make) -> None:
        """Coroutines and generators would run after the lock was released."""

        async def coroutine() -> None:
            await asyncio.sleep(0)

        def generator() -> object:
            yield

        async def asynchronous() -> object:
            yield

        for each in (coroutine, generator, asynchronous):
            with pytest.raises(TypeError, match="use `with` inside it"):
                mutex()(each)


class TestAsALock:
    def test_release_from_another_thread(self, mutex: Make) -> None:
        """Whoever has the object may release it, once."""
        one = mutex()
        one.acquire()
        thread = threading.Thread(target=one.release)
        thread.start()
        thread.join()
        assert not one.locked()
        assert mutex().holder() is None
        with pytest.raises(LockNotHeld, match="'x' is not held by this object: release"):
            one.release()

    def test_of_many_that_release_one_succeeds(self, mutex: Make) -> None:
        """The others are told off, as by `threading.Lock`."""
        one = mutex()
        told_off: list[RuntimeError] = []

        def release() -> None:
            try:
                one.release()
            except RuntimeError as error:
                told_off.append(error)

        one.acquire()
        threads = [threading.Thread(target=release) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(told_off) == 7
        assert all(isinstance(each, LockNotHeld) for each in told_off)

    def test_threads_contend_for_one_object(self, mutex: Make) -> None:
        """It is no lock of the thread's: the second one waits for the first."""
        one, inside, most = mutex(), [0], [0]

        def work() -> None:
            for _ in range(5):
                with one:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1

        threads = [threading.Thread(target=work) for _ in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert most == [1]

    def test_it_is_not_reentrant(self, mutex: Make) -> None:
        """Who has it and asks again waits for itself; the first acquisition stands."""
        with mutex() as held:
            uuid = held.uuid
            assert not held.acquire(timeout=0.3)
            assert not held.acquire(blocking=False)
            assert held.uuid == uuid
            assert held.healthy

    @pytest.mark.parametrize(
        ("how", "error"),
        [
            ({"blocking": False, "timeout": 1}, ValueError),
            ({"timeout": -0.5}, ValueError),
            ({"timeout": math.nan}, ValueError),
            ({"timeout": -math.inf}, ValueError),
            ({"timeout": math.inf}, OverflowError),
            ({"timeout": 1e20}, OverflowError),
            ({"timeout": "1"}, TypeError),
        ],
    )
    def test_bad_arguments_are_refused(
        self, mutex: Make, how: dict[str, object], error: type[Exception]
    ) -> None:
        """As `threading.Lock` refuses them, and nothing is sent."""
        with pytest.raises(error):
            mutex().acquire(**how)  # type: ignore[arg-type]

    @pytest.mark.parametrize("what", ["fencing_token", "uuid", "record", "guard"])
    def test_who_does_not_hold_it_has_no_facts(self, mutex: Make, what: str) -> None:
        """Nor can it say that it is alive, or be asked for its health."""
        one = mutex()
        with pytest.raises(LockNotHeld, match=r"'x' is not held by this object: \w+ needs it"):
            getattr(one, "record" if what == "guard" else what)
        for call in (one.alive, one.check_health):
            with pytest.raises(LockNotHeld, match="'x' is not held"):
                call()


class TestConstruction:
    @pytest.mark.parametrize(
        ("how", "said"),
        [
            ({"name": ""}, "1 to 255 bytes"),
            ({"name": "a\nb"}, "control characters"),
            ({"name": "x" * 256}, "this one has 256"),
            ({"name": 5}, "must be a text"),
            ({"timeout": -1}, "timeout must be"),
            ({"timeout": math.nan}, "timeout must be"),
            ({"timeout": True}, "timeout must be"),
            ({"expected_runtime": 0}, "expected_runtime must be"),
            ({"expected_runtime": math.nan}, "expected_runtime must be"),
            ({"expected_runtime": "300"}, "expected_runtime must be"),
            ({"auto_unlock_after": 300.0}, "must exceed expected_runtime"),
            ({"auto_unlock_after": math.inf}, "auto_unlock_after must be"),
            ({"auto_unlock_after": "never"}, "auto_unlock_after must be"),
            ({"expected_runtime": 1000, "auto_unlock_after": 900}, "must exceed expected_runtime"),
            ({"reason": 5}, "reason must be a text"),
            ({"reason": "x" * 4097}, "0 to 4096 bytes"),
            ({"identity": ""}, "1 to 4096 bytes"),
            ({"identity": 7}, "identity must be a text"),
            ({"on_lost": "print"}, "on_lost must be callable"),
        ],
    )
    def test_bad_values_are_refused_before_any_io(self, how: dict[str, object], said: str) -> None:
        """There is no store at all here."""
        arguments: dict[str, object] = {"name": "x", **how}
        with pytest.raises(ValueError, match=said) as caught:
            ClusterMutex(**arguments)  # type: ignore[arg-type]
        assert isinstance(caught.value, InvalidLockName) == ("name" in how)

    def test_a_reason_that_is_no_utf8_is_shown_as_far_as_it_can_be(self, mutex: Make) -> None:
        """A file name from the file system may hold lone surrogates."""
        with mutex(reason="file \udcff") as held:
            assert held.record.reason == "file ?"
            holder = held.holder()
            assert holder is not None
            assert holder.reason == "file ?"


class TestCost:
    def test_a_cycle_without_contention_is_two_transactions(
        self, own_etcd: Etcd, own_store: EtcdStore
    ) -> None:
        """No lease, no watch, no read: as etcd itself counts."""
        one = ClusterMutex("x", store=own_store)
        with one:
            pass
        before = served(own_etcd)
        for _ in range(10):
            with one:
                one.alive()  # just pushed: nothing to send
        assert served(own_etcd) - before == {"Txn": 20}

    def test_a_try_that_fails_is_one_transaction(
        self, own_etcd: Etcd, own_store: EtcdStore, own_etcdctl: Etcdctl
    ) -> None:
        """And leaves nothing, no ticket either."""
        with ClusterMutex("x", store=own_store):
            before = served(own_etcd)
            assert not ClusterMutex("x", store=own_store).acquire(blocking=False)
            assert not ClusterMutex("x", store=own_store).acquire(timeout=0)
            assert served(own_etcd)["Txn"] - before["Txn"] == 2
            assert own_etcdctl("get", "--prefix", "/clustermutex/queue/") == ""

    def test_alive_in_a_hot_loop_sends_next_to_nothing(
        self, own_etcd: Etcd, own_store: EtcdStore
    ) -> None:
        """Within a second of the last push it only looks at a flag; `force` always pushes."""
        with ClusterMutex("x", store=own_store) as held:
            before = served(own_etcd)["Txn"]
            began = time.monotonic()
            for _ in range(100_000):
                held.alive()
            seconds = time.monotonic() - began
            assert served(own_etcd)["Txn"] - before <= seconds + 1
            before = served(own_etcd)["Txn"]
            for _ in range(3):
                held.alive(force=True)
            assert served(own_etcd)["Txn"] - before == 3


class TestSignsOfLife:
    def test_a_push_moves_the_stamps(self, mutex: Make) -> None:
        """Both of them, by the same, in the store; what the holder knows is what stands there."""
        with mutex(expected_runtime=60, auto_unlock_after=90) as held:
            first = held.record
            held.alive(force=True)
            second = held.holder()
            assert second is not None
            assert second.subkeys() == held.record.subkeys()
            for stamp in ("alive_at", "alert_at", "auto_unlock_at"):
                assert getattr(second, stamp) > getattr(first, stamp)
            assert second.locked_at == pytest.approx(first.locked_at, abs=0.001)
            assert second.auto_unlock_at == pytest.approx((second.alert_at or 0) + 30, abs=0.002)
            assert second.undecided() == ""

    @pytest.mark.parametrize("text", ["yesterday", "\U0001f512", "99999999999"])
    def test_a_push_makes_good_what_somebody_wrote_there(
        self, mutex: Make, settings: Settings, etcdctl: Etcdctl, text: str
    ) -> None:
        """A text that sorts after all numbers is no later push, and neither is a later time."""
        with mutex() as held:
            etcdctl("put", f"{settings.root}/locks/{held.name}/alert_at", input=text)
            held.alive(force=True)
            holder = held.holder()
            assert holder is not None
            assert holder.subkeys() == held.record.subkeys()

    def test_after_a_while_it_pushes_by_itself(self, mutex: Make) -> None:
        """At most a fiftieth of the expected runtime after the last push."""
        with mutex(expected_runtime=1, auto_unlock_after=60) as held:
            first = held.record.alive_at

            def pushed() -> bool:
                held.alive()
                return held.record.alive_at != first

            wait_until(pushed, what="a push")

    def test_keepalive_pushes_in_the_background(self, mutex: Make) -> None:
        """Nobody calls `alive()`, and the stamps move."""
        with mutex(expected_runtime=1, auto_unlock_after=5, keepalive=True) as held:
            first = held.record.alive_at or 0
            wait_until(lambda: (held.record.alive_at or 0) > first + 0.3, what="several pushes")
            holder = held.holder()
            assert holder is not None
            assert (holder.alive_at or 0) > first + 0.2
            assert held.healthy

    def test_it_need_never_be_unlocked(self, mutex: Make) -> None:
        """`auto_unlock_after=None`: the stamp that would allow it is never there."""
        with mutex(auto_unlock_after=None) as held:
            held.alive(force=True)
            holder = held.holder()
            assert holder is not None
            assert holder.auto_unlock_at is None

    def test_the_guard_holds_as_long_as_the_lock(self, mutex: Make, etcdctl: Etcdctl) -> None:
        """In the user's own transaction on the same etcd."""
        with mutex() as held:
            key, value = held.guard.key.decode(), held.guard.value.decode()
            check = f'val("{key}") = "{value}"\n\nput {key}-data 1\n\n\n'
            assert etcdctl("txn", input=check).startswith("SUCCESS")
        assert etcdctl("txn", input=check).startswith("FAILURE")
