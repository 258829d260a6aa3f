"""The table of locks in a bucket: changes are reported, at one listing a poll."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lockclient.model.clocks import Deadline, Runtime
from lockclient.model.holder import MAX_UUID_BYTES
from lockclient.stores.gcs import listing
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.service_store import ServiceStore
from tests.contract.following import Watcher, remove, take
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import Answer, Asked, BucketServer
from tests.support.bucket_store import settings_of, store_of
from tests.support.locks import soon
from tests.support.processes import wait_until
from tests.support.records import taker

SOON = Runtime(100.0, 200.0)


@pytest.fixture
def store(server: BucketServer) -> Iterator[ServiceStore]:
    opened = store_of(settings_of(server), poll=0.05)
    yield opened
    opened.close()


@pytest.fixture
def writer(server: BucketServer) -> Iterator[ServiceStore]:
    """Another client, which tells the first one nothing."""
    opened = store_of(settings_of(server))
    yield opened
    opened.close()


@pytest.fixture
def watcher(store: ServiceStore) -> Iterator[Watcher]:
    made = Watcher(store)
    yield made
    made.table.stop()


def names(server: BucketServer) -> ObjectNames:
    place = settings_of(server).location
    return ObjectNames(getattr(place, "root", ""))


def test_a_poll_without_changes_is_one_request(
    watcher: Watcher, store: ServiceStore, writer: ServiceStore, server: BucketServer
) -> None:
    remove(writer, take(writer, "gone"))
    take(writer, "a")
    wait_until(lambda: watcher.uuid("a") and watcher.removals)
    before, since, revision = len(server.asked), watcher.table.known_at, watcher.table.revision
    wait_until(lambda: len(server.asked) >= before + 10)
    wait_until(lambda: watcher.table.known_at > since)
    assert watcher.table.revision > revision
    assert {asked.query["prefix"] for asked in server.asked[before:]} == {"of/the/test/locks"}
    assert store.connected()


def test_removals_found_at_the_start_are_ordered_by_time(
    store: ServiceStore, writer: ServiceStore, server: BucketServer
) -> None:
    for name, server.ahead in (("c", -30), ("a", -20), ("b", -10)):
        remove(writer, take(writer, name))
    server.ahead = 0
    watcher = Watcher(store)
    assert [found for _, found in watcher.removals] == [True] * 3
    assert [removal.holder.name for removal in watcher.table.removals()] == ["b", "a", "c"]
    watcher.table.stop()


def decide(server: BucketServer, name: str) -> None:
    """Decide the removal of a lock, and die."""
    decision = json.dumps({"removed_at": 1.0, "removed_by": "dead", "how": "auto-unlock"})
    where = names(server).lock(name)
    server.bucket.patch(where, {"metadata": {"removing": decision}}, Conditions())


def test_a_half_done_removal_is_completed(
    server: BucketServer, watcher: Watcher, store: ServiceStore, writer: ServiceStore
) -> None:
    holder = take(writer, "a")
    decide(server, "a")
    wait_until(lambda: watcher.table.known_at and watcher.uuid("a") is None)
    assert watcher.removals == []  # who only looks writes nothing
    store.announce("unlocker-2", "{}", 10, soon())
    other = store_of(settings_of(server), poll=0.05)  # one that has not tried yet
    other.announce("unlocker-3", "{}", 10, soon())
    second = Watcher(other)
    ((found, _),) = wait_until(lambda: list(watcher.removals))
    assert (found.holder.uuid, found.removed_by) == (holder.uuid, "dead")
    second.table.stop()
    other.close()


def test_a_refused_half_done_removal_delays_no_other(
    server: BucketServer, writer: ServiceStore
) -> None:
    records = names(server).record("a", "")

    def refuse(asked: Asked) -> Answer | None:
        is_record = asked.query.get("name", "").startswith(records)
        return Answer(403, b"{}") if asked.method == "POST" and is_record else None

    for name in ("a", "b"):
        take(writer, name)
    store = store_of(settings_of(server), poll=0.05)
    store.announce("unlocker", "{}", 10, soon())
    watcher = Watcher(store)
    server.instead = refuse
    for name in ("a", "b"):
        decide(server, name)
    wait_until(lambda: watcher.uuid("b") is None)
    assert [removal.holder.name for removal, _ in watcher.removals] == ["b"]
    watcher.table.stop()
    store.close()


def test_an_announcement_that_is_not_renewed_expires(
    watcher: Watcher, writer: ServiceStore, server: BucketServer
) -> None:
    writer.announce("dead", '{"ttl": 60}', 60, soon())
    wait_until(lambda: "dead" in watcher.table.unlockers())
    server.ahead = 100
    wait_until(lambda: watcher.table.unlockers() == {})
    assert any("dead" in name for name in server.bucket.names())
    server.ahead = 4000
    other = store_of(settings_of(server))
    other.poll = 0.05
    other.announce("new", '{"ttl": 60}', 60, soon())
    second = Watcher(other)
    wait_until(lambda: not any("dead" in name for name in server.bucket.names()))
    second.table.stop()
    other.close()


def test_foreign_objects_do_no_harm(
    store: ServiceStore, writer: ServiceStore, server: BucketServer
) -> None:
    root = settings_of(server).url().removeprefix("gs://locks/")
    put = server.bucket.insert
    nothing = Conditions()
    for name in ("locksmith", "locks/a/b", "locks/%2f", "locks/%zz", "locks/", "removed/x", "x"):
        put(f"{root}/{name}", b"", nothing, metadata={"uuid": "1"})
    put(f"{root}/locks/odd", b"", nothing, metadata={"uuid": "u" * 5000, "about": "[" * 2000})
    put(f"{root}/locks/trace", b"", nothing, metadata={"gone": "g" * (MAX_UUID_BYTES + 1)})
    put(f"{root}/locks/late", b"", nothing, metadata={"gone": "g", "late_until": "soon"})
    put(f"{root}/locks-unlockers/x", b"", nothing, metadata={"said": "[" * 5000})
    put(f"{root}/removed/a/b", b"", nothing, metadata={"record": "{"})
    put(f"{root}/removed/a/{'b' * (MAX_UUID_BYTES + 1)}", b"", nothing)
    take(writer, "good")
    watcher = Watcher(store)
    assert set(watcher.table.rows()) == {"good", "odd"}
    row = watcher.table.row("odd")
    assert row is not None
    assert row.holder.broken()
    assert [removal.holder.uuid for removal in watcher.table.removals()] == ["b"]
    wait_until(lambda: watcher.table.unlockers() == {})  # it does not say how long it counts
    assert store.names("", 10, soon()) == ["good", "odd"]
    assert store.names("go", 10, soon()) == ["good"]
    watcher.table.stop()


def test_a_missing_right_to_list_is_reported(
    store: ServiceStore, watcher: Watcher, server: BucketServer
) -> None:
    server.denied.add("storage.objects.list")
    wait_until(lambda: "storage.objects.list" in watcher.table.trouble)
    assert not watcher.table.connected()
    server.denied.clear()
    wait_until(watcher.table.connected)
    assert store.connected()


def test_an_oversized_listing_is_refused_as_a_whole(
    store: ServiceStore,
    watcher: Watcher,
    writer: ServiceStore,
    server: BucketServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take(writer, "a")
    wait_until(lambda: watcher.uuid("a"))
    for bound, others in (("MAX_OBJECTS", 4), ("MAX_LISTING_BYTES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(listing, bound, 3)
            for number in range(others):
                where = f"{names(server).locks}of-others-{bound}-{number}"
                server.bucket.insert(where, b"", Conditions(), metadata={"x": "y"})
            said = wait_until(lambda: watcher.table.trouble)
            assert "of/the/test/locks" in said
            assert "begins with" in said
            assert watcher.uuid("a")
        wait_until(watcher.table.connected)


def test_only_part_of_the_records_is_read(
    store: ServiceStore, watcher: Watcher, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_OBJECTS", 3)
    for number in range(5):
        where = f"{names(server).removed}old-{number}/uuid"
        server.bucket.insert(where, b"{}", Conditions(), metadata={"record": "{}"})
    seen = store.load(("removed",), Deadline.after(30))
    assert sum(len(batch.changes) for batch in seen) <= 3
    assert watcher.table.connected()


def test_a_listing_of_more_than_a_page(store: ServiceStore, server: BucketServer) -> None:
    for number in range(1001):
        said = taker(f"lock-{number}", SOON).subkeys()
        server.bucket.insert(
            f"{names(server).locks}lock-{number}", b"", Conditions(), metadata=said
        )
    found = {change.name for batch in store.load(("locks",), soon()) for change in batch.changes}
    assert len(found) == 1001
    assert server.counted("GET") == 2
