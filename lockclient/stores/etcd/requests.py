"""Requests of a mutex as etcd transactions; no I/O. What the answers mean: `answers`.

The table is in `docs/protocol.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lockclient.model.clocks import format_stamp
from lockclient.model.holder import STAMPS, SUBKEYS, Holder
from lockclient.stores import requests
from lockclient.stores.common.dispatch import METHODS
from lockclient.stores.etcd.keys import Keys, LockKeys
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.service_protocol import Change

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    _Operations = RepeatedCompositeFieldContainer[wire.Operation]


class _Prepared(NamedTuple):
    """Of one lock: its keys, and its take and unlock but for what each acquisition fills in."""

    keys: LockKeys
    take: wire.Txn
    unlock: wire.Txn


class Transactions:
    """The transactions of one keyspace."""

    def __init__(self, keyspace: Keys) -> None:
        self._keys_of = keyspace.keys_of
        self._code = keyspace.code
        self._prepared = lru_cache(maxsize=1024)(self._prepare)
        self.of: dict[type, Callable[[Any, int], wire.Txn]] = {
            kind: getattr(self, name) for kind, name in METHODS.items()
        }
        """Returns, by the kind of a request, the transaction of a request and a lease.

        The lease is for the ticket or record that the transaction may put.
        """

    def forget(self, change: Change) -> wire.Txn:
        """Return what deletes a record, mark or code, unless it was written again.

        Sent twice it deletes nothing more: the revision is gone.
        """
        txn = wire.Txn()
        if change.kind == "code":
            key = self._code(change.name)
        else:
            keys = self._keys_of(change.name)
            key = {"removed": keys.removal, "withdrawn": keys.mark}[change.kind](change.part)
        _written_at(txn, key, change.revision)
        _delete(txn.success, key)
        return txn

    def write_at(self, key: bytes, value: bytes, revision: int) -> wire.Txn:
        """Return what writes a key unless it was written after that revision; 0: it is not there.

        Sent twice it changes nothing more, and says that it did nothing.
        """
        txn = wire.Txn()
        _written_at(txn, key, revision)
        put = txn.success.add().put
        put.key, put.value = key, value
        return txn

    def get(self, keys: Iterable[bytes]) -> wire.Txn:
        """Return what reads these keys, each an answer of its own."""
        txn = wire.Txn()
        for key in keys:
            _get(txn.success, key)
        _through_raft(txn)
        return txn

    # ------------------------------------------------------------ building

    def _prepare(self, name: str) -> _Prepared:
        """Return what is the same in each lock and unlock of one name."""
        keys, take, unlock = self._keys_of(name), wire.Txn(), wire.Txn()
        _free_and_no_line(take, keys, "")
        _get(take.failure, keys.uuid)
        # No put in either branch: an etcd that is out of space must still let go of locks.
        _is(unlock, keys.uuid, "")
        _delete(unlock.success, *keys.lock)
        _who_and_why(unlock, keys, "")
        return _Prepared(keys, take, unlock)

    def take(self, request: requests.Take, _lease: int) -> wire.Txn:
        keys, prepared, _ = self._prepared(request.holder.name)
        txn = wire.Txn()
        txn.CopyFrom(prepared)
        txn.compare[_MARK].key = keys.mark(request.holder.uuid or "")
        _puts(txn, keys, request.holder)
        return txn

    def unlock(self, request: requests.Unlock, _lease: int) -> wire.Txn:
        keys, _, prepared = self._prepared(request.name)
        txn = wire.Txn()
        txn.CopyFrom(prepared)
        txn.compare[0].value = request.uuid.encode()
        txn.failure[_WHY].range.key = keys.removal(request.uuid)
        return txn

    def take_or_queue(self, request: requests.TakeOrQueue, lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.holder.name)
        ticket = keys.ticket(request.ticket.uuid)
        _free_and_no_line(txn, keys, request.ticket.uuid)
        _puts(txn, keys, request.holder)
        # Why nested: if an earlier sending took the lock, this one must not queue behind itself.
        queue = txn.failure.add().txn
        _is(queue, keys.uuid, request.holder.uuid)
        _get(queue.success, keys.uuid)
        # And nested again: if it was given up or removed meanwhile, it must not queue at all.
        queue = queue.failure.add().txn
        _absent(queue, keys.mark(request.ticket.uuid))
        _put(queue.success, ticket, request.ticket.value(), lease)
        _get(queue.success, keys.uuid)
        _get(queue.success, ticket)
        _youngest(queue.success, keys, limit=2)
        return txn

    def get_position(self, request: requests.GetPosition, _lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.name)
        _get(txn.success, keys.ticket(request.uuid))
        _get(txn.success, keys.uuid)
        if request.predecessor_deleted_at is not None:
            _get(txn.success, keys.uuid, revision=request.predecessor_deleted_at)
        elif request.predecessor is not None:
            _get(txn.success, keys.ticket_as_read(request.predecessor))
        else:
            _youngest(txn.success, keys, limit=1, before=request.ticket_revision)
        _through_raft(txn)
        return txn

    def claim(self, request: requests.Claim, _lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.holder.name)
        ticket = keys.ticket(request.holder.uuid or "")
        _absent(txn, keys.uuid)
        txn.compare.add(
            target=wire.Compare.CREATE, key=ticket, create_revision=request.ticket_revision
        )
        _puts(txn, keys, request.holder)
        _delete(txn.success, ticket)
        _get(txn.failure, keys.uuid)
        _get(txn.failure, ticket)
        return txn

    def reclaim(self, request: requests.Reclaim, _lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.holder.name)
        # The very acquisition that was looked at: what `about` said of it was written with it.
        _is(txn, keys.uuid, request.previous.uuid)
        _written_at(txn, keys.uuid, request.previous.fencing_token)
        _absent(txn, keys.mark(request.holder.uuid or ""))
        _puts(txn, keys, request.holder)
        _delete(txn.success, keys.ticket(request.holder.uuid or ""))
        _get(txn.failure, keys.uuid)
        return txn

    def push(self, request: requests.Push, _lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.name)
        alert_at, unlock_at = map(keys.subkey, STAMPS)
        _is(txn, keys.uuid, request.uuid)
        # A member that was frozen may deliver it after later ones, and a person may have written a
        # later time by hand: revisions tell who came after whom, times don't. A stamp that somebody
        # deleted has revision 0, and is made good.
        txn.compare.add(
            result=wire.Compare.LESS,
            target=wire.Compare.MOD,
            key=alert_at,
            mod_revision=request.revision + 1,
        )
        _put(txn.success, alert_at, format_stamp(request.stamps.alert_at))
        if request.stamps.auto_unlock_at is not None:
            _put(txn.success, unlock_at, format_stamp(request.stamps.auto_unlock_at))
        _who_and_why(txn, keys, request.uuid)
        _get(txn.failure, alert_at)
        return txn

    def withdraw(self, request: requests.Withdraw, lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.name)
        _is(txn, keys.uuid, request.uuid)
        _delete(txn.success, *keys.lock)
        for branch in (txn.success, txn.failure):
            _delete(branch, keys.ticket(request.uuid))
            if request.tombstone:
                # A member that was frozen may pass on a take hours later, as soon as it runs
                # again: no waiting is long enough, so from now on it finds this mark.
                _put(branch, keys.mark(request.uuid), "", lease)
        return txn

    def read(self, request: requests.Read, _lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.name)
        # One by one, and not their range: whatever others have put there besides, it does not come.
        for part in SUBKEYS:
            _get(txn.success, keys.subkey(part))
        if request.waiters:
            _get(txn.success, *keys.line)
        if request.uuid is not None:
            _get(txn.success, keys.removal(request.uuid))
        _through_raft(txn)
        return txn

    def remove(self, request: requests.Remove, lease: int) -> wire.Txn:
        removal = request.removal
        uuid = removal.holder.uuid or ""
        txn, keys = wire.Txn(), self._keys_of(removal.holder.name)
        if "uuid" in removal.holder.problems:  # what is there can't be read, but told apart
            _written_at(txn, keys.uuid, removal.holder.fencing_token)
        else:
            _is(txn, keys.uuid, uuid)
        for part, revision in zip(STAMPS, request.stamp_revisions or (), strict=False):
            _written_at(txn, keys.subkey(part), revision)
        _delete(txn.success, *keys.lock)
        if request.recorded:
            record, backtrace = removal.split_backtrace()
            _put(txn.success, keys.removal(uuid), record.value(), lease)
            if backtrace:
                # Put again by each removal, it lives as long as the last record that speaks of it.
                _put(txn.success, self._code(record.code), backtrace, lease)
            # A take of it that was sent twice may arrive again: its uuid must not hold again.
            _put(txn.success, keys.mark(uuid), "", lease)
        _who_and_why(txn, keys, uuid)
        return txn


_MARK: Final = 1
"""Which comparison of `_free_and_no_line` is that of the mark."""
_WHY: Final = 1
"""Which answer of `_who_and_why` is the removal."""

# ---------------------------------------------------------------- small parts
#
# They add to the message in place, which takes a third of the time of nested constructors.


def _absent(txn: wire.Txn, key: bytes) -> None:
    txn.compare.add(target=wire.Compare.VERSION, key=key, version=0)


def _is(txn: wire.Txn, key: bytes, value: str | None) -> None:
    txn.compare.add(target=wire.Compare.VALUE, key=key, value=(value or "").encode())


def _written_at(txn: wire.Txn, key: bytes, revision: int) -> None:
    txn.compare.add(target=wire.Compare.MOD, key=key, mod_revision=revision)


def _free_and_no_line(txn: wire.Txn, keys: LockKeys, uuid: str) -> None:
    # The order matters: etcd stops at the first comparison that fails, and the one over the range
    # costs as much as the line is long. Behind a held lock's uuid it costs nothing.
    _absent(txn, keys.uuid)
    _absent(txn, keys.mark(uuid))
    txn.compare.add(
        target=wire.Compare.CREATE, key=keys.line[0], range_end=keys.line[1], create_revision=0
    )


def _puts(txn: wire.Txn, keys: LockKeys, holder: Holder) -> None:
    operations, prefix = txn.success, keys.lock[0]
    if holder.auto_unlock_at is None:
        # "Never" is said by its absence: one that a careless client has left must not speak for us.
        _delete(operations, prefix + b"auto_unlock_at")
    for part, value in holder.subkeys().items():
        put = operations.add().put
        put.key = prefix + part.encode()
        put.value = value.encode()


def _put(operations: _Operations, key: bytes, value: str, lease: int = 0) -> None:
    put = operations.add().put
    put.key, put.value, put.lease = key, value.encode(), lease


def _through_raft(txn: wire.Txn) -> None:
    """Add a transaction of nothing to one that only reads, so that etcd sends it through raft.

    One that it sees to be read-only is cancelled with its client, and before 3.4.23 and 3.5.7 that
    ends the whole server: a client that is killed, or gives up, at the wrong moment is enough
    (etcd-io/etcd #14110, #14891). It costs the members a write to their logs, and no revision. The
    reads themselves stay outside of it: 3.4 does not check the rights to what is inside.
    """
    txn.success.add().txn.SetInParent()


def _get(operations: _Operations, key: bytes, range_end: bytes = b"", revision: int = 0) -> None:
    get = operations.add().range
    get.key, get.range_end, get.revision = key, range_end, revision


def _delete(operations: _Operations, key: bytes, range_end: bytes = b"") -> None:
    delete = operations.add().delete
    delete.key, delete.range_end = key, range_end


def _youngest(operations: _Operations, keys: LockKeys, limit: int, before: int = 0) -> None:
    """Read the youngest tickets, with `before` those that were created before that revision."""
    youngest = operations.add().range
    youngest.key, youngest.range_end = keys.line
    youngest.limit = limit
    youngest.sort_order = wire.Range.DESCEND
    youngest.sort_target = wire.Range.CREATE
    youngest.max_create_revision = before - 1 if before else 0


def _who_and_why(txn: wire.Txn, keys: LockKeys, uuid: str) -> None:
    _get(txn.failure, keys.uuid)
    _get(txn.failure, keys.removal(uuid))
