"""What services and the command need of a cluster beyond what a mutex asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_VALUE_BYTES
from lockclient.stores.diagnosis_protocol import History, Member
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.listing import EtcdListing
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.etcd3_client import Borrowed
from lockclient.stores.etcd.wire.failover import as_store_error
from lockclient.stores.etcd.wire.rpc_methods import RANGE, TXN
from lockclient.stores.etcd.wire.watch_state import Missed, News, Started
from lockclient.stores.etcd.wire.watch_stream import Watch, WatchStream
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.service_protocol import Batch, Change


class EtcdServiceStore(EtcdListing):
    """The half of `EtcdStore` that services use."""

    location: EtcdLocation
    poll = 0.0
    _borrowed: Borrowed | None

    def _connect(self) -> None:
        super()._connect()
        self._channels = Channels(self.location, self._borrowed)
        self._streams = [WatchStream(self._channels)]
        if len(self.location.endpoints) > 1:
            self._streams.append(WatchStream(self._channels, self._streams[0]))
        self._announced: dict[str, Lease] = {}

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Watch:

        def translate(events: News) -> None:
            if isinstance(events, Missed):
                notify(Batch((), 0, gap=True, refused=events.refused))
                return
            if isinstance(events, Started):
                notify(Batch((), events.revision, started=True))
                return
            changes = self._changes((event.kv, event.kind) for event in events)
            notify(Batch(changes, events[-1].kv.mod_revision))

        # By one stream: all that a service follows would cost it twice as much by two.
        return Watch(
            self._streams[:1], self._keyspace.everything, revision, translate, tell_start=True
        )

    def connected(self) -> bool:
        return self._streams[0].connected

    def watch_restarts(self) -> int:
        return self._streams[0].restarts

    def clock_offsets(self, timeout: float) -> list[float]:
        from lockclient.stores.etcd.members import clock_offsets  # for unlockers alone

        return clock_offsets(self.location, timeout)

    def renew_watch(self) -> None:
        self._streams[0].renew()

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        lease = self._announced.setdefault(unlocker, Lease(self._channels, ttl, 0))
        with as_store_error():
            # By its lease first: that goes on in an etcd that is out of space for the value.
            lease.keep(deadline)
            key = self._keyspace.unlocker(unlocker)
            put = wire.Put(key=key, value=value.encode(), lease=lease.get(deadline))
            txn = wire.Txn(success=[wire.Operation(put=put)])
            return int(self._channels.call(TXN, txn, deadline).header.revision)

    def announce_restored(self, value: str, deadline: Deadline) -> None:
        put = wire.Put(key=self._keyspace.restored, value=value.encode())
        self._call(TXN, wire.Txn(success=[wire.Operation(put=put)]), deadline)

    def newest_announcement(self, deadline: Deadline) -> int:
        # One key, and no value: there may be any number, written by anybody.
        key, range_end = self._keyspace.kind("unlockers")
        newest = wire.Range(key=key, range_end=range_end, limit=1, keys_only=True)
        newest.sort_order, newest.sort_target = wire.Range.DESCEND, wire.Range.MOD
        found = self._call(RANGE, newest, deadline).kvs
        return int(found[0].mod_revision) if found else 0

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        if lease := self._announced.pop(unlocker, None):
            with as_store_error():
                lease.revoke(deadline)

    def forget(self, change: Change, deadline: Deadline) -> bool:
        return bool(self._call(TXN, self._transactions.forget(change), deadline).succeeded)

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        with as_store_error():
            return self.background.run_shielded(lambda: self._code(code, deadline))

    def _code(self, code: str, deadline: Deadline) -> bytes | None:
        page = wire.Range(key=self._keyspace.code(code))
        kvs = self._channels.call(RANGE, page, deadline).kvs
        return kvs[0].value if kvs and len(kvs[0].value) <= MAX_VALUE_BYTES else None

    def _with_code(self, seen: ReadResult, deadline: Deadline) -> ReadResult:
        """Return what was read with the backtrace of its removal, if that stands apart."""
        if seen.removal is None or not seen.removal.code:
            return seen
        backtrace = self._code(seen.removal.code, deadline)
        return replace(seen, removal=seen.removal.with_backtrace(backtrace))

    def members(self, timeout: float) -> list[Member]:
        from lockclient.stores.etcd.members import members  # for a doctor alone, as all it imports

        return members(self.location, timeout)

    def history(self, deadline: Deadline) -> History:
        from lockclient.stores.etcd import diagnosis

        return diagnosis.history(self._channels.call, self._keyspace.kind("unlockers"), deadline)

    def probe_permissions(self, deadline: Deadline) -> Mapping[str, bool]:
        from lockclient.stores.etcd import diagnosis

        return diagnosis.probe_permissions(self._channels.call, self.location.root, deadline)

    def endpoints(self) -> tuple[str, ...]:
        return self.location.endpoints
