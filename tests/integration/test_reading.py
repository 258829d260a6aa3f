"""Reads of stores with many foreign keys: bounded by bytes, and in what is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import etcd3
import pytest

from lockclient import ClusterMutex, Removal, Settings, StoreUnavailable, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK
from lockclient.overview.live_table import Table
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import paging
from lockclient.stores.etcd.wire.rpc_methods import RANGE
from lockclient.stores.service_store import ServiceStore, WaitQueue
from tests.support.following import following
from tests.support.locks import has, soon
from tests.support.processes import run_to_end, wait_until
from tests.support.relay import Relay

MB = 1_000_000


Put = Callable[[Mapping[str, bytes]], None]


@pytest.fixture
def put(etcd: Etcd, root: str) -> Iterator[Put]:
    """Write keys below the root, as any client may."""
    with etcd3.client(port=etcd.port) as client:

        def write(values: Mapping[str, bytes]) -> None:
            for key, value in values.items():
                client.put(f"{root}/{key}", value)

        yield write


def put_record(put: Put, name: str, size: int, at: float) -> None:
    """Write the record of a removal with a backtrace of so many characters."""
    holder = Holder(name, uuid4().hex, "h", alert_at=at, locked_at=at, backtrace="x" * size)
    removal = Removal(holder, at, "u", AUTO_UNLOCK, "why")
    put({f"removed/{name}/{holder.uuid}": removal.value().encode()})


class Reader:
    """A store behind a relay that counts what is asked and answered."""

    def __init__(self, etcd: Etcd, root: str, exits: ExitStack) -> None:
        self.bytes = 0
        relay = exits.enter_context(Relay(etcd.endpoint))
        relay.change = self._counted
        settings = Settings(endpoints=(relay.endpoint,), root=root)
        self.store = exits.enter_context(closing(open_store(settings)))

    def _counted(self, data: bytes) -> bytes:
        self.bytes += len(data)
        return data


@pytest.fixture
def reader(etcd: Etcd, root: str) -> Iterator[Reader]:
    with ExitStack() as exits:
        yield Reader(etcd, root, exits)


def test_foreign_values_are_read_by_bytes(put: Put, reader: Reader) -> None:
    for number in range(20):
        put({f"locks/x/blob-{number:02}": b"x" * MB, f"locks/x/v-{number:02}": b""})
        put({f"locks/x/zz-{number:02}": b"x" * MB})
    store = reader.store
    with ClusterMutex("x", store=store) as held:
        table = Table(store)
        table.read(soon())
        (row,) = table.rows().values()
        assert row.holder.uuid == held.uuid
        assert not row.holder.broken()
        # An unlocker asks for the one lock before each removal.
        assert has(store, "x") == held.uuid
    assert reader.bytes < 12 * MB


def test_a_queue_is_counted_and_its_first_tickets_are_read(put: Put, reader: Reader) -> None:
    store = reader.store
    names = [f"{number * 7 % 10}-{number:03}" for number in range(300)]
    for name in names:
        put({f"queue/a/{name}": b'{"hostname": "h"}'})
    line = store.wait_queue("a", 25, soon())
    assert line.waiting == 300
    assert [ticket.uuid for ticket in line.first] == names[:25]
    assert {ticket.hostname for ticket in line.first} == {"h"}
    for number in range(5):
        put({f"queue/a/large-{number}": b"x" * MB})
    assert store.wait_queue("a", 25, soon()) == WaitQueue(305, line.first)
    assert store.wait_queue("b", 25, soon()) == WaitQueue(0)
    table = Table(store)
    table.read(soon())
    assert table.waiters() == {"a": 305}
    assert reader.bytes < MB


def test_tickets_are_read_up_to_a_number_and_a_size(put: Put, reader: Reader) -> None:
    store = reader.store
    for number in range(30):
        value = b'{"hostname": "h", "actor": "A", "reason": "%s"}' % (b"x" * 5000)
        put({f"queue/b{number % 3}/{number:02}": value})
    found = store.tickets(1000, soon()).found
    assert sorted((ticket.name, ticket.uuid) for ticket in found) == sorted(
        (f"b{number % 3}", f"{number:02}") for number in range(30)
    )
    cut = "x" * 199 + "…"
    assert {(ticket.hostname, ticket.actor, ticket.reason) for ticket in found} == {("h", "A", cut)}
    assert len(store.tickets(7, soon()).found) == 7
    for number in range(40):
        put({f"queue/a/large-{number:02}": b"x" * MB})
    before = reader.bytes
    assert 0 < len(store.tickets(1000, soon()).found) < 70
    assert reader.bytes - before < 22 * MB


def test_the_first_of_too_many_tickets_are_not_read(
    put: Put, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockclient.stores.etcd.listing.MAX_QUEUE_KEYS", 100)
    for number in range(400):
        put({f"queue/a/{999 - number}": b"{}"})
    line = store.wait_queue("a", 10, soon())
    assert (line.waiting, line.ordered, len(line.first)) == (400, False, 10)


def test_the_newest_records_are_kept_and_all_are_counted(put: Put, store: ServiceStore) -> None:
    now = time.time()
    names = [f"{number * 7 % 10}-{number:02}" for number in range(50)]
    for name in names:
        put_record(put, name, 10, now)
    table = Table(store, removals=5)
    table.read(soon())
    assert [removal.holder.name for removal in table.removals()] == names[:-6:-1]
    assert table.recorded() == 50
    assert not any(removal.holder.backtrace for removal in table.removals())
    with following(store, removals=5) as followed:
        put_record(put, "last", 10, now)
        wait_until(lambda: followed.recorded() == 51, what="the last record")
        kept = [removal.holder.name for removal in followed.removals()]
        assert kept == ["last", *names[:-5:-1]]


_READER = """
import resource, sys
from lockclient import Settings, open_store
from lockclient.overview.live_table import Table
from lockclient.model.clocks import Deadline

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

store = open_store(Settings.load(sys.argv[1]))
store.names("", 1, Deadline.after(60))
before = peak()
table = Table(store, removals=400, on_removal=lambda *_: None)
table.read(Deadline.after(300))
print(len(table.removals()), table.recorded(), peak() - before)
store.close()
"""


def test_a_store_full_of_records_is_not_as_much_memory_here(settings: Settings, put: Put) -> None:
    """Each page of them goes before the next is read; of each record its backtrace goes."""
    for number in range(600):
        put_record(put, f"job-{number:04}", 60_000, time.time())
    done = run_to_end(sys.executable, "-c", _READER, settings.url())
    kept, recorded, grown = map(int, done.stdout.split())
    assert (kept, recorded) == (400, 600)
    assert grown < 18_000, f"{grown} KiB for 36 MB of records"


def test_a_slow_page_is_requested_again_with_fewer_keys(
    put: Put, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(0, 200, 50):
        put({f"locks/{name:03}/uuid": b"u" for name in range(number, number + 50)})
    asked: list[int] = []
    call = store._channels.call

    def slow(method: Any, request: Any, *words: Any, **how: Any) -> Any:
        if method is RANGE:
            asked.append(request.limit)
            if request.limit > paging.SAFE_KEYS and len(asked) < 4:
                raise StoreUnavailable("no answer")
        return call(method, request, *words, **how)

    monkeypatch.setattr(store._channels, "call", slow)
    table = Table(store)
    table.read(soon())
    assert len(table.rows()) == 200
    assert asked[:3] == [paging.FIRST_KEYS, paging.SAFE_KEYS, 4 * paging.SAFE_KEYS]
