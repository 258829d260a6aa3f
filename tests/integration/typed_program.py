"""All public names, as a program uses them: for type checkers, by `test_typing.py`; never run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry
from typing_extensions import assert_type

import clustermutex
import lockclient
from lockclient import (
    AsyncClusterMutex,
    AsyncHeldLock,
    ClusterMutex,
    ClusterMutexError,
    Guard,
    HeldLock,
    HeldLockFilter,
    Holder,
    InvalidLockName,
    LockLost,
    LockNotHeld,
    LockTimeout,
    Removal,
    Settings,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Ticket,
    held_lock_fields,
    open_store,
)
from lockclient.instruments import (
    Acquired,
    Event,
    GaveUp,
    Instrument,
    Lost,
    Released,
    Requested,
    flush,
)
from lockclient.instruments.opentelemetry import OpenTelemetryInstrument
from lockclient.instruments.prometheus import PrometheusInstrument
from lockclient.stores import (
    AsyncMutexStore,
    Capabilities,
    Deadline,
    Kind,
    MutexStore,
    ServiceStore,
)
from lockclient.testing import MemoryLocks, MemoryStore
from lockclient.testing.plugin import EtcdLocks

assert_type(lockclient.__version__, str)
assert_type(clustermutex.ClusterMutex("x").acquire(), HeldLock | None)


def hold(mutex: ClusterMutex) -> None:
    with mutex as held:
        assert_type(held, HeldLock)
        assert_type(held.fencing_token, int)
        assert_type(held.guard, Guard)
        assert_type(held.record, Holder)
        assert_type(held.healthy, bool)
        held.alive(force=True)
    assert_type(mutex.acquire(), HeldLock | None)
    assert_type(mutex.acquire(False), HeldLock | None)
    assert_type(mutex.acquire(timeout="5m"), HeldLock | None)
    if taken := mutex.acquire(blocking=False):
        with taken as again:
            assert_type(again, HeldLock)
    assert_type(mutex.holder(), Holder | None)
    assert_type(mutex.waiters(), list[Ticket])
    assert_type(mutex.locked(), bool)


async def hold_async(mutex: AsyncClusterMutex) -> None:
    async with mutex as held:
        assert_type(held, AsyncHeldLock)
        await held.alive()
    assert_type(await mutex.acquire(), AsyncHeldLock | None)
    assert_type(await mutex.acquire(timeout=5), AsyncHeldLock | None)
    if taken := await mutex.acquire(blocking=False):
        async with taken as again:
            assert_type(again, AsyncHeldLock)
    assert_type(await mutex.holder(), Holder | None)
    assert_type(await mutex.waiters(), list[Ticket])


@ClusterMutex("x")
def each_call(number: int, *, word: str) -> float:
    return number / len(word)


@ClusterMutex("x").skip_if_held
def job(number: int, *, word: str) -> float:
    return number / len(word)


@AsyncClusterMutex("x")
async def each_call_async(number: int, *, word: str) -> float:
    return number / len(word)


@AsyncClusterMutex("x").skip_if_held
async def job_async(number: int, *, word: str) -> float:
    return number / len(word)


async def call_all() -> None:
    assert_type(each_call(1, word="a"), float)
    assert_type(job(1, word="a"), float | None)
    assert_type(await each_call_async(1, word="a"), float)
    assert_type(await job_async(1, word="a"), float | None)
    # That these are refused shows by `warn_unused_ignores`: the functions have kept what they take.
    each_call("1", word="a")  # type: ignore[arg-type]
    job(1, word=2)  # type: ignore[arg-type]
    await each_call_async(1)  # type: ignore[call-arg]
    await job_async(1, "a")  # type: ignore[call-arg]


def lose(lost: LockLost) -> None:
    if isinstance(lost.removal, Removal):
        print(lost.removal.why, lost.name, lost.uuid)


def set_up(about: Mapping[str, str]) -> Instrument:
    ClusterMutex.setup("etcd://localhost:2379/x", owner="team", labels=about, about=lambda: about)
    ClusterMutex.setup(instruments=[PrometheusInstrument(CollectorRegistry()), told])
    ClusterMutex.setup(instruments=[OpenTelemetryInstrument(NoOpTracerProvider())])
    store = open_store(Settings.load("etcd://localhost:2379/x"))
    assert_type(store, ServiceStore)
    hold(ClusterMutex("x", store=store, on_lost=lose, keepalive="2h", max_hold=60, timeout=1.5))
    logging.getLogger().addFilter(HeldLockFilter())
    assert_type(held_lock_fields(), dict[str, str | None])
    flush(1.0)
    return told


def told(event: Event) -> None:
    match event:
        case Acquired() | GaveUp() | Released():
            assert_type(event.lock, str)
        case Lost():
            assert_type(event.error, LockLost)
        case Requested():
            assert_type(event.error, Exception | None)
        case _:  # a later release's
            print(event)


def fail() -> None:
    try:
        hold(ClusterMutex("x"))
    except (LockTimeout, LockNotHeld, InvalidLockName) as error:
        assert_type(error.name, str | None)
    except (StoreUnavailable, StoreFull, StoreClosed, StoreError) as error:
        assert_type(error.unknown, bool)
    except ClusterMutexError as error:
        print(error.holder)


class Own(MemoryStore):
    can = Capabilities("theirs")


def halves(store: Own, kind: Kind) -> tuple[MutexStore, ServiceStore, AsyncMutexStore]:
    store.load((kind,), Deadline.after(1.0))
    return store, store, store


@pytest.fixture
def own(clustermutex: MemoryLocks, clustermutex_etcd: EtcdLocks) -> str:
    assert_type(clustermutex.held(), list[str])
    assert_type(clustermutex.holder("x"), Holder | None)
    with clustermutex.unavailable(), clustermutex.held_elsewhere("x") as holder:
        assert_type(holder, Holder)
    clustermutex.expire("x")
    return clustermutex_etcd.url
