"""Builds each transaction and reads its answer into an outcome; no I/O.

Every transaction can be sent twice (answers get lost): it compares the uuid, and its else-branch
reads enough to tell what an earlier sending did. The table is in `docs/protocol.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from lockclient.model.clocks import format_stamp
from lockclient.model.holder import STAMPS, SUBKEYS, Found, Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.keys import Keys, LockKeys, segment_of
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Outcome,
    Position,
    Queued,
    ReadResult,
    Refused,
    Taken,
)
from lockclient.stores.requests import (
    Claim,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from lockclient.stores.service_protocol import Change

_Kvs = list[wire.KeyValue]
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

    def build(self, request: Request, lease: int = 0) -> wire.Txn:
        """Return the transaction; `lease` is for the ticket or record that it may put."""
        return _BUILDERS[type(request)](self, request, lease)

    def read(self, request: Request, answer: wire.TxnAnswer, *, resent: bool) -> Outcome:
        """Return what the answer says; `resent`: an earlier sending may have happened."""
        if answer.succeeded and isinstance(request, _GETTING):
            return Taken(answer.header.revision)
        if answer.succeeded and isinstance(request, _HAVING):
            return Done(answer.header.revision)
        match request:
            case Take() | Reclaim():
                return _refused(request.holder.uuid, answer)
            case Unlock():
                return _gone(request.name, request.uuid, answer, resent)
            case Push():
                if _value(_kvs(answer, 0)) == request.uuid:
                    return _read_late(request, answer)
                return _gone(request.name, request.uuid, answer, resent)
            case TakeOrQueue():
                return _read_queued(answer)
            case GetPosition():
                return _read_look(request, answer)
            case Claim():
                return _refused(request.holder.uuid, answer, request.ticket_revision)
            case Withdraw():
                return Done(answer.header.revision)
            case Read():
                return self._read_seen(request, answer)
            case Remove(removal=removal):
                gone = _gone(removal.holder.name, removal.holder.uuid or "", answer, resent)
                # The own record there already: an earlier sending of this request did it.
                record = removal.split_backtrace()[0].value()
                done = gone.removal is not None and gone.removal.value() == record
                return Done(answer.header.revision) if done else gone

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

    def _take(self, request: Take, _lease: int) -> wire.Txn:
        keys, prepared, _ = self._prepared(request.holder.name)
        txn = wire.Txn()
        txn.CopyFrom(prepared)
        txn.compare[_MARK].key = keys.mark(request.holder.uuid or "")
        _puts(txn, keys, request.holder)
        return txn

    def _unlock(self, request: Unlock, _lease: int) -> wire.Txn:
        keys, _, prepared = self._prepared(request.name)
        txn = wire.Txn()
        txn.CopyFrom(prepared)
        txn.compare[0].value = request.uuid.encode()
        txn.failure[_WHY].range.key = keys.removal(request.uuid)
        return txn

    def _take_or_queue(self, request: TakeOrQueue, lease: int) -> wire.Txn:
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

    def _look(self, request: GetPosition, _lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.name)
        _get(txn.success, keys.ticket(request.uuid))
        _get(txn.success, keys.uuid)
        if request.left_at is not None:
            _get(txn.success, keys.uuid, revision=request.left_at)
        elif request.predecessor is not None:
            _get(txn.success, keys.ticket_as_read(request.predecessor))
        else:
            _youngest(txn.success, keys, limit=1, before=request.ticket_revision)
        _through_raft(txn)
        return txn

    def _claim(self, request: Claim, _lease: int) -> wire.Txn:
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

    def _reclaim(self, request: Reclaim, _lease: int) -> wire.Txn:
        txn, keys = wire.Txn(), self._keys_of(request.holder.name)
        # The very acquisition that was looked at: what `about` said of it was written with it.
        _is(txn, keys.uuid, request.previous.uuid)
        _written_at(txn, keys.uuid, request.previous.fencing_token)
        _absent(txn, keys.mark(request.holder.uuid or ""))
        _puts(txn, keys, request.holder)
        _delete(txn.success, keys.ticket(request.holder.uuid or ""))
        _get(txn.failure, keys.uuid)
        return txn

    def _push(self, request: Push, _lease: int) -> wire.Txn:
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

    def _withdraw(self, request: Withdraw, lease: int) -> wire.Txn:
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

    def _read(self, request: Read, _lease: int) -> wire.Txn:
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

    def _remove(self, request: Remove, lease: int) -> wire.Txn:
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

    def _read_seen(self, request: Read, answer: wire.TxnAnswer) -> ReadResult:
        found: dict[str, Found] = {
            part: (kv.value, kv.mod_revision)
            for index, part in enumerate(SUBKEYS)
            for kv in _kvs(answer, index)
        }
        holder = Holder.read(request.name, found) if found else None
        line = _kvs(answer, len(SUBKEYS)) if request.waiters else []
        tickets = [
            Ticket.read(request.name, unquote(segment_of(kv.key)), kv.value, kv.create_revision)
            for kv in sorted(line, key=lambda each: each.create_revision)
        ]
        removal = None
        if request.uuid is not None and (records := _kvs(answer, len(SUBKEYS) + request.waiters)):
            removal = Removal.read(request.name, request.uuid, records[0].value)
        return ReadResult(holder, tuple(tickets), removal, answer.header.revision)


_BUILDERS: Final[dict[type, Callable[[Transactions, Any, int], wire.Txn]]] = {
    Take: Transactions._take,
    TakeOrQueue: Transactions._take_or_queue,
    GetPosition: Transactions._look,
    Claim: Transactions._claim,
    Reclaim: Transactions._reclaim,
    Push: Transactions._push,
    Unlock: Transactions._unlock,
    Withdraw: Transactions._withdraw,
    Read: Transactions._read,
    Remove: Transactions._remove,
}
_GETTING: Final = (Take, TakeOrQueue, Claim, Reclaim)
_HAVING: Final = (Unlock, Push, Remove)

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


def _kvs(answer: wire.TxnAnswer, index: int) -> _Kvs:
    return list(answer.responses[index].range.kvs)


def _value(kvs: _Kvs) -> str | None:
    return kvs[0].value.decode(errors="replace") if kvs else None


def _read_queued(answer: wire.TxnAnswer) -> Outcome:
    revision = answer.header.revision
    inner = answer.responses[0].txn
    if inner.succeeded:
        return Taken(_kvs(inner, 0)[0].mod_revision, by_earlier_send=True)
    inner = inner.responses[0].txn
    if not inner.succeeded:
        return Refused(None, revision, uuid_spent=True)
    holder, own, youngest = _kvs(inner, 1), _kvs(inner, 2)[0], _kvs(inner, 3)
    # Normally the two youngest tickets are the own one and its predecessor. After a second
    # sending others may have come behind: then the predecessor has to be looked up.
    last = youngest[0].key == own.key
    ahead = segment_of(youngest[1].key) if last and len(youngest) > 1 else None
    return Queued(own.create_revision, ahead, _value(holder), revision, not last)


def _read_look(request: GetPosition, answer: wire.TxnAnswer) -> Position:
    own, holder, third = _kvs(answer, 0), _kvs(answer, 1), _kvs(answer, 2)
    stands = bool(own) and own[0].create_revision == request.ticket_revision
    ahead, ambiguous = segment_of(third[0].key) if third else None, False
    if request.left_at is not None:
        # The predecessor's ticket went and the uuid came in one transaction: it got the lock,
        # so nobody else is ahead. Anything else: it died or gave up, and somebody may be.
        got_it = bool(third) and third[0].mod_revision == request.left_at
        ahead = None
        ambiguous = not (got_it and _value(third) == unquote(request.predecessor or ""))
    elif request.predecessor is not None:  # it may be another one by that name, that came later
        ambiguous = not third or third[0].create_revision > request.ticket_revision
    return Position(stands, ahead, _value(holder), answer.header.revision, ambiguous)


def _refused(
    mine: str | None, answer: wire.TxnAnswer, ticket_revision: int | None = None
) -> Taken | Refused:
    holder = _kvs(answer, 0)
    if _value(holder) == mine:
        return Taken(holder[0].mod_revision, by_earlier_send=True)
    ticket = _kvs(answer, 1) if ticket_revision is not None else []
    stands = bool(ticket) and ticket[0].create_revision == ticket_revision
    return Refused(_value(holder), answer.header.revision, stands)


def _read_late(request: Push, answer: wire.TxnAnswer) -> Done | Conflict:
    alert_at = _kvs(answer, 2)
    done = _value(alert_at) == format_stamp(request.stamps.alert_at)  # by an earlier sending
    return (Done if done else Conflict)(alert_at[0].mod_revision)


def _gone(name: str, uuid: str, answer: wire.TxnAnswer, resent: bool) -> NotHolder:
    record = _kvs(answer, 1)
    removal = Removal.read(name, uuid, record[0].value) if record else None
    return NotHolder(_value(_kvs(answer, 0)), removal, resent)
