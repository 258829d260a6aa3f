"""An etcd in memory, by its own messages: revisions, transactions, leases, compaction, history.

No I/O, no clock and no network: the caller passes `now`, and delivers the answers or loses them.
It does what an etcd of three members does after raft, its known faults included: a watch that
begins at the revision just compacted gets no event of a deletion there (#18089).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from lockclient.stores.etcd.wire import messages_pb2 as wire

COMPACTED = "etcdserver: mvcc: required revision has been compacted"
NO_LEASE = "etcdserver: requested lease not found"
NO_SPACE = "etcdserver: mvcc: database space exceeded"


class Refusal(Exception):
    """etcd's word for no; nothing happened."""


@dataclass(frozen=True, slots=True)
class Write:
    """One key as it was written, or deleted (`value` is None), at a revision."""

    at: float
    revision: int
    key: bytes
    value: bytes | None
    created: int = 0
    version: int = 0
    lease: int = 0


@dataclass(slots=True)
class GrantedLease:
    """A lease, and until when it lives."""

    ttl: int
    until: float
    keys: set[bytes] = field(default_factory=set)


_RESULTS: dict[int, Callable[[Any, Any], bool]] = {
    wire.Compare.EQUAL: lambda found, said: found == said,
    wire.Compare.GREATER: lambda found, said: found > said,
    wire.Compare.LESS: lambda found, said: found < said,
    wire.Compare.NOT_EQUAL: lambda found, said: found != said,
}


def covers(key: bytes, range_end: bytes, one: bytes) -> bool:
    """Tell whether a range, or a single key where it has no end, has this key in it."""
    return key == one if not range_end else key <= one and (range_end == b"\0" or one < range_end)


class SimulatedEtcd:
    """The state of a cluster, and its whole past."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.term = 2
        self.full = False
        self.has_leader = True
        """False: all members are stopped, and no lease ends."""
        self.refused = b""
        """Part of the keys that it has no space for; empty: none."""
        self.now = 0.0
        self.kept: dict[bytes, Write] = {}
        self.past: list[Write] = []
        self.reads = Counter[bytes]()
        """How often a range was read, by its first key."""
        self._leases: dict[int, GrantedLease] = {}
        self._last_lease = 0
        self._writing: dict[bytes, Write] | None = None

    def copied(self) -> SimulatedEtcd:
        """Return a cluster of its own in the same state."""
        twin = copy(self)
        twin.kept, twin.past = dict(self.kept), list(self.past)
        twin._leases = {
            number: replace(lease, keys=set(lease.keys)) for number, lease in self._leases.items()
        }
        return twin

    def header(self) -> Any:
        """Return what each answer begins with."""
        return wire.Header(member_id=1, revision=self.revision, raft_term=self.term)

    # ------------------------------------------------------------ requests

    def txn(self, txn: Any) -> Any:
        """Do a transaction wholly, or not at all.

        Raises:
            Refusal: it was not done.
        """
        operations = list(_all_operations(txn))
        if self.full and any(operation.HasField("put") for operation in operations):
            raise Refusal(NO_SPACE)
        for operation in operations:
            lease = operation.put.lease if operation.HasField("put") else 0
            if self.refused and self.refused in operation.put.key:
                raise Refusal(NO_SPACE)
            if lease and lease not in self._leases:
                raise Refusal(NO_LEASE)
            if 0 < operation.range.revision < self.compacted:
                raise Refusal(COMPACTED)
        self._writing = {}
        answer = self._do(txn)
        written, self._writing = self._writing, None
        if written:
            self.revision += 1
            for write in written.values():
                self._keep(write)
        answer.header.CopyFrom(self.header())
        return answer

    def range(self, asked: Any) -> Any:
        """Read a range, now or at a revision that is kept."""
        if 0 < asked.revision < self.compacted:
            raise Refusal(COMPACTED)
        self.reads[asked.key] += 1
        kept = self._now() if not asked.revision else self.at_revision(asked.revision)
        found = [kept[key] for key in sorted(kept) if covers(asked.key, asked.range_end, key)]
        if asked.max_create_revision:
            found = [kv for kv in found if kv.created <= asked.max_create_revision]
        if asked.sort_target == wire.Range.CREATE:
            found.sort(key=lambda kv: kv.created)
        elif asked.sort_target == wire.Range.MOD:
            found.sort(key=lambda kv: kv.revision)
        if asked.sort_order == wire.Range.DESCEND:
            found.reverse()
        shown = found[: asked.limit] if asked.limit else found
        answer = wire.RangeAnswer(header=self.header(), count=len(found))
        if not asked.count_only:
            answer.more = len(shown) < len(found)
            answer.kvs.extend(_shown(kv, keys_only=asked.keys_only) for kv in shown)
        return answer

    def grant(self, asked: Any) -> Any:
        """Grant a lease."""
        self._last_lease += 1
        self._leases[self._last_lease] = GrantedLease(asked.ttl, self.now + asked.ttl)
        return wire.LeaseGrantAnswer(header=self.header(), id=self._last_lease, ttl=asked.ttl)

    def keep_alive(self, asked: Any) -> Any:
        """Renew a lease; one that is not there has a time of 0."""
        lease = self._leases.get(asked.id)
        if lease is not None:
            lease.until = self.now + lease.ttl
        ttl = 0 if lease is None else lease.ttl
        return wire.LeaseKeepAliveAnswer(header=self.header(), id=asked.id, ttl=ttl)

    def revoke(self, asked: Any) -> Any:
        """End a lease, and all keys with it."""
        if asked.id not in self._leases:
            raise Refusal(NO_LEASE)
        self._end(asked.id)
        return wire.LeaseRevokeAnswer(header=self.header())

    # ------------------------------------------------------------ what happens by itself

    def expire(self) -> None:
        """End the leases whose time is up."""
        if not self.has_leader:
            return
        for number in [number for number, lease in self._leases.items() if lease.until <= self.now]:
            self._end(number)

    def elect(self) -> None:
        """Have a new leader: it gives each lease its whole time again."""
        self.term += 1
        self.has_leader = True
        for lease in self._leases.values():
            lease.until = self.now + lease.ttl

    def compact(self) -> None:
        """Forget all revisions before this one."""
        self.compacted = self.revision

    def events(
        self, start: int, key: bytes, range_end: bytes, *, synced: bool = False
    ) -> list[Write]:
        """Return the events of a watch from a revision on.

        One that is `synced` has caught up before, and has been given each write as it happened.

        Raises:
            Refusal: some of it was compacted.
        """
        if start < self.compacted and not synced:
            raise Refusal(COMPACTED)
        return [
            write
            for write in self._since(start)
            if covers(key, range_end, write.key)
            # What etcd does, and should not (#18089).
            and (synced or write.value is not None or write.revision > self.compacted)
        ]

    def at_revision(self, revision: int) -> dict[bytes, Write]:
        """Return all keys as they were."""
        found: dict[bytes, Write] = {}
        for write in self.past:
            if write.revision > revision:
                break
            if write.value is None:
                found.pop(write.key, None)
            else:
                found[write.key] = write
        return found

    # ------------------------------------------------------------ inside

    def _since(self, start: int) -> Iterable[Write]:
        first = len(self.past)
        while first and self.past[first - 1].revision >= start:
            first -= 1
        return self.past[first:]

    def _do(self, txn: Any) -> Any:
        succeeded = all(map(self._holds, txn.compare))
        answer = wire.TxnAnswer(succeeded=succeeded)
        for operation in txn.success if succeeded else txn.failure:
            response = answer.responses.add()
            kind = operation.WhichOneof("kind")
            if kind == "range":
                response.range.CopyFrom(self.range(operation.range))
            elif kind == "txn":
                response.txn.CopyFrom(self._do(operation.txn))
            elif kind == "put":
                self._put(operation.put)
            else:
                self._delete(operation.delete)
        return answer

    def _holds(self, compare: Any) -> bool:
        if compare.range_end:
            found = [
                kv for key, kv in self._now().items() if covers(compare.key, compare.range_end, key)
            ]
        else:
            found = [kv] if (kv := self._now().get(compare.key)) is not None else []
        if not found and compare.target == wire.Compare.VALUE:
            return False
        holds = _RESULTS[compare.result]
        if not found:
            said = (compare.version, compare.create_revision, compare.mod_revision)
            return bool(holds(0, said[compare.target]))
        return all(holds(*_compared(kv, compare)) for kv in found)

    def _now(self) -> dict[bytes, Write]:
        """Return what is there in the middle of a transaction."""
        if not self._writing:
            return self.kept
        there = {**self.kept, **self._writing}
        return {key: kv for key, kv in there.items() if kv.value is not None}

    def _put(self, put: Any) -> None:
        assert self._writing is not None
        old = self.kept.get(put.key)
        revision = self.revision + 1
        self._writing[put.key] = Write(
            *(self.now, revision, put.key, put.value),
            created=revision if old is None else old.created,
            version=1 if old is None else old.version + 1,
            lease=put.lease,
        )

    def _delete(self, delete: Any) -> None:
        assert self._writing is not None
        for key in [key for key in self.kept if covers(delete.key, delete.range_end, key)]:
            self._writing[key] = Write(self.now, self.revision + 1, key, None)

    def _keep(self, write: Write) -> None:
        old = self.kept.pop(write.key, None)
        if old is not None and old.lease in self._leases:
            self._leases[old.lease].keys.discard(write.key)
        if write.value is not None:
            self.kept[write.key] = write
            if write.lease:
                self._leases[write.lease].keys.add(write.key)
        self.past.append(write)

    def _end(self, number: int) -> None:
        keys = sorted(self._leases.pop(number).keys)
        self.revision += bool(keys)
        for key in keys:
            self._keep(Write(self.now, self.revision, key, None))


def _all_operations(txn: Any) -> Iterable[Any]:
    for operation in (*txn.success, *txn.failure):
        yield operation
        if operation.HasField("txn"):
            yield from _all_operations(operation.txn)


def _compared(kv: Write, compare: Any) -> tuple[Any, Any]:
    return {
        wire.Compare.VERSION: (kv.version, compare.version),
        wire.Compare.CREATE: (kv.created, compare.create_revision),
        wire.Compare.MOD: (kv.revision, compare.mod_revision),
        wire.Compare.VALUE: (kv.value, compare.value),
    }[compare.target]


def _shown(kv: Write, *, keys_only: bool = False) -> Any:
    value = b"" if keys_only else kv.value
    return wire.KeyValue(
        key=kv.key, value=value, create_revision=kv.created, mod_revision=kv.revision
    )


def as_event(write: Write) -> Any:
    """Return a write as a watch tells it."""
    kind = wire.WatchEvent.DELETE if write.value is None else wire.WatchEvent.PUT
    return wire.WatchEvent(kind=kind, kv=_shown(write))
