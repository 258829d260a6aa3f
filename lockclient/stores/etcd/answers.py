"""Answers of etcd's transactions, read into the outcomes of a mutex's requests; no I/O.

Every transaction can be sent twice (answers get lost): it compares the uuid, and its else-branch
reads enough to tell what an earlier sending did.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from lockclient.model.clocks import format_stamp
from lockclient.model.holder import SUBKEYS, Found, Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores import outcomes, requests
from lockclient.stores.etcd.keys import segment_of
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.outcomes import Outcome

_Kvs = list[wire.KeyValue]
_GETTING: Final = (requests.Take, requests.TakeOrQueue, requests.Claim, requests.Reclaim)
_HAVING: Final = (requests.Unlock, requests.Push, requests.Remove)


def outcome_of(request: requests.Request, answer: wire.TxnAnswer, *, resent: bool) -> Outcome:
    """Return what the answer says; `resent`: an earlier sending may have happened."""
    if answer.succeeded and isinstance(request, _GETTING):
        return outcomes.Taken(answer.header.revision)
    if answer.succeeded and isinstance(request, _HAVING):
        return outcomes.Done(answer.header.revision)
    match request:
        case requests.Take() | requests.Reclaim():
            return _refused(request.holder.uuid, answer)
        case requests.Unlock():
            return _gone(request.name, request.uuid, answer, resent)
        case requests.Push():
            if _value(_kvs(answer, 0)) == request.uuid:
                return _read_late(request, answer)
            return _gone(request.name, request.uuid, answer, resent)
        case requests.TakeOrQueue():
            return _read_queued(answer)
        case requests.GetPosition():
            return _read_look(request, answer)
        case requests.Claim():
            return _refused(request.holder.uuid, answer, request.ticket_revision)
        case requests.Withdraw():
            return outcomes.Done(answer.header.revision)
        case requests.Read():
            return _read_seen(request, answer)
        case requests.Remove(removal=removal):
            gone = _gone(removal.holder.name, removal.holder.uuid or "", answer, resent)
            # The own record there already: an earlier sending of this request did it.
            record = removal.split_backtrace()[0].value()
            done = gone.removal is not None and gone.removal.value() == record
            return outcomes.Done(answer.header.revision) if done else gone


def _read_seen(request: requests.Read, answer: wire.TxnAnswer) -> outcomes.ReadResult:
    found: dict[str, Found] = {
        part: (kv.value, kv.mod_revision)
        for index, part in enumerate(SUBKEYS)
        for kv in _kvs(answer, index)
    }
    holder = Holder.read(request.name, found) if found else None
    line = _kvs(answer, len(SUBKEYS)) if request.waiters else []
    tickets = [
        Ticket.read(request.name, unquote(segment_of(kv.key)), kv.value, kv.create_revision)
        for kv in sorted(line, key=lambda ticket: ticket.create_revision)
    ]
    removal = None
    if request.uuid is not None and (records := _kvs(answer, len(SUBKEYS) + request.waiters)):
        removal = Removal.read(request.name, request.uuid, records[0].value)
    return outcomes.ReadResult(holder, tuple(tickets), removal, answer.header.revision)


def _kvs(answer: wire.TxnAnswer, index: int) -> _Kvs:
    return list(answer.responses[index].range.kvs)


def _value(kvs: _Kvs) -> str | None:
    return kvs[0].value.decode(errors="replace") if kvs else None


def _read_queued(answer: wire.TxnAnswer) -> Outcome:
    revision = answer.header.revision
    inner = answer.responses[0].txn
    if inner.succeeded:
        return outcomes.Taken(_kvs(inner, 0)[0].mod_revision, by_earlier_send=True)
    inner = inner.responses[0].txn
    if not inner.succeeded:
        return outcomes.Refused(None, revision, uuid_spent=True)
    holder, own, youngest = _kvs(inner, 1), _kvs(inner, 2)[0], _kvs(inner, 3)
    # Normally the two youngest tickets are the own one and its predecessor. After a second
    # sending others may have come behind: then the predecessor has to be looked up.
    last = youngest[0].key == own.key
    ahead = segment_of(youngest[1].key) if last and len(youngest) > 1 else None
    # etcd counts the whole range, whatever the request's limit.
    waiters = inner.responses[3].range.count
    return outcomes.Queued(own.create_revision, ahead, _value(holder), revision, not last, waiters)


def _read_look(request: requests.GetPosition, answer: wire.TxnAnswer) -> outcomes.Position:
    own, holder, third = _kvs(answer, 0), _kvs(answer, 1), _kvs(answer, 2)
    stands = bool(own) and own[0].create_revision == request.ticket_revision
    ahead, ambiguous = segment_of(third[0].key) if third else None, False
    if request.predecessor_deleted_at is not None:
        # The predecessor's ticket went and the uuid came in one transaction: it got the lock,
        # so nobody else is ahead. Anything else: it died or gave up, and somebody may be.
        got_it = bool(third) and third[0].mod_revision == request.predecessor_deleted_at
        ahead = None
        ambiguous = not (got_it and _value(third) == unquote(request.predecessor or ""))
    elif request.predecessor is not None:  # it may be another one by that name, that came later
        ambiguous = not third or third[0].create_revision > request.ticket_revision
    return outcomes.Position(stands, ahead, _value(holder), answer.header.revision, ambiguous)


def _refused(
    mine: str | None, answer: wire.TxnAnswer, ticket_revision: int | None = None
) -> outcomes.Taken | outcomes.Refused:
    holder = _kvs(answer, 0)
    if _value(holder) == mine:
        return outcomes.Taken(holder[0].mod_revision, by_earlier_send=True)
    ticket = _kvs(answer, 1) if ticket_revision is not None else []
    stands = bool(ticket) and ticket[0].create_revision == ticket_revision
    return outcomes.Refused(_value(holder), answer.header.revision, stands)


def _read_late(request: requests.Push, answer: wire.TxnAnswer) -> outcomes.Done | outcomes.Conflict:
    alert_at = _kvs(answer, 2)
    done = _value(alert_at) == format_stamp(request.stamps.alert_at)  # by an earlier sending
    return (outcomes.Done if done else outcomes.Conflict)(alert_at[0].mod_revision)


def _gone(name: str, uuid: str, answer: wire.TxnAnswer, resent: bool) -> outcomes.NotHolder:
    record = _kvs(answer, 1)
    removal = Removal.read(name, uuid, record[0].value) if record else None
    return outcomes.NotHolder(_value(_kvs(answer, 0)), removal, resent)
