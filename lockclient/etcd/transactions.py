"""Builds each transaction and reads its answer into an outcome; no I/O.

Every transaction can be sent twice (answers get lost): it compares the uuid, and its else-branch
reads enough to tell what an earlier sending did. The table is in `docs/protocol.md`.
"""

from __future__ import annotations

from urllib.parse import unquote

from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.keyspace import Keyspace, LockKeys
from lockclient.record import SUBKEYS, Holder, Removal, Ticket
from lockclient.store import (
    Claim,
    Done,
    Gone,
    Look,
    Outcome,
    Position,
    Push,
    Queued,
    Read,
    Reclaim,
    Refused,
    Remove,
    Request,
    Seen,
    Take,
    Taken,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from lockclient.timing import format_stamp

_Kvs = list[wire.KeyValue]


class Transactions:
    """The transactions of one keyspace."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keys_of = keyspace.keys_of

    def build(self, request: Request, lease: int = 0) -> wire.Txn:
        """Return the transaction; `lease` is for the ticket or record that it may put."""
        match request:
            case Take():
                return self._take(request)
            case TakeOrQueue():
                return self._take_or_queue(request, lease)
            case Look():
                return self._look(request)
            case Claim():
                return self._claim(request)
            case Reclaim():
                return self._reclaim(request)
            case Push():
                return self._push(request)
            case Unlock():
                return self._unlock(request)
            case Withdraw():
                return self._withdraw(request)
            case Read():
                return self._read(request)
            case Remove():
                return self._remove(request, lease)

    def read(self, request: Request, answer: wire.TxnAnswer, *, resent: bool) -> Outcome:
        """Return what the answer says; `resent`: an earlier sending may have happened."""
        revision = answer.header.revision
        match request:
            case Take() | Reclaim():
                if answer.succeeded:
                    return Taken(revision)
                return _taken_or_refused(request.holder.uuid, _kvs(answer, 0), revision)
            case TakeOrQueue():
                if answer.succeeded:
                    return Taken(revision)
                return _read_queued(answer)
            case Look():
                return _read_look(request, answer)
            case Claim():
                if answer.succeeded:
                    return Taken(revision)
                own = _kvs(answer, 1)
                stands = bool(own) and own[0].create_revision == request.ticket_revision
                return _taken_or_refused(request.holder.uuid, _kvs(answer, 0), revision, stands)
            case Push() | Unlock():
                if answer.succeeded:
                    return Done(revision)
                return _gone(request.name, request.uuid, answer, resent)
            case Withdraw():
                return Done(revision)
            case Read():
                return self._read_seen(request, answer)
            case Remove(removal=removal):
                if answer.succeeded:
                    return Done(revision)
                gone = _gone(removal.holder.name, removal.holder.uuid or "", answer, resent)
                # The own record there already: an earlier sending of this request did it.
                done = gone.removal is not None and gone.removal.value() == removal.value()
                return Done(revision) if done else gone

    # ------------------------------------------------------------ building

    def _take(self, request: Take) -> wire.Txn:
        keys = self._keys_of(request.holder.name)
        return wire.Txn(
            compare=_free_and_no_line(keys),
            success=_puts(keys, request.holder),
            failure=[_get(keys.uuid)],
        )

    def _take_or_queue(self, request: TakeOrQueue, lease: int) -> wire.Txn:
        keys = self._keys_of(request.holder.name)
        ticket = keys.ticket(request.ticket.uuid)
        put = wire.Put(key=ticket, value=request.ticket.value().encode(), lease=lease)
        # Why nested: if an earlier sending took the lock, this one must not queue behind itself.
        queue = wire.Txn(
            compare=[_is(keys.uuid, request.holder.uuid)],
            success=[_get(keys.uuid)],
            failure=[
                wire.Operation(put=put),
                _get(keys.uuid),
                _get(ticket),
                _youngest(keys, limit=2),
            ],
        )
        return wire.Txn(
            compare=_free_and_no_line(keys),
            success=_puts(keys, request.holder),
            failure=[wire.Operation(txn=queue)],
        )

    def _look(self, request: Look) -> wire.Txn:
        keys = self._keys_of(request.name)
        reads = [_get(keys.ticket(request.uuid)), _get(keys.uuid)]
        if request.left_at is not None:
            reads.append(_get(keys.uuid, revision=request.left_at))
        else:
            reads.append(_youngest(keys, limit=1, before=request.ticket_revision))
        return wire.Txn(success=reads)

    def _claim(self, request: Claim) -> wire.Txn:
        keys = self._keys_of(request.holder.name)
        ticket = keys.ticket(request.holder.uuid or "")
        return wire.Txn(
            compare=[
                _absent(keys.uuid),
                wire.Compare(
                    target=wire.Compare.CREATE, key=ticket, create_revision=request.ticket_revision
                ),
            ],
            success=[
                *_puts(keys, request.holder),
                wire.Operation(delete=wire.Delete(key=ticket)),
            ],
            failure=[_get(keys.uuid), _get(ticket)],
        )

    def _reclaim(self, request: Reclaim) -> wire.Txn:
        keys = self._keys_of(request.holder.name)
        written = request.holder.subkeys()
        # The range can't be deleted in the transaction that puts into it, so what the dead holder
        # wrote and the new one does not is deleted key by key.
        stale = [
            wire.Operation(delete=wire.Delete(key=keys.subkey(part)))
            for part in SUBKEYS
            if part not in written
        ]
        return wire.Txn(
            compare=[
                _is(keys.uuid, request.previous.uuid),
                _is(keys.subkey("identity"), request.holder.identity),
            ],
            success=[*_puts(keys, request.holder), *stale],
            failure=[_get(keys.uuid)],
        )

    def _push(self, request: Push) -> wire.Txn:
        keys = self._keys_of(request.name)
        stamps = request.stamps
        puts = [
            _put(keys.subkey("alive_at"), format_stamp(stamps.alive_at)),
            _put(keys.subkey("alert_at"), format_stamp(stamps.alert_at)),
        ]
        if stamps.auto_unlock_at is not None:
            puts.append(_put(keys.subkey("auto_unlock_at"), format_stamp(stamps.auto_unlock_at)))
        return wire.Txn(
            compare=[_is(keys.uuid, request.uuid)],
            success=puts,
            failure=_who_and_why(keys, request.uuid),
        )

    def _unlock(self, request: Unlock) -> wire.Txn:
        # No put in either branch: an etcd that is out of space must still let go of locks.
        keys = self._keys_of(request.name)
        return wire.Txn(
            compare=[_is(keys.uuid, request.uuid)],
            success=[_delete(keys.lock)],
            failure=_who_and_why(keys, request.uuid),
        )

    def _withdraw(self, request: Withdraw) -> wire.Txn:
        keys = self._keys_of(request.name)
        ticket = wire.Operation(delete=wire.Delete(key=keys.ticket(request.uuid)))
        return wire.Txn(
            compare=[_is(keys.uuid, request.uuid)],
            success=[_delete(keys.lock), ticket],
            failure=[ticket],
        )

    def _read(self, request: Read) -> wire.Txn:
        keys = self._keys_of(request.name)
        reads = [wire.Operation(range=wire.Range(key=keys.lock[0], range_end=keys.lock[1]))]
        if request.waiters:
            line = wire.Range(key=keys.line[0], range_end=keys.line[1])
            reads.append(wire.Operation(range=line))
        if request.uuid is not None:
            reads.append(_get(keys.removal(request.uuid)))
        return wire.Txn(success=reads)

    def _remove(self, request: Remove, lease: int) -> wire.Txn:
        removal = request.removal
        uuid = removal.holder.uuid or ""
        keys = self._keys_of(removal.holder.name)
        compare = [_is(keys.uuid, uuid)]
        if request.stamp_revision is not None:
            compare.append(
                wire.Compare(
                    target=wire.Compare.MOD,
                    key=keys.subkey("auto_unlock_at"),
                    mod_revision=request.stamp_revision,
                )
            )
        success = [_delete(keys.lock)]
        if lease:  # none: out of space, where a put would refuse the removal altogether
            record = wire.Put(key=keys.removal(uuid), value=removal.value().encode(), lease=lease)
            success.append(wire.Operation(put=record))
        return wire.Txn(compare=compare, success=success, failure=_who_and_why(keys, uuid))

    def _read_seen(self, request: Read, answer: wire.TxnAnswer) -> Seen:
        prefix = len(self._keys_of(request.name).lock[0])
        found = {kv.key[prefix:].decode(errors="replace"): kv for kv in _kvs(answer, 0)}
        token = found["uuid"].mod_revision if "uuid" in found else 0
        stamp = found["auto_unlock_at"].mod_revision if "auto_unlock_at" in found else 0
        values = {part: kv.value for part, kv in found.items()}
        holder = Holder.read(request.name, values, token) if found else None
        line = _kvs(answer, 1) if request.waiters else []
        tickets = [
            Ticket.read(request.name, _ticket_uuid(kv), kv.value, kv.create_revision)
            for kv in sorted(line, key=lambda each: each.create_revision)
        ]
        removal = None
        if request.uuid is not None and (records := _kvs(answer, 1 + request.waiters)):
            removal = Removal.read(request.name, request.uuid, records[0].value)
        return Seen(holder, stamp, tuple(tickets), removal, answer.header.revision)


# ---------------------------------------------------------------- small parts


def _absent(key: bytes) -> wire.Compare:
    return wire.Compare(target=wire.Compare.VERSION, key=key, version=0)


def _is(key: bytes, value: str | None) -> wire.Compare:
    return wire.Compare(target=wire.Compare.VALUE, key=key, value=(value or "").encode())


def _free_and_no_line(keys: LockKeys) -> list[wire.Compare]:
    # The order matters: etcd stops at the first comparison that fails, and the one over the range
    # costs as much as the line is long. Behind a held lock's uuid it costs nothing.
    no_line = wire.Compare(
        target=wire.Compare.CREATE, key=keys.line[0], range_end=keys.line[1], create_revision=0
    )
    return [_absent(keys.uuid), no_line]


def _puts(keys: LockKeys, holder: Holder) -> list[wire.Operation]:
    return [_put(keys.subkey(part), value) for part, value in holder.subkeys().items()]


def _put(key: bytes, value: str) -> wire.Operation:
    return wire.Operation(put=wire.Put(key=key, value=value.encode()))


def _get(key: bytes, revision: int = 0) -> wire.Operation:
    return wire.Operation(range=wire.Range(key=key, revision=revision))


def _delete(span: tuple[bytes, bytes]) -> wire.Operation:
    return wire.Operation(delete=wire.Delete(key=span[0], range_end=span[1]))


def _youngest(keys: LockKeys, limit: int, before: int = 0) -> wire.Operation:
    return wire.Operation(
        range=wire.Range(
            key=keys.line[0],
            range_end=keys.line[1],
            limit=limit,
            sort_order=wire.Range.DESCEND,
            sort_target=wire.Range.CREATE,
            max_create_revision=before - 1 if before else 0,
        )
    )


def _who_and_why(keys: LockKeys, uuid: str) -> list[wire.Operation]:
    return [_get(keys.uuid), _get(keys.removal(uuid))]


def _kvs(answer: wire.TxnAnswer, index: int) -> _Kvs:
    return list(answer.responses[index].range.kvs)


def _value(kvs: _Kvs) -> str | None:
    return kvs[0].value.decode(errors="replace") if kvs else None


def _ticket_uuid(kv: wire.KeyValue) -> str:
    return unquote(kv.key.rpartition(b"/")[2].decode(errors="replace"))


def _read_queued(answer: wire.TxnAnswer) -> Outcome:
    inner = answer.responses[0].txn
    revision = answer.header.revision
    if inner.succeeded:
        return Taken(_kvs(inner, 0)[0].mod_revision, earlier=True)
    holder, own, youngest = _kvs(inner, 1), _kvs(inner, 2)[0], _kvs(inner, 3)
    # Normally the two youngest tickets are the own one and its predecessor. After a second
    # sending others may have come behind: then the predecessor has to be looked up.
    last = youngest[0].key == own.key
    ahead = _ticket_uuid(youngest[1]) if last and len(youngest) > 1 else None
    return Queued(own.create_revision, ahead, _value(holder), revision, unsure=not last)


def _read_look(request: Look, answer: wire.TxnAnswer) -> Position:
    own, holder, third = _kvs(answer, 0), _kvs(answer, 1), _kvs(answer, 2)
    stands = bool(own) and own[0].create_revision == request.ticket_revision
    ahead, unsure = None, False
    if request.left_at is None:
        ahead = _ticket_uuid(third[0]) if third else None
    else:
        # The predecessor's ticket went and the uuid came in one transaction: it got the lock,
        # so nobody else is ahead. Anything else: it died or gave up, and somebody may be.
        unsure = not (
            _value(third) == request.predecessor and third[0].mod_revision == request.left_at
        )
    return Position(stands, ahead, _value(holder), answer.header.revision, unsure)


def _taken_or_refused(
    mine: str | None, holder: _Kvs, revision: int, ticket: bool = False
) -> Taken | Refused:
    if _value(holder) == mine:
        return Taken(holder[0].mod_revision, earlier=True)
    return Refused(_value(holder), revision, ticket)


def _gone(name: str, uuid: str, answer: wire.TxnAnswer, resent: bool) -> Gone:
    record = _kvs(answer, 1)
    removal = Removal.read(name, uuid, record[0].value) if record else None
    return Gone(_value(_kvs(answer, 0)), removal, resent)
