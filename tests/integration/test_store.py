"""The etcd store beyond the contract of all stores: what etcd alone has, and how it can fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Removal, Settings, StoreError, StoreFull
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import paging
from lockclient.stores.outcomes import Done, ReadResult
from lockclient.stores.protocol import WatchEvent, WatchTarget
from lockclient.stores.requests import Read, Remove
from lockclient.stores.service_protocol import Batch, Kind
from tests.support.etcd_binary import Etcdctl, etcdctl_of
from tests.support.etcd_store import etcd_store
from tests.support.processes import wait_until

KINDS: tuple[Kind, ...] = ("locks", "queue", "removed", "unlockers")


def soon() -> Deadline:
    return Deadline.after(20)


def taken(store: EtcdStore, name: str) -> ClusterMutex:
    mutex = ClusterMutex(name, store=store)
    assert mutex.acquire()
    return mutex


def record(held: ClusterMutex) -> Removal:
    return Removal(held.record, time.time(), "ann", "force-unlock", "why")


class TestWhatIsWritten:
    def test_a_lock_stands_there_as_the_protocol_says(
        self, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        """One small text a subkey; no lease: a partition never unlocks anything."""
        with ClusterMutex("a/b", store=store, reason="why", identity="w") as held:
            prefix = f"{store.location.root}/locks/a%2Fb/"
            found = json.loads(etcdctl("get", "--prefix", prefix, "-w", "json"))["kvs"]
            assert {kv.get("lease", 0) for kv in found} == {0}
            assert {kv["mod_revision"] for kv in found} == {held.fencing_token}
            keys = etcdctl("get", "--prefix", "--keys-only", prefix).split()
            assert set(keys) == {prefix + part for part in held.record.subkeys()}
            assert len(keys) == 5

    def test_a_ticket_is_bound_to_the_process_s_lease(
        self, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        """All waiters of a process share one, of ten seconds."""
        held = [taken(store, name) for name in ("x", "y")]
        waiters = [ClusterMutex(each.name, store=store) for each in held]
        threads = [threading.Thread(target=each.acquire) for each in waiters]
        for each in threads:
            each.start()
        wait_until(lambda: all(each.waiters() for each in held), what="both in line")
        line = etcdctl("get", "--prefix", f"{store.location.root}/queue/", "-w", "json")
        (lease,) = {kv["lease"] for kv in json.loads(line)["kvs"]}
        said = json.loads(etcdctl("lease", "timetolive", f"{lease:x}", "-w", "json"))
        assert said["granted-ttl"] == 10
        for one in held:
            one.release()
        for each in threads:
            each.join(60)
        for one in waiters:
            one.release()

    def test_a_record_lasts_a_week(self, store: EtcdStore, etcdctl: Etcdctl) -> None:
        """Bound to a lease that all records of an hour share."""
        for name in ("x", "y"):
            held = taken(store, name)
            assert isinstance(store.ask(Remove(record(held), None), soon()), Done)
        found = etcdctl("get", "--prefix", f"{store.location.root}/removed/", "-w", "json")
        (lease,) = {kv["lease"] for kv in json.loads(found)["kvs"]}
        said = json.loads(etcdctl("lease", "timetolive", f"{lease:x}", "-w", "json"))
        assert said["granted-ttl"] == 7 * 86400 + 3600

    def test_a_long_backtrace_is_written_once_for_all_removals(
        self, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        """And read with each of them; a record whose code is gone, or is not what it was, says all
        else."""
        root, backtrace = store.location.root, "  File …, in main\n" * 1000
        removals = []
        for name in ("x", "y"):
            held = taken(store, name)
            holder = replace(held.record, backtrace=backtrace)
            removals.append(Removal(holder, time.time(), "ann", "force-unlock", "why"))
            sent = Remove(removals[-1], None)
            assert isinstance(store.ask(sent, soon()), Done)
            assert isinstance(store.ask(sent, soon()), Done), "as after an answer that was lost"
        (code,) = etcdctl("get", "--prefix", "--keys-only", f"{root}/code/").split()
        assert len(etcdctl("get", "--prefix", f"{root}/removed/").encode()) < 3000
        for each in removals:
            seen = store.ask(Read(each.holder.name, each.holder.uuid), soon())
            assert isinstance(seen, ReadResult)
            assert seen.removal is not None
            assert seen.removal.facts() == each.facts()
        for change in (["put", code, "other"], ["del", code]):
            etcdctl(*change)
            seen = store.ask(Read("x", removals[0].holder.uuid), soon())
            assert isinstance(seen, ReadResult)
            assert seen.removal is not None
            assert seen.removal.facts() == removals[0].facts() | {"backtrace": None}

    @pytest.mark.parametrize("never", [True, False])
    def test_leavings_of_a_careless_client_are_nobody_s_facts(
        self, store: EtcdStore, etcdctl: Etcdctl, never: bool
    ) -> None:
        """Only `uuid` was deleted: the end that stayed must not unlock the next holder's lock."""
        prefix = f"{store.location.root}/locks/x/"
        etcdctl("put", f"{prefix}auto_unlock_at", "5")
        mutex = ClusterMutex("x", store=store, auto_unlock_after=None if never else 900)
        with mutex:
            holder = mutex.holder()
            assert holder is not None
            assert holder.auto_unlock_at == pytest.approx(mutex.record.auto_unlock_at, abs=0.001)
        assert etcdctl("get", "--prefix", prefix) == ""


class TestReadingAll:
    def test_it_is_read_in_pages_at_one_revision(
        self, store: EtcdStore, etcdctl: Etcdctl, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever changes in the meantime; keys of nobody are left out."""
        monkeypatch.setattr(paging, "MAX_KEYS", 5)
        held = [taken(store, f"lock {number}") for number in range(3)]
        etcdctl("put", f"{store.location.root}/locks/a b/uuid", "theirs")
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

    def test_a_stream_that_broke_goes_on_where_it_stopped(
        self, own_etcd: Etcd, own_store: EtcdStore
    ) -> None:
        """Every event is told once, also those that came while it was down."""
        events: list[WatchEvent] = []
        watch = own_store.watch(WatchTarget("x"), 1, events.append)
        seen: list[int] = []
        for _ in range(2):
            held = taken(own_store, "x")
            token = held.fencing_token
            held.release()
            seen.append(token)
        wait_until(lambda: len(events) == 4, what="the first events")
        own_etcd.stop()
        wait_until(lambda: not own_store.connected(), what="the end of the stream")
        own_etcd.start()
        held = taken(own_store, "x")
        held.release()
        wait_until(lambda: len(events) >= 6, what="the last events")
        revisions = [each.revision for each in events]
        assert revisions == sorted(set(revisions))
        assert len(events) == 6
        watch.close()


class TestRefusals:
    @pytest.fixture
    def full(self, etcd_binary: str, tmp_path: Path) -> Iterator[Etcd]:
        """An etcd with a lock in it and no space for another."""
        server = Etcd(etcd_binary, tmp_path / "data", tmp_path / "etcd.log")
        server.extra = ["--quota-backend-bytes=1000000"]
        with server:
            yield server

    def test_an_etcd_out_of_space_still_lets_go(self, full: Etcd) -> None:
        """No new locks, which is said with the way out; but unlock works, and a removal that
        needs no record."""
        store = etcd_store(Settings(endpoints=(full.endpoint,)))
        held, removed = taken(store, "x"), taken(store, "y")
        etcdctl = etcdctl_of(full)

        # One request that would not fit raises the alarm, and it stays. (Really over its quota an
        # etcd 3.5.1 refuses transactions that only read or delete, too; later ones do not.)
        with pytest.raises(AssertionError, match="database space exceeded"):
            etcdctl("put", "/fill", input=b"x" * 1_200_000)
        with pytest.raises(StoreError, match="compacted, defragmented and its alarm disarmed"):
            ClusterMutex("z", store=store).acquire()
        held.alive()
        held.check_health()
        held.release()
        assert held.holder() is None
        with pytest.raises(StoreFull):
            store.ask(Remove(record(removed), None), soon())
        assert removed.holder() is not None
        unrecorded = Remove(record(removed), None, recorded=False)
        assert isinstance(store.ask(unrecorded, soon()), Done)
        assert removed.holder() is None
        store.close()

    @pytest.fixture
    def guarded(self, own_etcd: Etcd, own_etcdctl: Etcdctl) -> Etcd:
        """An etcd with passwords: root, and ann, who may only touch `/ann/`."""
        for user in ("root:secret", "ann:hers"):
            own_etcdctl("user", "add", user)
        own_etcdctl("role", "add", "ann")
        own_etcdctl("role", "grant-permission", "ann", "--prefix=true", "readwrite", "/ann/")
        own_etcdctl("user", "grant-role", "ann", "ann")
        own_etcdctl("user", "grant-role", "root", "root")
        own_etcdctl("auth", "enable")
        return own_etcd

    def test_passwords(self, guarded: Etcd) -> None:
        """The right one locks, waits and is told of a loss; others are told what is wrong."""
        ends = (guarded.endpoint,)

        def store(**how: str) -> EtcdStore:
            return etcd_store(Settings(endpoints=ends, root="/ann", **how))  # type: ignore[arg-type]

        ann = store(user="ann", password="hers")
        with ClusterMutex("x", store=ann) as held:
            assert not ClusterMutex("x", store=ann).acquire(timeout=0.5)
            waiter = ClusterMutex("x", store=ann)
            thread = threading.Thread(target=waiter.acquire)
            thread.start()
            wait_until(held.waiters, what="the waiter in line")
        thread.join(60)
        waiter.alive(force=True)
        waiter.release()
        for other, said in [
            (store(user="ann", password="wrong"), "Check ETCDCTL_USER and ETCDCTL_PASSWORD"),
            (store(), "This etcd asks for a user: set ETCDCTL_USER"),
        ]:
            with pytest.raises(StoreError, match=said):
                ClusterMutex("x", store=other).acquire(blocking=False)
            other.close()
        elsewhere = etcd_store(Settings(endpoints=ends, root="/bob", user="ann", password="hers"))
        with pytest.raises(StoreError, match="role lacks a right"):
            ClusterMutex("x", store=elsewhere).acquire(blocking=False)
        elsewhere.close()
        ann.close()

    def test_a_user_is_no_harm_where_none_is_asked_for(self, own_etcd: Etcd) -> None:
        """Passwords may be switched on later."""
        settings = Settings(endpoints=(own_etcd.endpoint,), user="ann", password="hers")
        store = etcd_store(settings)
        with ClusterMutex("x", store=store) as held:
            held.alive(force=True)
        store.close()


class TestFailover:
    def test_a_member_that_is_down_is_passed_by(self, etcd: Etcd, root: str) -> None:
        """The next one is asked, for requests and for the watch."""
        ends = ("127.0.0.1:1", etcd.endpoint)
        store = etcd_store(Settings(endpoints=ends, root=root))
        held = taken(store, "x")
        waiter = ClusterMutex("x", store=store)
        thread = threading.Thread(target=waiter.acquire)
        thread.start()
        wait_until(held.waiters, what="the waiter in line")
        wait_until(store.connected, what="the watch on the other member")
        held.release()
        thread.join(60)
        assert waiter.locked()
        waiter.release()
        store.close()

    def test_a_member_that_can_t_tell_its_time_is_left_out(self, etcd: Etcd) -> None:
        ends = ("127.0.0.1:1", etcd.endpoint)
        assert len(etcd_store(Settings(endpoints=ends)).clock_offsets(5)) == 1
