"""A store's answers about itself, its waiters and its locks; and its end."""

from __future__ import annotations

import threading
from dataclasses import replace
from time import monotonic

import pytest

from lockclient import ClusterMutex
from lockclient.errors import StoreClosed, StoreError
from lockclient.stores.request_types import Take
from lockclient.stores.service_store import ServiceStore, WaitQueue
from tests.contract.asking import Ask, holder, queue
from tests.contract.following import Follower, remove, soon, take, unlock
from tests.contract.subject import Subject
from tests.support.processes import wait_until

pytestmark = pytest.mark.needs("services")


class TestWaiting:
    @pytest.mark.needs("queue")
    def test_waiters_are_counted_and_the_first_are_named(
        self, ask: Ask, reader: ServiceStore
    ) -> None:
        uuids: dict[str, list[str]] = {}
        for name in ("a", "b"):
            ask(Take(holder(name)))
            waiting = [holder(name, hostname="h" * 500) for _ in range(4)]
            for waiter in waiting:
                queue(ask, waiter)
            uuids[name] = [waiter.uuid or "" for waiter in waiting]
        line = reader.wait_queue("a", 3, soon())
        assert line.waiting == 4
        assert [ticket.uuid for ticket in line.first] == uuids["a"][:3]
        found = reader.tickets(100, soon()).found
        assert {(ticket.name, ticket.uuid) for ticket in found} == {
            (name, uuid) for name, those in uuids.items() for uuid in those
        }
        assert all(len(ticket.hostname or "") <= 200 for ticket in found)
        assert len(reader.tickets(5, soon()).found) == 5

    def test_an_empty_queue_has_no_waiters(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        take(writer, "a")
        assert reader.wait_queue("a", 3, soon()) == WaitQueue(0)
        assert list(reader.tickets(100, soon()).found) == []

    def test_names_lists_held_locks(self, reader: ServiceStore, writer: ServiceStore) -> None:
        for name in ("deploy/b", "deploy/a", "deploy/c", "backup", "ü"):
            take(writer, name)
        unlock(writer, gone := take(writer, "deploy/0"))
        remove(writer, replace(take(writer, "deploy/1"), name="deploy/1"))
        assert gone.name not in reader.names("", 100, soon())
        assert reader.names("", 100, soon()) == sorted(
            ["backup", "deploy/a", "deploy/b", "deploy/c", "ü"]
        )
        assert reader.names("deploy/", 2, soon()) == ["deploy/a", "deploy/b"]
        assert reader.names("nothing", 2, soon()) == []

    def test_the_first_names_are_not_the_first_keys(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        """Keys are percent-encoded, which puts `ä` before `b`, and in etcd `b-` before `b`."""
        for name in ("ä", "b", "b-"):
            take(writer, name)
        assert [reader.names("", limit, soon()) for limit in (1, 2)] == [["b"], ["b", "b-"]]


class TestOwnFacts:
    def test_a_healthy_store_says_so(self, reader: ServiceStore, writer: ServiceStore) -> None:
        follower = Follower(reader)
        take(writer, "a")
        wait_until(lambda: follower.holds("a"), what="the lock")
        assert reader.connected()
        assert reader.watch_restarts() == 0
        endpoints = reader.endpoints()
        offsets = reader.clock_offsets(5.0)
        assert all(abs(offset) < 5.0 for offset in offsets)
        assert 0 < len(offsets) <= len(endpoints)
        assert not [why for why in reader.votes().values() if why]
        assert set(reader.votes()) <= {*endpoints}
        assert not reader.warnings_for_display()


class TestClose:
    def test_close_ends_waiters(self, subject: Subject, writer: ServiceStore) -> None:
        mine, store = take(writer, "a"), subject.store
        follower = Follower(store)
        told: list[BaseException] = []

        def wait() -> None:
            try:
                ClusterMutex("a", store=store).acquire()
            except StoreError as error:
                told.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        if store.can.queue:
            wait_until(lambda: writer.wait_queue("a", 1, soon()).waiting, what="the waiter")
        began = monotonic()
        store.close()
        assert monotonic() - began < 5.0
        thread.join(60)
        assert monotonic() - began < 10.0, "it noticed by itself"
        assert [type(error) for error in told] == [StoreClosed]
        with pytest.raises(StoreClosed):
            store.ask(Take(holder("b")), soon())
        store.close()
        count, other = len(follower.batches), Follower(writer)
        wait_until(lambda: writer.wait_queue("a", 1, soon()).waiting == 0, what="its ticket to go")
        assert other.holds("a")
        unlock(writer, mine)
        wait_until(lambda: not other.holds("a"), what="the release")
        assert len(follower.batches) == count
