"""The etcd store beyond the contract of all stores, and its failures."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from dataclasses import replace

import pytest

from lockclient import ClusterMutex, Removal, Settings, StoreError, StoreFull
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.overview.live_table import Table
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import paging
from lockclient.stores.outcomes import Done, Position, Queued
from lockclient.stores.request_types import GetPosition, Remove, TakeOrQueue
from lockclient.stores.service_store import Batch, Kind
from tests.contract.asking import NAME, holder, ticket
from tests.support.etcd_binary import Etcdctl, exhaust_space
from tests.support.etcd_store import etcd_store
from tests.support.locks import ask, held, removal_of, remove, soon, take
from tests.support.relay import Relay

KINDS: tuple[Kind, ...] = ("locks", "queue", "removed", "unlockers")


def taken(store: EtcdStore, name: str) -> ClusterMutex:
    mutex = ClusterMutex(name, store=store)
    assert mutex.acquire()
    return mutex


class TestWhatIsWritten:
    def test_a_lock_has_the_documented_keys(self, store: EtcdStore, etcdctl: Etcdctl) -> None:
        with ClusterMutex("a/b", store=store, reason="why", identity="w") as held:
            prefix = f"{store.location.root}/locks/a%2Fb/"
            found = json.loads(etcdctl("get", "--prefix", prefix, "-w", "json"))["kvs"]
            assert {kv.get("lease", 0) for kv in found} == {0}
            assert {kv["mod_revision"] for kv in found} == {held.fencing_token}
            keys = etcdctl("get", "--prefix", "--keys-only", prefix).split()
            assert set(keys) == {prefix + part for part in held.record.subkeys()}
            assert len(keys) == 5
            held.alive(force=True)
            pushed = json.loads(etcdctl("get", "--prefix", prefix, "-w", "json"))["kvs"]
            moved = {
                b64decode(now["key"]).decode().removeprefix(prefix)
                for before, now in zip(found, pushed, strict=True)
                if now["mod_revision"] != before["mod_revision"]
            }
            assert moved == {"alert_at", "auto_unlock_at"}
        assert etcdctl("get", "--prefix", prefix) == ""

    def test_a_lost_lease_is_reported_despite_a_new_one(
        self, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        take(store)
        for _ in range(2):
            mine = holder()
            assert isinstance(ask(store, TakeOrQueue(mine, ticket(mine))), Queued)
            line = etcdctl("get", "--prefix", f"{store.location.root}/queue/", "-w", "json")
            (lease,) = {kv["lease"] for kv in json.loads(line)["kvs"]}
            if not store.extend_tickets(None, soon()):
                break
            etcdctl("lease", "revoke", f"{lease:x}")
        else:
            raise AssertionError("no event came")
        assert store.extend_tickets(None, soon())

    def test_a_foreign_ticket_is_named_by_its_key(self, store: EtcdStore, etcdctl: Etcdctl) -> None:
        """By the key as it stands, which our clients would encode otherwise; and it counts."""
        take(store)
        etcdctl("put", f"{store.location.root}/queue/the%2Flock/h%2f7", "{}")
        mine = holder()
        queued = ask(store, TakeOrQueue(mine, ticket(mine)))
        assert isinstance(queued, Queued)
        assert (queued.predecessor, queued.waiters, queued.is_unsure) == ("h%2f7", 2, False)
        position = ask(store, GetPosition(NAME, mine.uuid or "", queued.ticket_revision - 1))
        assert isinstance(position, Position)
        assert not position.ticket, "it is another ticket than the one that is asked for"

    def test_a_partial_foreign_lock_is_read(self, store: EtcdStore, etcdctl: Etcdctl) -> None:
        prefix = f"{store.location.root}/locks/the%2Flock/"
        etcdctl("put", f"{prefix}hostname", "h")
        half = held(store)
        assert (half.uuid, half.hostname, half.fencing_token) == (None, "h", 0)
        etcdctl("put", f"{prefix}about", '{"identity": "of before"}')
        etcdctl("put", f"{prefix}uuid", "u")
        assert held(store).identity is None
        etcdctl("put", f"{prefix}about", '{"identity": "of later"}')
        assert "about" in held(store).problems

    def test_a_record_lasts_a_week(self, store: EtcdStore, etcdctl: Etcdctl) -> None:
        """Bound to a lease that all records of an hour share."""
        for name in ("x", "y"):
            remove(store, taken(store, name).record)
        found = etcdctl("get", "--prefix", f"{store.location.root}/removed/", "-w", "json")
        (lease,) = {kv["lease"] for kv in json.loads(found)["kvs"]}
        said = json.loads(etcdctl("lease", "timetolive", f"{lease:x}", "-w", "json"))
        assert said["granted-ttl"] == 7 * 86400 + 3600

    def test_a_long_backtrace_is_written_once_for_all_removals(
        self, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        root, backtrace = store.location.root, "  File …, in main\n" * 1000
        removals = []
        for name in ("x", "y"):
            held = taken(store, name)
            removals.append(remove(store, replace(held.record, backtrace=backtrace)))
            again = store.ask(Remove(removals[-1], None), soon())
            assert isinstance(again, Done), "as after an answer that was lost"
        (code,) = etcdctl("get", "--prefix", "--keys-only", f"{root}/code/").split()
        assert len(etcdctl("get", "--prefix", f"{root}/removed/").encode()) < 3000
        for removal in removals:
            assert removal_of(store, removal.holder).facts() == removal.facts()
        for change in (["put", code, "other"], ["del", code]):
            etcdctl(*change)
            seen = removal_of(store, removals[0].holder)
            assert seen.facts() == removals[0].facts() | {"backtrace": None}

    @pytest.mark.parametrize("never", [True, False])
    def test_leftover_keys_do_not_count_for_the_next_holder(
        self, store: EtcdStore, etcdctl: Etcdctl, never: bool
    ) -> None:
        prefix = f"{store.location.root}/locks/x/"
        etcdctl("put", f"{prefix}auto_unlock_at", "5")
        mutex = ClusterMutex("x", store=store, auto_unlock_after=None if never else 900)
        with mutex:
            end = held(store, "x").auto_unlock_at
            assert end == pytest.approx(mutex.record.auto_unlock_at, abs=0.001)
        assert etcdctl("get", "--prefix", prefix) == ""


class TestReadingAll:
    def test_all_pages_are_read_at_one_revision(
        self, store: EtcdStore, etcdctl: Etcdctl, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paging, "MAX_KEYS", 3)
        held = [taken(store, f"lock {number}") for number in range(3)]
        etcdctl("put", f"{store.location.root}/locks/a b/uuid", "theirs")
        table = Table(store)
        table.read(soon())
        rows = table.rows().values()
        assert {row.holder.uuid for row in rows} == {mutex.uuid for mutex in held}
        assert not any(row.holder.broken() for row in rows)
        batches: list[Batch] = []
        for batch in store.load(KINDS, soon()):
            if not batches:
                held[2].release()
                held[0].alive(force=True)
            batches.append(batch)
        assert len(batches) > 3
        assert len({batch.revision for batch in batches}) == 1
        changes = [change for batch in batches for change in batch.changes]
        assert {each.name for each in changes} == {"lock 0", "lock 1", "lock 2"}
        uuids = [each.value for each in changes if each.part == "uuid"]
        assert len(uuids) == 3
        assert all(each.revision <= batches[0].revision for each in changes)


class TestRefusals:
    def test_an_etcd_out_of_space_still_lets_go(self, own_etcd: Etcd) -> None:
        """No new locks, which is said with the way out; but unlock works, and a removal that
        needs no record."""
        store = etcd_store(Settings(endpoints=(own_etcd.endpoint,)))
        held, removed = taken(store, "x"), taken(store, "y")
        exhaust_space(own_etcd)
        with pytest.raises(StoreError, match="compacted, defragmented and its alarm disarmed"):
            ClusterMutex("z", store=store).acquire()
        held.alive()
        held.check_health()
        held.release()
        assert held.holder() is None
        with pytest.raises(StoreFull):
            remove(store, removed.record)
        assert removed.holder() is not None
        removal = Removal(removed.record, time.time(), "ann", "force-unlock", "why")
        assert isinstance(store.ask(Remove(removal, None, recorded=False), soon()), Done)
        assert removed.holder() is None
        store.close()


class TestFailover:
    def test_a_member_without_a_clock_is_left_out(self, etcd: Etcd) -> None:
        ends = ("127.0.0.1:1", etcd.endpoint)
        assert len(etcd_store(Settings(endpoints=ends)).clock_offsets(5)) == 1

    def test_a_silent_member_does_not_delay_the_clocks(self, etcd: Etcd) -> None:
        with Relay(etcd.endpoint) as silent, Relay(etcd.endpoint) as slow:
            silent.hold(requests=True)
            slow.delay = 0.6
            store = etcd_store(Settings(endpoints=(silent.endpoint, slow.endpoint)))
            [ahead] = store.clock_offsets(2)
            assert abs(ahead) < 2
            store.close()
