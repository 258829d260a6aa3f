"""Requests of a mutex as etcd transactions, each with the reader of its answer; no I/O.

The table is in `docs/protocol.md`. Answers get lost, so a request may be sent twice. `Withdraw` and
reads are idempotent. For the others, the second sending's failure branch reads what the first did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

from lockclient.model.clocks import format_stamp
from lockclient.model.holder import STAMPS, SUBKEYS, Found, Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores import outcomes, request_types
from lockclient.stores.etcd.keys import Keys, LockKeys, segment_of
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.outcomes import Outcome

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    _Operations = RepeatedCompositeFieldContainer[wire.Operation]

CREATE, LESS, MOD = wire.Compare.CREATE, wire.Compare.LESS, wire.Compare.MOD
VALUE, VERSION = wire.Compare.VALUE, wire.Compare.VERSION
_Reader = Callable[[wire.TxnAnswer], wire.RangeAnswer]
"""Returns, from a transaction's answer, the answer of one range operation: see `_get`."""


class Plan(SimpleNamespace):  # its constructor is C code: two plans are made in each cycle
    """One request: the transaction to send, and the function that reads its answer.

    Attributes:
        read: returns the outcome of an answer; its second argument says whether the request may
            have been executed once before.
        lease: the lease that the transaction needs, if any.
        bound: the puts that need it.
    """

    txn: wire.Txn
    read: Callable[[wire.TxnAnswer, bool], Outcome]
    lease: Literal["", "tickets", "tombstones", "records"] = ""
    bound: Sequence[wire.Put] = ()

    def bind(self, lease: int) -> None:
        """Bind the puts that need a lease to this one."""
        if not lease:
            raise ValueError("A ticket without a lease would never expire.")
        for put in self.bound:
            put.lease = lease


# ---------------------------------------------------------------- taking


def _take(keyspace: Keys, request: request_types.Take) -> Plan:
    txn, keys, uuid = wire.Txn(), keyspace.keys_of(request.holder.name), request.holder.uuid or ""
    _require_free(txn, keys)
    txn.compare.add(target=VERSION, key=keys.tombstone(uuid), version=0)
    _put_holder(txn.success, keys, request.holder)
    return Plan(txn=txn, read=partial(_read_taken, uuid, _get(txn.failure, keys.uuid)))


def _take_or_queue(keyspace: Keys, request: request_types.TakeOrQueue) -> Plan:
    txn, keys, uuid = wire.Txn(), keyspace.keys_of(request.holder.name), request.ticket.uuid
    _require_free(txn, keys)
    txn.compare.add(target=VERSION, key=keys.tombstone(uuid), version=0)
    _put_holder(txn.success, keys, request.holder)
    # Nested: if an earlier sending took the lock, this one must not queue behind it.
    ours = txn.failure.add().txn
    ours.compare.add(target=VALUE, key=keys.uuid, value=uuid.encode())
    earlier = _get(ours.success, keys.uuid)
    # Nested again: if the acquisition was withdrawn or removed meanwhile, it must not queue.
    queue = ours.failure.add().txn
    queue.compare.add(target=VERSION, key=keys.tombstone(uuid), version=0)
    put = _put(queue.success, keys.ticket(uuid), request.ticket.value())
    holder, ticket = _get(queue.success, keys.uuid), _get(queue.success, keys.ticket(uuid))
    youngest = _get_youngest(queue.success, keys, limit=2)

    def read(answer: wire.TxnAnswer, _resent: bool) -> Outcome:
        revision = answer.header.revision
        if answer.succeeded:
            return outcomes.Taken(revision)
        answer = answer.responses[0].txn
        if answer.succeeded:
            return outcomes.Taken(earlier(answer).kvs[0].mod_revision, by_earlier_send=True)
        answer = answer.responses[0].txn
        if not answer.succeeded:
            return outcomes.Refused(None, revision, uuid_spent=True)
        own, last = ticket(answer).kvs[0], youngest(answer)
        # Normally the two youngest tickets are the own one and its predecessor. After a second
        # sending there may be younger ones: then the caller reads its position.
        is_last = last.kvs[0].key == own.key
        ahead = segment_of(last.kvs[1].key) if is_last and len(last.kvs) > 1 else None
        return outcomes.Queued(
            own.create_revision,
            ahead,
            _value(holder(answer)),
            revision,
            is_unsure=not is_last,
            waiters=last.count,  # etcd counts the whole range, whatever the request's limit
        )

    return Plan(txn=txn, read=read, lease="tickets", bound=[put])


def _get_position(keyspace: Keys, request: request_types.GetPosition) -> Plan:
    txn, keys = wire.Txn(), keyspace.keys_of(request.name)
    ticket, holder = _get(txn.success, keys.ticket(request.uuid)), _get(txn.success, keys.uuid)
    if request.predecessor_deleted_at is not None:  # the holder at that revision
        ahead = _get(txn.success, keys.uuid, revision=request.predecessor_deleted_at)
    elif request.predecessor is not None:
        ahead = _get(txn.success, keys.ticket_as_read(request.predecessor))
    else:
        ahead = _get_youngest(txn.success, keys, limit=1, before=request.ticket_revision)
    _send_through_raft(txn)

    def read(answer: wire.TxnAnswer, _resent: bool) -> Outcome:
        own, found = ticket(answer).kvs, ahead(answer).kvs
        queued = bool(own) and own[0].create_revision == request.ticket_revision
        if request.predecessor_deleted_at is not None:
            # The predecessor became the holder, or it withdrew: then another waiter may be ahead.
            is_new = bool(found) and found[0].mod_revision == request.predecessor_deleted_at
            holder_then = _value(ahead(answer)) if is_new else None
            predecessor, is_unsure = None, holder_then != unquote(request.predecessor or "")
        else:
            predecessor, is_unsure = segment_of(found[0].key) if found else None, False
            if request.predecessor is not None:  # it may have queued again, behind this waiter
                is_unsure = not found or found[0].create_revision > request.ticket_revision
        revision = answer.header.revision
        return outcomes.Position(queued, predecessor, _value(holder(answer)), revision, is_unsure)

    return Plan(txn=txn, read=read)


def _claim(keyspace: Keys, request: request_types.Claim) -> Plan:
    txn, keys, uuid = wire.Txn(), keyspace.keys_of(request.holder.name), request.holder.uuid or ""
    ticket = keys.ticket(uuid)
    txn.compare.add(target=VERSION, key=keys.uuid, version=0)
    txn.compare.add(target=CREATE, key=ticket, create_revision=request.ticket_revision)
    _put_holder(txn.success, keys, request.holder)
    _delete(txn.success, ticket)
    holder, own = _get(txn.failure, keys.uuid), _get(txn.failure, ticket)

    def read(answer: wire.TxnAnswer, resent: bool) -> Outcome:
        outcome = _read_taken(uuid, holder, answer, resent)
        if isinstance(outcome, outcomes.Taken):
            return outcome
        queued = any(kv.create_revision == request.ticket_revision for kv in own(answer).kvs)
        return replace(outcome, ticket=queued)

    return Plan(txn=txn, read=read)


def _reclaim(keyspace: Keys, request: request_types.Reclaim) -> Plan:
    txn, keys, uuid = wire.Txn(), keyspace.keys_of(request.holder.name), request.holder.uuid or ""
    # Compare the revision, too: the caller examined the process of this acquisition alone.
    txn.compare.add(target=VALUE, key=keys.uuid, value=(request.previous.uuid or "").encode())
    txn.compare.add(target=MOD, key=keys.uuid, mod_revision=request.previous.fencing_token)
    txn.compare.add(target=VERSION, key=keys.tombstone(uuid), version=0)
    _put_holder(txn.success, keys, request.holder)
    _delete(txn.success, keys.ticket(uuid))
    return Plan(txn=txn, read=partial(_read_taken, uuid, _get(txn.failure, keys.uuid)))


def _read_taken(
    uuid: str, holder: _Reader, answer: wire.TxnAnswer, _resent: bool
) -> outcomes.Taken | outcomes.Refused:
    if answer.succeeded:
        return outcomes.Taken(answer.header.revision)
    found = holder(answer)
    if _value(found) == uuid:
        return outcomes.Taken(found.kvs[0].mod_revision, by_earlier_send=True)
    return outcomes.Refused(_value(found), answer.header.revision)


# ---------------------------------------------------------------- holding


def _push(keyspace: Keys, request: request_types.Push) -> Plan:
    txn, keys = wire.Txn(), keyspace.keys_of(request.name)
    alert_at, unlock_at = map(keys.subkey, STAMPS)
    stamp = format_stamp(request.stamps.alert_at)
    txn.compare.add(target=VALUE, key=keys.uuid, value=request.uuid.encode())
    # A frozen member may deliver a push after later ones, and a person may have written a later
    # stamp. So revisions are compared and not times. A deleted stamp has revision 0.
    txn.compare.add(result=LESS, target=MOD, key=alert_at, mod_revision=request.revision + 1)
    _put(txn.success, alert_at, stamp)
    if request.stamps.auto_unlock_at is not None:
        _put(txn.success, unlock_at, format_stamp(request.stamps.auto_unlock_at))
    holder, removal = _get(txn.failure, keys.uuid), _get(txn.failure, keys.removal(request.uuid))
    found = _get(txn.failure, alert_at)

    def read(answer: wire.TxnAnswer, resent: bool) -> Outcome:
        outcome = _read_done(request.name, request.uuid, holder, removal, answer, resent)
        if isinstance(outcome, outcomes.Done) or outcome.holder != request.uuid:
            return outcome
        is_ours = _value(found(answer)) == stamp  # by an earlier sending
        return (outcomes.Done if is_ours else outcomes.Conflict)(found(answer).kvs[0].mod_revision)

    return Plan(txn=txn, read=read)


def _unlock(keyspace: Keys, request: request_types.Unlock) -> Plan:
    # No put in either branch: an etcd that is out of space still deletes.
    txn, keys = wire.Txn(), keyspace.keys_of(request.name)
    txn.compare.add(target=VALUE, key=keys.uuid, value=request.uuid.encode())
    _delete(txn.success, *keys.lock)
    holder, removal = _get(txn.failure, keys.uuid), _get(txn.failure, keys.removal(request.uuid))
    return Plan(txn=txn, read=partial(_read_done, request.name, request.uuid, holder, removal))


def _read_done(
    name: str, uuid: str, holder: _Reader, record: _Reader, answer: wire.TxnAnswer, resent: bool
) -> outcomes.Done | outcomes.NotHolder:
    if answer.succeeded:
        return outcomes.Done(answer.header.revision)
    removal = _removal(name, uuid, record(answer))
    return outcomes.NotHolder(_value(holder(answer)), removal, resent)


def _withdraw(keyspace: Keys, request: request_types.Withdraw) -> Plan:
    txn, keys = wire.Txn(), keyspace.keys_of(request.name)
    txn.compare.add(target=VALUE, key=keys.uuid, value=request.uuid.encode())
    _delete(txn.success, *keys.lock)
    for branch in (txn.success, txn.failure):
        _delete(branch, keys.ticket(request.uuid))

    def read(answer: wire.TxnAnswer, _resent: bool) -> Outcome:
        return outcomes.Done(answer.header.revision)

    if not request.tombstone:
        return Plan(txn=txn, read=read)
    # A frozen member may deliver a take hours later, when it runs again: that finds a tombstone.
    tombstone = keys.tombstone(request.uuid)
    puts = [_put(branch, tombstone, "") for branch in (txn.success, txn.failure)]
    return Plan(txn=txn, read=read, lease="tombstones", bound=puts)


# ---------------------------------------------------------------- others' locks


def _read(keyspace: Keys, request: request_types.Read) -> Plan:
    name, uuid = request.name, request.uuid
    txn, keys = wire.Txn(), keyspace.keys_of(name)
    # Each key by itself: the range may have large keys of other clients.
    parts = {part: _get(txn.success, keys.subkey(part)) for part in SUBKEYS}
    queue = _get(txn.success, *keys.queue) if request.waiters else None
    record = None if uuid is None else _get(txn.success, keys.removal(uuid))
    _send_through_raft(txn)

    def read(answer: wire.TxnAnswer, _resent: bool) -> Outcome:
        found: dict[str, Found] = {
            part: (kv.value, kv.mod_revision)
            for part, subkey in parts.items()
            for kv in subkey(answer).kvs
        }
        holder = Holder.read(name, found) if found else None
        waiters = queue(answer).kvs if queue is not None else ()
        tickets = [
            Ticket.read(name, unquote(segment_of(kv.key)), kv.value, kv.create_revision)
            for kv in sorted(waiters, key=lambda ticket: ticket.create_revision)
        ]
        removal = None if record is None else _removal(name, uuid or "", record(answer))
        return outcomes.ReadResult(holder, tuple(tickets), removal, answer.header.revision)

    return Plan(txn=txn, read=read)


def _remove(keyspace: Keys, request: request_types.Remove) -> Plan:
    removal = request.removal
    name, uuid = removal.holder.name, removal.holder.uuid or ""
    txn, keys = wire.Txn(), keyspace.keys_of(name)
    if "uuid" in removal.holder.problems:  # its value can't be read, but its revision compared
        txn.compare.add(target=MOD, key=keys.uuid, mod_revision=removal.holder.fencing_token)
    else:
        txn.compare.add(target=VALUE, key=keys.uuid, value=uuid.encode())
    for part, revision in zip(STAMPS, request.stamp_revisions or (), strict=False):
        txn.compare.add(target=MOD, key=keys.subkey(part), mod_revision=revision)
    _delete(txn.success, *keys.lock)
    record, backtrace = removal.split_backtrace()
    puts = []
    if request.recorded:
        puts.append(_put(txn.success, keys.removal(uuid), record.value()))
        if backtrace:
            # Each removal writes it again, so that it expires with the last record that names it.
            puts.append(_put(txn.success, keyspace.code(record.code), backtrace))
        # A take that was sent twice may arrive again, and must not take the lock.
        puts.append(_put(txn.success, keys.tombstone(uuid), ""))
    holder, written = _get(txn.failure, keys.uuid), _get(txn.failure, keys.removal(uuid))

    def read(answer: wire.TxnAnswer, resent: bool) -> Outcome:
        outcome = _read_done(name, uuid, holder, written, answer, resent)
        found = outcome.removal if isinstance(outcome, outcomes.NotHolder) else None
        if found is not None and found.value() == record.value():  # by an earlier sending
            return outcomes.Done(answer.header.revision)
        return outcome

    return Plan(txn=txn, read=read, lease="records" if puts else "", bound=puts)


PLANS: Final[dict[type[request_types.Request], Callable[[Keys, Any], Plan]]] = {
    request_types.Take: _take,
    request_types.TakeOrQueue: _take_or_queue,
    request_types.GetPosition: _get_position,
    request_types.Claim: _claim,
    request_types.Reclaim: _reclaim,
    request_types.Push: _push,
    request_types.Unlock: _unlock,
    request_types.Withdraw: _withdraw,
    request_types.Read: _read,
    request_types.Remove: _remove,
}

# ---------------------------------------------------------------- of services


def reading(keys: Iterable[bytes]) -> wire.Txn:
    """Return the reads of these keys, with an answer for each."""
    txn = wire.Txn()
    for key in keys:
        _get(txn.success, key)
    _send_through_raft(txn)
    return txn


# ---------------------------------------------------------------- parts of a transaction
#
# They add to the message in place: nested constructors take three times as long.


def _require_free(txn: wire.Txn, keys: LockKeys) -> None:
    """Compare that the lock has neither a holder nor waiters."""
    # etcd stops at the first comparison that fails. The one over the range costs more with each
    # waiter, so it comes second: for a held lock it costs nothing.
    txn.compare.add(target=VERSION, key=keys.uuid, version=0)
    first, end = keys.queue
    txn.compare.add(target=CREATE, key=first, range_end=end, create_revision=0)


def _put_holder(operations: _Operations, keys: LockKeys, holder: Holder) -> None:
    prefix = keys.lock[0]
    if holder.auto_unlock_at is None:
        # A missing stamp means "never", so delete one that another client may have left.
        _delete(operations, prefix + b"auto_unlock_at")
    for part, value in holder.subkeys().items():
        put = operations.add().put
        put.key, put.value = prefix + part.encode(), value.encode()


def _put(operations: _Operations, key: bytes, value: str) -> wire.Put:
    put = operations.add().put
    put.key, put.value = key, value.encode()
    return put


def _delete(operations: _Operations, key: bytes, range_end: bytes = b"") -> None:
    delete = operations.add().delete
    delete.key, delete.range_end = key, range_end


def _get(operations: _Operations, key: bytes, range_end: bytes = b"", revision: int = 0) -> _Reader:
    """Add a range; return the reader of its answer."""
    index = len(operations)
    get = operations.add().range
    get.key, get.range_end, get.revision = key, range_end, revision
    return lambda answer: answer.responses[index].range


def _get_youngest(operations: _Operations, keys: LockKeys, limit: int, before: int = 0) -> _Reader:
    """Add a read of the youngest tickets, of those created before revision `before` if given."""
    read = _get(operations, *keys.queue)
    youngest = operations[-1].range
    youngest.limit = limit
    youngest.sort_order = wire.Range.DESCEND
    youngest.sort_target = wire.Range.CREATE
    youngest.max_create_revision = before - 1 if before else 0
    return read


def _send_through_raft(txn: wire.Txn) -> None:
    """Add an empty transaction to one that only reads, so that etcd sends it through raft.

    etcd cancels a read-only transaction when its client is killed or stops waiting, and before
    3.4.23 and 3.5.7 that ends the server (etcd-io/etcd #14110, #14891). The empty transaction
    makes no revision. The reads stay outside of it: etcd 3.4 checks no rights in nested ones.
    """
    txn.success.add().txn.SetInParent()


def _value(found: wire.RangeAnswer) -> str | None:
    return found.kvs[0].value.decode(errors="replace") if found.kvs else None


def _removal(name: str, uuid: str, found: wire.RangeAnswer) -> Removal | None:
    return Removal.read(name, uuid, found.kvs[0].value) if found.kvs else None
