"""Requests of a mutex as plans (`Rounds.call`), and why they are safe in any order of arrival.

The algorithm is Redlock's. Each server gives a lock to the first uuid that asks, and to no other
one until that lock is deleted or its time is over; a uuid with a majority has the lock. Two holders
at once would both have the vote of one server.

| step | what a server does | only if |
| --- | --- | --- |
| take | writes the lock, with an expiry | no uuid has it, and no tombstone names this try |
| push | writes the stamps, and the expiry again | own uuid; the number follows the confirmed one |
| release | deletes it | own uuid |
| reclaim | writes it over the dead holder's | its uuid, and no later push than was read |
| removal | deletes it, with record and tombstone | its uuid, and no later push than was read |
| force-unlock | as a removal | its uuid |

**1. Time.** A holder starts its timer before it sends the take or the push. A server starts its own
timer when it executes the command, and that timer is 1 % longer. (The key exists for one day more,
`LATE_REQUEST_S`.) So a granted lock exists on the server at least until the holder's timer ends, if
the server's clock runs at most 1 % fast. A majority that answers after the lock's time is over has
given nothing.

**2. A failed try is withdrawn**, on all servers that were sent it. Each try of a uuid has a number,
and the command that withdraws it names that number, so it may arrive late without harm to the next
try of the same acquisition. A server that did not answer gets a tombstone as well: tries up to that
number do nothing there, however late they arrive.

**3. Pushes.** Each server alone decides between two pushes, or a push and a removal, at the same
time: the first changes the number, and the other is refused. At most one of them gets a majority. A
push that is confirmed just before the holder's deadline is safe, too: the new deadline counts from
before the push was sent. If only a minority executes a push, the push is not confirmed and the
holder's deadline does not move. The holder never reuses the number of an unconfirmed push; the next
push has a higher number. So readers do not take a server that executed only the unconfirmed push
for one that is up to date, and a server that has the next push refuses the late one. Another
process that pushes for the same uuid does not use the number either: numbers are the time in
milliseconds (`keys.following`). Two processes can use one number only if they push within one
millisecond, or if their clocks differ by more than the time between their pushes. If the first push
reached a minority only, readers then can't distinguish the two; of equal numbers the later stamps
are read.

**4. A removal on a minority** is not done as long as a majority names the holder; then its records
are deleted again. When no majority does any more, the lock has ended, and the records say who
removed it: each server has the record of its own remover. The record on most servers wins; of two
records on equally many servers the smaller one wins. Two removers that share a bare majority ask
the same servers, so they agree on the winner. The remover whose record lost replaces its own record
by the winning one. It never changes the winning record. So every later count gives the same winner,
and at least one record remains even if a remover crashes in between. Exception: if each of two
removers reached servers that the other did not reach, both may report success, or each may report
that the other one removed the lock. Where a majority has neither lock nor record, the holder
released it, and nobody removed it.

**5. A process that is killed** between take and answer leaves a lock as if it had been killed a
moment later; in the middle of a take it leaves some keys, which expire: *each* take has an expiry.
A second round removes the expiry of a lock that is never auto-unlocked; the lock is taken only when
a majority has removed it. If the process is killed then, it had a majority. The next taker deletes
keys of it that only a minority still has (`Taking._purge_stale`). So the key need not expire, and a
silent holder that is never to be auto-unlocked does not lose its lock with time.

**6. Restored votes.** Servers are patched one after the other, and a restarted one may have
forgotten each lock: without this a lock held for weeks would end with the third server of five. So
after a majority has confirmed a push, the holder writes the lock again, with all its fields as of
this push, to each server that answered this push with "the lock is free".

A lock that another client had meanwhile does not come back. The push itself counts only the servers
that still had the lock; a restored vote counts for later pushes. It is written only before the end
of the time that this push confirmed, by the clock of the server itself, which its answer reports,
so a command that arrives late does nothing. Until then no other client can have a majority (1),
unless the lock was released or removed. So, push by push, a holder with a majority had one all the
time.

- *Removed:* a majority has the tombstone `all` and a record, and accepts no such vote any more; the
  others are no majority.
- *Released:* a server that has not answered gets a tombstone before its requests are forgotten. A
  holder that releases at this very moment finds the restored votes here. A release by another
  process (a script's) may leave the vote of a server, until that expires.
- *Free at that moment:* a server that has the lock of any client, also of one that is only trying,
  restores nothing; the next push asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, format_stamp
from lockclient.model.removal import Removal
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores import request_types
from lockclient.stores.outcomes import Conflict, Done, NotHolder, Outcome, Position, ReadResult
from lockclient.stores.request_types import Delivery
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import (
    LATE_REQUEST_S,
    following,
    holder_of,
    milliseconds,
    number_of,
    push_of,
    push_to_follow,
    revision_of,
    token_of,
)
from lockclient.stores.valkey.lua_scripts import Answers, Command
from lockclient.stores.valkey.take import Replaceable, Taking
from lockclient.stores.valkey.voting.quorum import (
    count,
    decoded,
    locks,
    record_of,
    with_record,
    without_lock,
)
from lockclient.stores.valkey.voting.rounds import SETTLED_ROUNDS, OwnLock, Plan, Rounds
from lockclient.stores.valkey.wire.broadcast import GRACE_S

_RETENTION_MS: Final = milliseconds(RECORD_RETENTION_S)
_MAX_LATE_S: Final = 1.0
"""The most seconds after a server's answer in which it restores a vote."""


def do(rounds: Rounds, request: request_types.Request, deadline: Deadline) -> Outcome:
    """Do a request. Errors: see `Rounds.call`."""
    if not isinstance(request, request_types.Take | request_types.Reclaim):
        plan: Plan[Outcome] = PLANS[type(request)](rounds, request)
        return rounds.call(plan, deadline)
    delivery = request.delivery or Delivery()
    replaceable = Replaceable("", "")
    if isinstance(request, request_types.Reclaim):
        replaceable = _reclaimed(request)
    try:
        return Taking(rounds, request.holder, replaceable, delivery).run(deadline)
    except ClusterMutexError:
        delivery.in_flight = False
        raise


def _reclaimed(request: request_types.Reclaim) -> Replaceable:
    """Return the holder whose lock may be taken over."""
    previous = request.previous
    uuid, seen = previous.uuid or "", max(previous.stamp_revisions)
    if previous.fencing_token != token_of(uuid):
        uuid = "another store's"  # no holder has it
    # A later push wins: the holder is not dead.
    return Replaceable(uuid, str(push_of(seen)) if seen else "")


def _memory(delivery: Delivery | None) -> OwnLock:
    """Return the store's memory of an acquisition; of another process's (None) it has none."""
    if delivery is None:
        return OwnLock()
    own: OwnLock = delivery.memory or OwnLock()
    delivery.memory = own
    return own


# ---------------------------------------------------------------- holding


def _push(rounds: Rounds, request: request_types.Push) -> Plan[Outcome]:
    name, uuid, quorum, keys = request.name, request.uuid, rounds.quorum, rounds.keys
    own = _memory(request.delivery)
    # Servers may have the number of an unconfirmed push, with its stamps, or get it later.
    known = max(push_of(request.revision), own.unconfirmed_push)
    number = own.unconfirmed_push = following(known)
    alert_at, unlock_at = request.stamps
    command = Command(
        lua_scripts.PUSH,
        (keys.server, keys.lock(name), keys.record(name, uuid)),
        (
            uuid,
            str(known),
            str(number),
            format_stamp(alert_at),
            "" if unlock_at is None else format_stamp(unlock_at),
        ),
    )

    def read(answers: Answers, resent: bool) -> Outcome:
        # A majority has confirmed it, or the next push is answered with a number at least as high.
        if own.unconfirmed_push == number:  # else another push of ours is in flight
            own.unconfirmed_push = 0
        if quorum.agrees(answers, "pushed"):
            pushed = max(map(int, _numbers(answers, "pushed")))
            _restore_votes(rounds, request, pushed, answers, own)
            return Done(revision_of(uuid, pushed))
        moved = [push_to_follow(name, found) for found in _numbers(answers, "moved")]
        if moved and quorum.can_agree(answers, "pushed", "moved"):
            return Conflict(revision_of(uuid, max(moved)))
        return quorum.not_holder(name, uuid, answers, resent)

    return Plan(command, quorum.decides("pushed"), read)


def _numbers(answers: Answers, kind: str) -> list[bytes]:
    return [reply.rest[0] for reply in answers.values() if reply.kind == kind]


def _restore_votes(
    rounds: Rounds, request: request_types.Push, push: int, answers: Answers, own: OwnLock
) -> None:
    """Restore a lock on servers that have lost it, after a majority has confirmed this push.

    It takes two short rounds, of servers that have just answered. The next push repeats what fails.
    """
    name, uuid, unlock_at = request.name, request.uuid, request.stamps.auto_unlock_at
    empty = without_lock(answers)
    late_s = min(_MAX_LATE_S, _MAX_LATE_S if unlock_at is None else unlock_at - time.time())
    if not empty or late_s <= 0 or not (fields := _confirmed(rounds, request, push, answers)):
        return
    keys, requests_before = rounds.keys, own.sent
    where = keys.server, keys.lock(name), keys.tombstone(name, uuid), keys.record(name, uuid)
    what = fields["take"], fields["expiry"], *(text for pair in fields.items() for text in pair)
    commands = {
        i: Command(lua_scripts.RESTORE_VOTE, where, (str(now + int(1000 * late_s)), *what))
        for i, now in empty.items()
    }
    result = rounds.servers.ask(commands, Deadline.after(GRACE_S))
    if requests_before is None:  # another process has taken the lock, and releases it
        return
    for i, sent in result.sent.items():
        requests_before.setdefault(i, []).append(sent)
    if own.sent is not requests_before:  # released meanwhile
        rounds.retry_queue.add(commands, rounds.drop(name, uuid, "all", tombstone=True))


def _confirmed(
    rounds: Rounds, request: request_types.Push, push: int, answers: Answers
) -> dict[str, str]:
    """Return the lock's fields as of this push, from a server that confirmed it.

    The result is empty if a later push was written since.
    """
    confirming = [i for i, reply in answers.items() if reply.kind == "pushed"]
    command = rounds.reading(request.name, whole=True)
    commands = dict.fromkeys(confirming, command)
    result = rounds.servers.ask(commands, Deadline.after(GRACE_S), bool)
    for uuid, found in locks(result.answers):
        fields = {field: decoded(value) for field, value in found.items()}
        numbers = {field: str(number_of(found.get(field, b""))) for field in lua_scripts.NUMBERS}
        if uuid == request.uuid and numbers["push"] == str(push):
            return fields | numbers
    return {}


def _unlock(rounds: Rounds, request: request_types.Unlock) -> Plan[Outcome]:
    delete = _deletion(rounds, request, with_tombstone=False)

    def read(answers: Answers, resent: bool) -> Outcome:
        delete.read(answers, resent)
        if len(answers) - count(answers, "dropped") < rounds.quorum.majority:
            return Done(0)
        return rounds.quorum.not_holder(request.name, request.uuid, answers, resent)

    return Plan(delete.command, delete.enough, read)


def _withdraw(rounds: Rounds, request: request_types.Withdraw) -> Plan[Outcome]:
    return _deletion(rounds, request, with_tombstone=request.tombstone)


def _deletion(
    rounds: Rounds, request: request_types.Unlock | request_types.Withdraw, *, with_tombstone: bool
) -> Plan[Outcome]:
    """Return the plan that a majority deletes a uuid's lock; other servers do so later."""
    name, uuid, own = request.name, request.uuid, _memory(request.delivery)
    tombstone = rounds.drop(name, uuid, "all", tombstone=True)
    drop = tombstone if with_tombstone else rounds.drop(name, uuid, "all")
    sent_to = own.sent
    # Answered takes can't arrive after this request.
    settled = {
        one
        for requests in list((sent_to or {}).values())  # a push may add some meanwhile
        for one in requests
        if one.answer and not one.unanswered
    }

    def read(answers: Answers, _resent: bool) -> Outcome:
        own.sent = None
        if with_tombstone or sent_to is None:  # another process took it, on any servers
            rounds.retry_queue.add({*rounds.all} - answers.keys(), tombstone)
        else:
            for i in rounds.all:
                sent = sent_to.get(i, ())
                # After this answer a take may arrive, or a push restore the vote.
                pending = [one for one in sent if one not in settled] if i in answers else sent
                rounds.retry_queue.add_when_answered(i, pending, drop, tombstone)
        _publish(rounds, name, uuid, answers)
        return Done(0)

    return Plan(drop, rounds.is_majority, read)


def _publish(rounds: Rounds, name: str, uuid: str, answers: Answers) -> None:
    """Publish a confirmed release on the servers that have subscribers."""
    listening = {
        i: reply.rest[0]
        for i, reply in answers.items()
        if reply.kind == "dropped" and reply.rest[0]
    }
    if listening:
        message = f"{uuid} {max(listening.values())}"
        command = Command(lua_scripts.PUBLISH, (), (rounds.keys.channel(name), message))
        rounds.servers.ask(dict.fromkeys(listening, command), enough=bool)


# ---------------------------------------------------------------- others' locks


def _get_position(rounds: Rounds, request: request_types.GetPosition) -> Plan[Outcome]:
    quorum = rounds.quorum

    def read(answers: Answers, _resent: bool) -> Outcome:
        uuid, push = quorum.holder_and_push(answers)
        return Position(False, None, uuid, 0 if uuid is None else revision_of(uuid, push))

    # A holder's poll passes no uuid. Its answer may end the held lock for good, so a majority that
    # has not decided never counts as an answer.
    settled = SETTLED_ROUNDS if request.uuid else inf
    return Plan(rounds.reading(request.name), quorum.is_known, read, settled=settled)


def _read(rounds: Rounds, request: request_types.Read) -> Plan[Outcome]:
    name, uuid, quorum = request.name, request.uuid, rounds.quorum

    def read(answers: Answers, _resent: bool) -> Outcome:
        holder = holder_of(name, quorum.latest_fields(answers, uuid or ""))
        removal = None if uuid is None else record_of(name, uuid, answers)
        revision = 0 if holder is None else max(holder.stamp_revisions)
        return ReadResult(holder, (), removal, revision, quorum.votes_text(name, answers))

    command = rounds.reading(name, uuid or "", whole=True)
    return Plan(command, quorum.is_known, read, settled=SETTLED_ROUNDS)


def _remove(rounds: Rounds, request: request_types.Remove) -> Plan[Outcome]:
    holder, quorum, keys = request.removal.holder, rounds.quorum, rounds.keys
    name, uuid, seen = holder.name, holder.uuid or "", request.stamp_revisions
    record = request.removal.without_token().value() if request.recorded else ""
    push = "" if seen is None else str(push_of(max(seen)))
    command = Command(
        lua_scripts.REMOVE,
        (keys.server, keys.lock(name), keys.record(name, uuid), keys.tombstone(name, uuid)),
        (uuid, push, keys.channel(name), record, _RETENTION_MS, milliseconds(LATE_REQUEST_S)),
    )

    def enough(answers: Answers) -> bool:
        can_remove = count(answers, "dropped") or quorum.can_agree(answers, "dropped")
        return not can_remove or quorum.holder_named(uuid, answers)[0]

    def early(answers: Answers) -> bool:
        return quorum.agrees(answers, "dropped") or quorum.agrees(answers, "moved")

    def read(answers: Answers, resent: bool) -> Outcome:
        current = quorum.holder_named(uuid, answers)[1]
        winner = b"" if current == uuid else quorum.winning_record(answers, record.encode())
        if quorum.agrees(answers, "dropped") or (record and winner == record.encode()):
            # A push may restore the votes of the others.
            dropped = {i for i, reply in answers.items() if reply.kind == "dropped"}
            drop = rounds.drop(name, uuid, "all", tombstone=True)
            rounds.retry_queue.add({*rounds.all} - dropped, drop)
            _publish(rounds, name, uuid, answers)
            return Done(0)
        if record:
            instead = (record, winner.decode(errors="replace"), _RETENTION_MS)
            replace = Command(lua_scripts.REPLACE_RECORD, (keys.record(name, uuid),), instead)
            rounds.retry_queue.add(with_record(answers, record.encode()), replace)
        removal = Removal.read(name, uuid, winner) if winner else None
        return NotHolder(current, removal, resent)

    return Plan(command, enough, read, early=early)


PLANS: Final[Mapping[type[request_types.Request], Callable[[Rounds, Any], Plan[Outcome]]]] = {
    request_types.Push: _push,
    request_types.Unlock: _unlock,
    request_types.Withdraw: _withdraw,
    request_types.GetPosition: _get_position,
    request_types.Read: _read,
    request_types.Remove: _remove,
}
"""Plans by requests; a take or reclaim makes a new command for each try: `Taking`."""
