"""Log records of the library name their lock; those of the program do with a filter."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
import structlog

from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    HeldLockFilter,
    held_lock_fields,
)
from tests.support.locks import lose
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

Fields = Callable[[logging.LogRecord], tuple[object, ...]]
HOST = socket.gethostname()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def fields(record: logging.LogRecord) -> tuple[object, ...]:
    return tuple(vars(record)[name] for name in ("lock", "uuid", "hostname"))


def test_the_library_s_own(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    held = lose(store, ClusterMutex("x", store=store))
    wait_until(lambda: caplog.records, what="the loss in the log")
    assert {fields(record) for record in caplog.records} == {("x", held.uuid, HOST)}


def test_the_program_s_own_inside_a_lock(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("app")
    caplog.handler.addFilter(HeldLockFilter())
    log.warning("before")
    with ClusterMutex("x", store=store) as outer:
        log.warning("inside")
        with ClusterMutex("y", store=store) as inner:
            log.warning("inside both")
        log.warning("inside again")
    log.warning("after")
    assert [fields(record) for record in caplog.records if record.name == "app"] == [
        (None, None, HOST),
        ("x", outer.uuid, HOST),
        ("y", inner.uuid, HOST),
        ("x", outer.uuid, HOST),
        (None, None, HOST),
    ]


def test_tasks_and_their_children(store: MemoryStore) -> None:
    async def main() -> None:
        async with AsyncClusterMutex("x", store=store) as held:
            named = held_lock_fields()
            assert (named["lock"], named["uuid"]) == ("x", held.uuid)
            assert await asyncio.to_thread(held_lock_fields) == named
        assert held_lock_fields()["lock"] is None

    asyncio.run(main())


def test_structlog(store: MemoryStore) -> None:
    """The example of docs/programs.md, Instruments."""

    def name_lock(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        return {**held_lock_fields(), **event}

    sink = structlog.testing.CapturingLogger()
    log = structlog.wrap_logger(sink, processors=[name_lock])
    with ClusterMutex("x", store=store) as held:
        log.info("working")
    (call,) = sink.calls
    assert (call.kwargs["lock"], call.kwargs["uuid"]) == ("x", held.uuid)
