"""The promises that `ClusterMutex` and `AsyncClusterMutex` share, on each store."""

from __future__ import annotations

import functools
import logging
import math
import pickle
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from lockclient import LockLost, LockNotHeld, LockTimeout
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.request_types import Remove
from tests.contract.asking import Ask, holder, removal, take
from tests.contract.drivers import PATIENCE, InThreads, Make, Mutex
from tests.contract.subject import Subject
from tests.support.processes import wait_until


def line(subject: Subject, mutex: Mutex) -> list[Ticket]:
    """Return the waiters that the store knows."""
    return mutex.waiters() if subject.store.can.queue else []


def start(work: Callable[[], object]) -> threading.Thread:
    """Do it in a thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def together(*work: Callable[[], object]) -> None:
    """Do all of it at once, to its end."""
    threads = [start(job) for job in work]
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def remove(ask: Ask, mutex: Mutex) -> None:
    """Remove a lock from its holder as the unlocker does."""
    record = replace(removal(mutex.facts.record), why="No heartbeat from it.")
    ask(Remove(record, None))


class TestGetting:
    def test_a_lock_is_held_from_acquire_to_release(self, make: Make, subject: Subject) -> None:
        one, other = make(reason="why ✓", expected_runtime=60), make()
        assert not one.locked()
        assert one.acquire()
        assert (one.locked(), one.facts.healthy) == (True, True)
        seen = other.holder()
        assert seen is not None
        assert seen.subkeys() == one.facts.record.subkeys()
        assert (seen.uuid, seen.reason) == (one.facts.uuid, "why ✓")
        assert seen.fencing_token == one.facts.record.fencing_token > 0
        assert seen.alert_at == pytest.approx(time.time() + 60, abs=30)
        assert (seen.identity, seen.process) == (None, None)
        assert line(subject, other) == []
        one.release()
        assert (one.locked(), one.facts.healthy) == (False, False)
        assert other.holder() is None

    @pytest.mark.any_store
    @pytest.mark.parametrize(
        ("how", "lasts"),
        [
            ({}, 900),
            ({"expected_runtime": 900}, 2700),
            ({"expected_runtime": 900, "auto_unlock_after": 1000}, 1000),
            ({"expected_runtime": 900, "auto_unlock_after": None}, None),
        ],
    )
    def test_auto_unlock_after_is_written(
        self, make: Make, how: dict[str, float | None], lasts: float | None
    ) -> None:
        with make(**how) as held:
            record = held.facts.record
            assert record.auto_unlock_after == lasts
            if lasts is None:
                held.alive(force=True)
                seen = held.holder()
                assert seen is not None
                assert record.auto_unlock_at is seen.auto_unlock_at is None
            else:
                assert record.auto_unlock_at - record.alive_at == pytest.approx(lasts)

    @pytest.mark.any_store
    def test_with_holds_the_lock_during_its_block(self, make: Make) -> None:
        one, error = make(), ValueError("mine")

        def fail() -> None:
            with one:
                assert one.locked()
                raise error

        with pytest.raises(ValueError, match="mine") as caught:
            fail()
        assert caught.value is error
        assert one.holder() is None

    @pytest.mark.any_store
    def test_with_raises_where_acquire_returns_false(self, make: Make) -> None:
        """`LockTimeout` says which lock, how long, held by whom; and it survives pickling."""
        with make(reason="first") as held:
            with pytest.raises(LockTimeout) as caught, make(timeout=0.1):
                pytest.fail("another client has the lock")
            error = pickle.loads(pickle.dumps(caught.value))
            assert isinstance(error, LockTimeout)
            assert isinstance(error, TimeoutError)
            assert error.name == "x"
            assert error.holder.subkeys() == held.facts.record.subkeys()
            assert "The lock 'x' could not be acquired within 0.1 s." in str(error)
            assert f"held by {held.facts.record.describe()}" in str(error)
            assert "for 'first', since 2" in str(error)

    @pytest.mark.any_store
    def test_a_decorator_holds_the_lock_during_each_call(self, make: Make) -> None:
        one = make()

        @one
        def work(number: int, *, factor: int) -> int:
            """Doc."""
            assert one.locked()
            return number * factor

        assert (work(3, factor=4), work(1, factor=2)) == (12, 2)
        assert (work.__name__, work.__doc__) == ("work", "Doc.")
        assert not one.locked()

    @pytest.mark.any_store
    def test_a_job_runs_or_is_skipped(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        """It never waits, whatever the mutex says; and the log says which it was, and why."""
        caplog.set_level(logging.INFO, "lockclient")
        one = make(timeout=60)

        @one.skip_if_held
        def work(number: int, *, factor: int) -> int:
            """Doc."""
            assert one.locked()
            return number * factor

        assert (work(3, factor=4), work.__name__, work.__doc__) == (12, "work", "Doc.")
        with make(reason="the other") as held:
            assert work(3, factor=4) is None
            describes = held.facts.record.describe()
        assert make().holder() is None
        runs, skips = (text for text in caplog.messages if "work" in text)
        assert runs.startswith("Running ")
        assert runs.endswith("work with the lock 'x'.")
        assert skips.startswith("Skipping ")
        assert f"The lock 'x' is not free. It is held by {describes}" in skips

    @pytest.mark.any_store
    def test_an_exception_of_a_job_is_not_a_skip(self, make: Make) -> None:
        error = LockTimeout("mine")

        @make().skip_if_held
        def work() -> None:
            raise error

        with pytest.raises(LockTimeout) as caught:
            work()
        assert caught.value is error
        assert make().holder() is None

    @pytest.mark.parametrize(
        "how", [{"blocking": False}, {"timeout": 0}, {"timeout": 0.1}, {"blocking": True}]
    )
    def test_a_failed_acquire_leaves_nothing(
        self, make: Make, subject: Subject, how: dict[str, float]
    ) -> None:
        with make() as held:
            began = time.monotonic()
            assert make(timeout=0.1).acquire(**how) is None  # type: ignore[arg-type]
            assert time.monotonic() - began < 20
            assert line(subject, held) == []
            seen = held.holder()
            assert seen is not None
            assert seen.uuid == held.facts.uuid
        assert make().acquire(blocking=False)

    @pytest.mark.needs("queue", "fencing")
    def test_waiters_get_the_lock_in_order(self, make: Make) -> None:
        first, got = make(), list[tuple[int, int]]()
        first.acquire()
        threads = []
        for number in range(4):

            def wait(number: int = number) -> None:
                with make() as mine:
                    got.append((number, mine.facts.fencing_token))

            threads.append(start(wait))
            wait_until(lambda: len(first.waiters()) == number + 1, what="the ticket")  # noqa: B023
        assert got == []
        ticket = first.waiters()[0]
        assert ticket.hostname == first.facts.record.hostname
        assert ticket.since == pytest.approx(time.time(), abs=PATIENCE)
        token = first.facts.fencing_token
        first.release()
        for thread in threads:
            thread.join(PATIENCE)
        assert [number for number, _ in got] == [0, 1, 2, 3]
        tokens = [token, *(later for _, later in got)]
        assert tokens == sorted(set(tokens))

    @pytest.mark.any_store
    def test_users_of_one_object_contend(self, make: Make) -> None:
        one, inside, most = make(), [0], [0]

        def work() -> None:
            for _ in range(3):
                with one:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1

        together(*[work] * 4)
        assert most == [1]
        assert one.holder() is None

    def test_each_waiter_gets_the_lock_one_at_a_time(self, make: Make) -> None:
        first, got, inside = make(), list[int](), [0]
        first.acquire()

        def wait(number: int) -> None:
            with make():
                inside[0] += 1
                assert inside == [1]
                got.append(number)
                inside[0] -= 1

        threads = [start(functools.partial(wait, number)) for number in range(3)]
        first.release()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(got) == [0, 1, 2]

    @pytest.mark.needs("queue", "lose_tickets")
    def test_a_waiter_that_lost_its_ticket_queues_again(self, make: Make, subject: Subject) -> None:
        first, second = make(), make()
        first.acquire()

        def wait() -> None:
            with second:
                assert second.locked()

        thread = start(wait)
        wait_until(first.waiters, what="the ticket")
        assert subject.lose_tickets is not None
        subject.lose_tickets()
        assert first.waiters() == []
        first.release()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_a_crashed_holder_of_the_same_identity_is_succeeded(self, make: Make, ask: Ask) -> None:
        """At once; any other identity has to wait."""
        token = take(ask, holder("x", identity="worker-7")).token
        assert not make(identity="worker-8").acquire(blocking=False)
        with make(identity="worker-7", timeout=0.0) as heir:
            assert heir.facts.record.fencing_token != token
            assert heir.facts.record.identity == "worker-7"
        assert heir.holder() is None

    @pytest.mark.needs("fencing")
    def test_its_token_is_higher_than_all_before(self, make: Make, ask: Ask) -> None:
        token = take(ask, holder("x", identity="worker-7")).token
        for _ in range(2):
            with make(identity="worker-7", timeout=0.0) as heir:
                assert heir.facts.fencing_token > token
                token = heir.facts.fencing_token

    @pytest.mark.any_store
    def test_a_lock_of_a_newer_format_is_not_reclaimed(
        self, make: Make, ask: Ask, caplog: pytest.LogCaptureFixture
    ) -> None:
        take(ask, mine := holder("x", identity="worker-7", format=2))
        heir = make(identity="worker-7")
        assert not heir.acquire(blocking=False)
        assert not heir.acquire(timeout=0.1)
        assert "its format 2 is newer than the one known here" in caplog.text
        seen = heir.holder()
        assert seen is not None
        assert seen.uuid == mine.uuid


class TestReleasing:
    @pytest.mark.any_store
    def test_a_held_lock_is_released_once_by_any_thread(self, make: Make) -> None:
        one = make()
        one.acquire()
        together(one.release_held)
        assert not one.locked()
        assert one.holder() is None
        with pytest.raises(LockNotHeld, match="'x' is not held by this object: release"):
            one.release()

    @pytest.mark.any_store
    def test_one_of_many_concurrent_releases_succeeds(self, make: Make) -> None:
        one, told_off = make(), list[LockNotHeld]()

        def release() -> None:
            try:
                one.release_held()
            except LockNotHeld as error:
                told_off.append(error)

        one.acquire()
        together(*[release] * 5)
        assert len(told_off) == 4

    def test_properties_of_a_lock_not_held_raise(self, make: Make, subject: Subject) -> None:
        one, can = make(), subject.store.can
        some = {"fencing_token": can.fencing, "uuid": True, "record": True, "guard": can.guard}
        for what in (fact for fact, known in some.items() if known):
            with pytest.raises(LockNotHeld, match=rf"'x' is not held by this object: {what}"):
                getattr(one.facts, what)
        for call in (one.alive, one.facts.check_health):
            with pytest.raises(LockNotHeld, match="'x' is not held"):
                call()


@pytest.mark.any_store
class TestArguments:
    @pytest.mark.parametrize(
        ("how", "error"),
        [
            ({"blocking": False, "timeout": 1}, ValueError),
            ({"timeout": -0.5}, ValueError),
            ({"timeout": math.nan}, ValueError),
            ({"timeout": -math.inf}, ValueError),
            ({"timeout": math.inf}, OverflowError),
            ({"timeout": 1e20}, OverflowError),
            ({"timeout": "soon"}, ValueError),
        ],
    )
    def test_bad_ones_of_acquire(
        self, make: Make, how: dict[str, object], error: type[Exception]
    ) -> None:
        """They are refused as by `threading.Lock`."""
        with pytest.raises(error):
            make().acquire(**how)  # type: ignore[arg-type]

    def test_the_repr_of_a_mutex(self, make: Make) -> None:
        one = make()
        shown = r"<{} lockclient\.\w+\.AsyncClusterMutex object 'x' at 0x\w+>"
        if isinstance(one, InThreads):
            shown = r"<{} tests\.contract\.drivers\.InThreads object 'x' at 0x\w+>"
        assert re.fullmatch(shown.format("unlocked"), repr(one.facts))
        with one:
            assert re.fullmatch(shown.format("locked"), repr(one.facts))


def another_stamp(record: Holder) -> None:
    """Wait until a push has others: they are whole milliseconds, and a push may take less."""
    wait_until(lambda: time.time() > (record.alive_at or 0) + 0.001, what="another millisecond")


class TestHolding:
    def test_a_push_moves_the_stamps(self, make: Make) -> None:
        """With `force` always; what the holder knows is what stands in the store."""
        with make(expected_runtime=60, auto_unlock_after=90) as held:
            first = held.facts.record
            held.alive()  # just pushed: there is nothing to do
            assert held.facts.record == first
            another_stamp(first)
            held.alive(force=True)
            second = held.holder()
            assert second is not None
            assert second.subkeys() == held.facts.record.subkeys()
            for stamp in ("alive_at", "alert_at", "auto_unlock_at"):
                assert getattr(second, stamp) > getattr(first, stamp)
            assert second.locked_at == pytest.approx(first.locked_at, abs=0.001)
            assert second.auto_unlock_at == pytest.approx((second.alert_at or 0) + 30, abs=0.002)
            assert second.undecided() == ""

    @pytest.mark.needs("write")
    @pytest.mark.parametrize("value", [b"9999999999.000", b"1.000", "\U0001f512".encode(), None])
    def test_another_hand_s_stamp_is_pushed_over(
        self, make: Make, subject: Subject, value: bytes | None
    ) -> None:
        """By the next push, and by the one after it: what a hand has written silences nobody."""
        with make(expected_runtime=60, auto_unlock_after=90) as held:
            assert subject.write is not None
            subject.write("x", "alert_at", value)
            before = held.facts.record
            for _ in range(2):
                another_stamp(before)
                held.alive(force=True)
                seen, mine = held.holder(), held.facts.record
                assert seen is not None
                assert seen.subkeys() == mine.subkeys()
                assert seen.undecided() == ""
                assert (mine.alert_at, mine.auto_unlock_at) > (
                    before.alert_at,
                    before.auto_unlock_at,
                )
                before = mine

    def test_keepalive_pushes_in_the_background(self, make: Make) -> None:
        """Nobody calls `alive()`, and the stamps move."""
        with make(expected_runtime=0.4, auto_unlock_after=30, keepalive=True) as held:
            first = held.facts.record.alive_at
            wait_until(lambda: held.facts.record.alive_at > first + 0.1, what="several pushes")
            assert held.facts.healthy

    @pytest.mark.needs("guard")
    def test_the_guard_names_the_holder(self, make: Make, subject: Subject) -> None:
        """It is the store's own comparison for this acquisition."""
        with make() as held:
            assert held.facts.guard == subject.store.guard("x", held.facts.uuid)
            assert held.facts.guard.value == held.facts.uuid.encode()

    def test_a_removal_is_reported_without_a_call(self, make: Make, ask: Ask) -> None:
        told: list[LockLost] = []
        one = make(on_lost=told.append)
        one.acquire()
        remove(ask, one)
        wait_until(lambda: told, what="on_lost")
        assert not one.facts.healthy
        for call in (one.facts.check_health, one.alive, lambda: one.alive(force=True)):
            with pytest.raises(LockLost, match="No heartbeat from it"):
                call()
        with pytest.raises(LockLost, match="was removed from this holder") as caught:
            one.release()
        assert caught.value.removal is not None
        assert caught.value.removal.removed_by == "unlocker-1"
        assert len(told) == 1
        assert not one.locked()

    def test_a_push_or_release_after_a_removal_raises_at_once(self, make: Make, ask: Ask) -> None:
        one, next_one = make(), make()
        one.acquire()
        remove(ask, one)
        with pytest.raises(LockLost):
            one.alive(force=True)
        assert next_one.acquire(blocking=False)
        with pytest.raises(LockLost):
            one.release()
        next_one.facts.check_health()
        next_one.release()

    def test_a_passed_deadline_is_a_loss(self, make: Make) -> None:
        told: list[LockLost] = []
        one = make(expected_runtime=0.2, auto_unlock_after=0.4, on_lost=told.append)
        one.acquire()
        wait_until(lambda: told, what="on_lost")
        assert not one.facts.healthy
        with pytest.raises(LockLost, match=r"confirmed no heartbeat of it for 0\.4 s"):
            one.facts.check_health()
        with pytest.raises(LockLost, match="counts as lost"):
            one.release()
        wait_until(lambda: one.holder() is None, what="the end of it")
        assert len(told) == 1

    @pytest.mark.any_store
    def test_a_loss_keeps_the_exception_of_the_block_as_its_cause(
        self, make: Make, ask: Ask
    ) -> None:
        error = ValueError("mine")

        def work(fail: Callable[[Mutex], None]) -> None:
            with make() as held:
                remove(ask, held)
                fail(held)

        def fail(_: Mutex) -> None:
            raise error

        with pytest.raises(LockLost) as caught:
            work(fail)
        assert caught.value.__cause__ is error
        with pytest.raises(LockLost) as caught:
            work(lambda held: held.alive(force=True))
        assert caught.value.__cause__ is None
