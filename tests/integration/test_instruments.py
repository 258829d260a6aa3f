"""Instruments: the events of a program's locks, in their own thread; owner, labels, context."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import pytest

from lockclient import (
    AsyncClusterMutex,
    AsyncHeldLock,
    ClusterMutex,
    HeldLock,
    LockTimeout,
    Settings,
    StoreUnavailable,
    default_store,
    instruments,
    open_store,
)
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.instruments import (
    Acquired,
    Event,
    GaveUp,
    Lost,
    Released,
    Requested,
)
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import frozen
from tests.support.locks import lose
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

AnyHeld = AsyncHeldLock | HeldLock


class Recorder(list[Event]):
    """An instrument that keeps its events, and counts those that were dropped."""

    __call__ = list.append
    missed = 0

    def dropped(self, count: int) -> None:
        self.missed += count

    def of(self, lock: str) -> list[Event]:
        """Return the events of a lock but its requests."""
        instruments.flush(30)
        return [it for it in self if it.lock == lock and not isinstance(it, Requested)]

    def kinds(self, lock: str) -> list[type[Event]]:
        return [type(event) for event in self.of(lock)]

    def requests(self) -> list[Requested]:
        return [event for event in self if isinstance(event, Requested)]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Nothing that a test says of all locks is said of those of the next one."""
    yield
    defaults = default_store.defaults
    defaults.owner, defaults.labels, defaults.observer = None, {}, None


@pytest.fixture
def recorder() -> Recorder:
    told = Recorder()
    ClusterMutex.setup(instruments=[told])
    return told


def in_thread(store: ServiceStore) -> AnyHeld:
    with ClusterMutex("x", store=store) as held:
        held.alive(force=True)
    return held


def in_task(store: ServiceStore) -> AnyHeld:
    async def main() -> AsyncHeldLock:
        async with AsyncClusterMutex("x", store=store) as held:
            await held.alive(force=True)
        return held

    return asyncio.run(main())


@pytest.mark.parametrize("cycle", [in_thread, in_task])
def test_a_cycle(
    recorder: Recorder,
    store: ServiceStore,
    cycle: Callable[[ServiceStore], AnyHeld],
) -> None:
    held = cycle(store)
    acquired, released = recorder.of("x")
    assert isinstance(acquired, Acquired)
    assert acquired.uuid == held.uuid
    assert acquired.fencing_token == held.fencing_token
    assert isinstance(released, Released)
    assert released.answered
    assert 0 < released.held_s < 60
    assert abs(released.at - time.time()) < 60
    requests = [(it.uuid, it.request, it.outcome, it.error) for it in recorder.requests()]
    assert requests[-2:] == [(held.uuid, kind, "done", None) for kind in ("push", "unlock")]


def test_a_failed_acquire_is_an_event(recorder: Recorder, store: ServiceStore) -> None:
    held = ClusterMutex("x", store=store).acquire()
    assert ClusterMutex("x", store=store).acquire(blocking=False) is None
    with pytest.raises(LockTimeout), ClusterMutex("x", store=store, timeout=0.1):
        pass
    given_up = [event for event in recorder.of("x") if isinstance(event, GaveUp)]
    assert [(event.error, event.cancelled) for event in given_up] == [(None, False)] * 2
    assert given_up[1].waited_s >= 0.1
    assert held is not None
    held.release()


def test_a_cancelled_wait(recorder: Recorder, store: ServiceStore) -> None:
    async def main() -> None:
        async with AsyncClusterMutex("x", store=store):
            other = asyncio.create_task(AsyncClusterMutex("x", store=store).acquire())
            while "take_or_queue" not in [it.request for it in recorder.requests()][1:]:
                await asyncio.sleep(0.01)
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            while GaveUp not in recorder.kinds("x"):  # by its deputy, on this loop
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 90))
    (given_up,) = [event for event in recorder.of("x") if isinstance(event, GaveUp)]
    assert given_up.cancelled


def test_a_loss_is_one_event_and_the_last(recorder: Recorder, store: ServiceStore) -> None:
    lose(store, ClusterMutex("x", store=store))
    wait_until(lambda: Lost in recorder.kinds("x"), what="the loss")
    assert recorder.kinds("x") == [Acquired, Lost]
    lost = recorder.of("x")[-1]
    assert isinstance(lost, Lost)
    assert lost.error.removal is not None


def test_events_during_an_outage(recorder: Recorder, own_etcd: Etcd, root: str) -> None:
    store = open_store(Settings(endpoints=(own_etcd.endpoint,), root=root))
    held = ClusterMutex("x", store=store, expected_runtime=2, auto_unlock_after=60).acquire()
    assert held is not None
    wait_until(lambda: time.time() > (held.record.alive_at or 0) + 0.1, what="a push to be due")
    with frozen(own_etcd):
        held.alive()
        with pytest.raises(StoreUnavailable):
            held.release(timeout=0.5)
    assert recorder.kinds("x") == [Acquired, Released]
    assert not recorder.of("x")[-1].answered  # type: ignore[attr-defined]
    unreachable = [it for it in recorder.requests() if isinstance(it.error, StoreUnavailable)]
    assert [(event.request, event.outcome) for event in unreachable] == [
        ("push", "unreachable"),
        ("unlock", "unreachable"),
    ]
    store.close()


def test_a_raising_instrument_is_logged_once(
    store: ServiceStore, caplog: pytest.LogCaptureFixture
) -> None:
    told = Recorder()

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    ClusterMutex.setup(instruments=[fail, told])
    with ClusterMutex("x", store=store):
        pass
    assert told.kinds("x") == [Acquired, Released]
    assert len([record for record in caplog.records if "failed" in record.message]) == 1


def test_a_hanging_instrument_delays_nothing_and_missed_events_are_counted(
    store: ServiceStore, caplog: pytest.LogCaptureFixture
) -> None:
    told, let_go, begun = Recorder(), threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        begun.set()
        let_go.wait(60)

    ClusterMutex.setup(instruments=[hang, told])
    mutex = ClusterMutex("x", store=store)
    for _ in range(300):  # more events than are queued
        with mutex:
            pass
    assert begun.is_set()
    let_go.set()
    instruments.flush(30)
    assert told.missed > 0
    assert told.missed + len(told) == 1200
    assert "events were dropped" in caplog.text


class TestAbout:
    def test_instruments_run_in_the_context_of_the_caller(self, store: ServiceStore) -> None:
        request: ContextVar[str] = ContextVar("request")
        kept: ContextVar[str] = ContextVar("kept")
        seen: list[tuple[str, str]] = []

        def about() -> Mapping[str, str]:
            kept.set(request.get().upper())
            return {"request_id": request.get()}

        def instrument(event: Event) -> None:
            if not isinstance(event, Requested):
                seen.append((request.get(), kept.get()))

        ClusterMutex.setup(instruments=[instrument], about=about)
        request.set("r-17")
        with ClusterMutex("x", store=store) as held:
            assert held.record.context == {"request_id": "r-17"}
            holder = held.holder()
            assert holder is not None
            assert holder.context == {"request_id": "r-17"}
        instruments.flush(30)
        assert seen == [("r-17", "R-17")] * 2
        assert kept.get("nothing") == "nothing", "nor is anything left in the caller's context"

    @pytest.mark.parametrize(
        ("about", "logged"),
        [
            (lambda: None, False),
            (lambda: 1 / 0, True),
            (lambda: 1, True),
            (lambda: {"a": 1}, True),
            (lambda: {"a b": "x"}, True),
            (lambda: {"a": "x" * 1100}, True),
            (lambda: {f"n{n}": "" for n in range(17)}, True),
        ],
    )
    def test_invalid_context_is_left_out_and_logged(
        self, about: Any, logged: bool, store: ServiceStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        ClusterMutex.setup(about=about)
        with ClusterMutex("x", store=store) as held:
            assert held.record.context is None
        assert ("failed" in caplog.text) == logged


class TestOwner:
    def test_owner_and_labels_of_a_mutex_and_of_setup(self, store: ServiceStore) -> None:
        ClusterMutex.setup(owner="team-a", labels={"env": "prod", "zone": "a"})
        with ClusterMutex("x", store=store, owner="team-b", labels={"zone": "b"}) as held:
            holder = held.holder()
        assert holder is not None
        assert (holder.owner, holder.labels) == ("team-b", {"env": "prod", "zone": "b"})
        assert "of team-b" in holder.describe()
        with ClusterMutex("x", store=store) as held:
            assert (held.record.owner, held.record.labels) == (
                "team-a",
                {"env": "prod", "zone": "a"},
            )
        assert held.record.user

    @pytest.mark.parametrize(
        "how",
        [
            {"owner": ""},
            {"owner": "x" * 256},
            {"owner": 3},
            {"labels": "env=prod"},
            {"labels": {"env": 3}},
            {"labels": {"": "x"}},
            {"labels": {"a": "é" * 600}},
            {"labels": {f"n{n}": "" for n in range(17)}},
        ],
    )
    def test_malformed_arguments_are_refused_at_once(self, how: Any) -> None:
        for call in (lambda: ClusterMutex("x", **how), lambda: ClusterMutex.setup(**how)):
            with pytest.raises(ValueError, match=next(iter(how))):
                call()

    @pytest.mark.parametrize(
        "function", [3, asyncio.sleep, type("A", (), {"__call__": asyncio.sleep})()]
    )
    def test_invalid_callables_are_refused_at_once(self, function: Any) -> None:
        how: dict[str, Any] = {"about": function, "instruments": [function]}
        for name, value in how.items():
            with pytest.raises(ValueError, match=name):
                ClusterMutex.setup(**{name: value})
        with pytest.raises(ValueError, match="on_lost"):
            ClusterMutex("x", on_lost=function)

    def test_setup_of_an_owner_keeps_the_store(self) -> None:
        store = MemoryStore()
        ClusterMutex.setup(store=store)
        ClusterMutex.setup(owner="team-a", instruments=[])
        assert default_store.swap_default(None) is store
