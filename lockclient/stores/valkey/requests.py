"""Requests of a mutex as plans (`Rounds.call`), and why they are safe in any order of arrival.

The algorithm is Redlock's. Each server gives a lock to the first uuid that asks for it, and to no
other uuid until that lock is deleted or its time is over. A uuid that has a majority of the servers
holds the lock. Two holders at once would both need the vote of one server. (Each push has a number,
higher than that of the push before.)

| step | what a server does | only if |
| --- | --- | --- |
| take | writes the lock, with an expiry | no uuid has it, and no tombstone names this try |
| push | writes the stamps, and the expiry again | own uuid; no push since the last known one |
| release | deletes it | own uuid |
| reclaim | writes it over the dead holder's | its uuid, and no later push than was read |
| removal | deletes it, with record and tombstone | its uuid, and no later push than was read |
| force-unlock | as a removal | its uuid |

**1. Time.** A holder starts its timer before it sends the take or the push. A server starts its own
timer when it executes the command, and that timer is 1 % longer. (The key stays for one more day,
`LATE_REQUEST_S`.) So the lock exists on the server at least until the holder's timer ends, if the
server's clock is at most 1 % fast. A majority that answers after the lock's time has given nothing.

**2. A failed try is withdrawn** on each server that was sent it. Each try of a uuid has a number,
and the command that withdraws the try names it. So that command may arrive late: it does not delete
a later try of the same acquisition. A server that did not answer gets a tombstone as well: tries up
to its number do nothing there, however late they arrive.

**3. Pushes.**

- Of two pushes at the same time, or a push and a removal, each server executes the first one, which
  changes the number, and refuses the other. So at most one of them gets a majority.
- A push that is confirmed just before the holder's deadline is safe: the new deadline counts from
  before the push was sent.
- A push that only a minority executes is not confirmed, and the deadline does not move. The next
  push has a higher number. So readers see that a server with only the unconfirmed push is not up to
  date, and a server that has the next push refuses the unconfirmed one if it arrives late.
- Another process that pushes for the same uuid uses other numbers, as numbers are the time in
  milliseconds (`keys.following`): unless both push within one millisecond, or their clocks differ
  by more than the time between their pushes. If the first of two pushes with one number reached
  only a minority, readers can't distinguish them, and read the later stamps.

**4. Removals.**

1. If only a minority executes a removal and a majority still names the holder, the removal has
   failed, and its records are deleted again.
2. Once no majority names the holder, the lock has ended. The records say who removed it: each
   server has the record of the remover that it served. If a majority has neither lock nor record,
   the holder released the lock.
3. Of two records the one on more servers wins; on equally many, the smaller one. Two removers that
   share a bare majority ask the same servers, so they agree on the winner.
4. The remover whose record lost replaces its own record by the winning one. No remover changes the
   winning record. So each later count has the same winner, and at least one record remains even if
   a remover crashes in between.
5. Exception: if each of two removers reached servers that the other did not reach, both may report
   success, or each may report that the other one removed the lock.

**5. A process that is killed** between take and answer leaves a lock as if it had been killed a
moment later. If it is killed in the middle of a take, it leaves some keys, which expire, because
*each* take has an expiry. For a lock that is never auto-unlocked a second round clears the expiry,
and the lock counts as taken only after a majority has cleared it. A process that is killed in this
round had a majority; when only a minority still has its key, the next taker deletes the key
(`Taking._purge_stale`). So the key need not expire, and a silent holder keeps its lock.

**6. Restored votes.** After a majority has confirmed a push, the holder writes the lock again, with
all its fields as of this push, to each server that answered this push with "the lock is free".
Otherwise a lock that is held for weeks would end when the third of five servers is patched, as a
restarted server may have forgotten each lock. A lock that another client had meanwhile stays lost:

1. A push counts only servers that still had the lock; a restored vote counts for later pushes.
2. A server restores the vote only before the end of the time that this push confirmed, by its own
   clock, which its answer reports. So a command that arrives late does nothing.
3. Until then no other client can have a majority (see *Time*), unless the lock was released or
   removed (see below).
4. The next push is confirmed by servers that had the lock all the time, or again before that end.
   After that end they gave the lock to nobody else, and they are a majority. So nobody else held
   the lock between the two pushes, and by induction over the pushes, since it was taken.

- *Removed:* a majority has the tombstone `all` and a record, and accepts no such vote any more; the
  others are no majority.
- *Released:* a server that has not answered gets a tombstone before its requests are forgotten. If
  a thread releases the lock while votes are restored, the release or `_restore_votes` withdraws
  them. A release by another process (a script's) may leave a server's vote until that expires.
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
        # If only a minority executed it, these refuse the next push with this number or a higher.
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
    # This adds to the dict, then reads `own.sent`. A release in another thread sets `own.sent` to
    # None, then reads the dict (`_deletion`). So at least one of them withdraws the votes.
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
        """Return whether no server removed it and no majority will, or it is known whether a
        majority still names a holder."""
        can_remove = count(answers, "dropped") or quorum.can_agree(answers, "dropped")
        return not can_remove or quorum.holder_named(uuid, answers)[0]

    def early(answers: Answers) -> bool:
        """Return whether a round need not wait for the other servers."""
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
