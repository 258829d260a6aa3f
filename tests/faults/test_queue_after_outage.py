"""A queue after an outage that is longer than the leases of its tickets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from threading import Thread

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, Settings, StoreClosed, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import frozen
from tests.support.processes import Figure, wait_until

TICKET_S = 10.0
"""Seconds for which a ticket's lease lives without a renewal."""
OUTAGE_S = TICKET_S + 2
CONTACT_S = 2.0
"""Seconds from contact within which every waiter has a ticket."""
LATE_S = 3.0
"""Seconds by which a busy machine may be late, the start of an etcd included."""
WAITERS = 10
"""Half of them are threads, half tasks of one event loop."""


@contextmanager
def stopped(server: Etcd) -> Iterator[None]:
    server.stop()
    yield
    server.start()


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def tickets(store: ServiceStore) -> dict[str, int]:
    """Return the reasons of the waiters in the queue, in order, with their tickets' revisions."""
    queue = store.wait_queue("x", 1000, Deadline.after(30)).first
    return {ticket.reason or "": ticket.revision for ticket in queue}


@pytest.mark.promise(number=5)
@pytest.mark.parametrize(
    ("outage", "keeps_tickets"),
    [pytest.param(stopped, True, id="restarted"), pytest.param(frozen, False, id="frozen")],
)
def test_the_queue_keeps_its_order(
    outage: Callable[[Etcd], AbstractContextManager[None]],
    keeps_tickets: bool,
    own_etcd: Etcd,
    figure: Figure,
) -> None:
    """An etcd that starts gives each lease its full time; one that was frozen ends it at once.

    Then waiters with the same lease queue again in their old order.
    """
    settings = Settings((own_etcd.endpoint,))
    with (
        closing(open_store(settings)) as reading,
        closing(open_store(settings)) as waiting,
        ClusterMutex("x", store=reading, expected_runtime="1h"),
        event_loop() as loop,
    ):
        tasks = []
        for number in range(WAITERS):
            if number % 2:
                mutex = AsyncClusterMutex("x", store=waiting, reason=f"task {number}")
                tasks.append(asyncio.run_coroutine_threadsafe(mutex.acquire(), loop))
            else:
                thread = ClusterMutex("x", store=waiting, reason=f"thread {number}")
                Thread(target=_wait, args=(thread,), daemon=True).start()
            wait_until(lambda: len(tickets(reading)) == number + 1)  # noqa: B023
        before = tickets(reading)
        with outage(own_etcd):
            time.sleep(OUTAGE_S)
        contact = time.monotonic()
        # A frozen etcd serves for some milliseconds before it ends leases.
        wait_until(
            lambda: (
                (after := tickets(reading)).keys() == before.keys()
                and (keeps_tickets or after.items().isdisjoint(before.items()))
            ),
            what="all tickets",
        )
        found_after = time.monotonic() - contact
        figure(f"every waiter had a ticket {found_after:.1f} s after contact")
        assert found_after < CONTACT_S + LATE_S
        after = tickets(reading)
        if keeps_tickets:
            assert after == before
        else:
            for kind in ("thread", "task"):
                assert [it for it in after if kind in it] == [it for it in before if kind in it]
        time.sleep(TICKET_S + LATE_S)  # a lease that is not renewed would end meanwhile
        assert tickets(reading) == after
        waiting.close()
        for task in tasks:
            with pytest.raises(StoreClosed):
                task.result(30)


def _wait(mutex: ClusterMutex) -> None:
    with suppress(StoreClosed):
        mutex.acquire()
