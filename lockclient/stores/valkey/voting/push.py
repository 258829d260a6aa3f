"""A push, and the votes that it restores. `requests` says what a server does for each, and when.

**The number of a push** is higher than that of the push before it. A push names the number that the
holder knows, and a server with a higher one refuses it.

- Of two pushes at the same time, or a push and a removal, each server executes the first one, which
  changes the number, and refuses the other. So at most one of them gets a majority.
- A push that is confirmed just before the holder's deadline is safe: the new deadline counts from
  before the push was sent.
- A push that only a minority executes is not confirmed, and the deadline does not move. The next
  push has a higher number. So readers see which servers have only the unconfirmed push, and a
  server that has the next push refuses the unconfirmed one if it arrives late.
- Numbers are the time in milliseconds (`keys.following`). So two processes that push for the same
  uuid use different numbers, unless both push within one millisecond, or their clocks differ by
  more than the time between their pushes. If the first of two pushes with one number reached only a
  minority, readers can't distinguish them, and read the later stamps.

**Restored votes.** A restarted server may have forgotten each lock. If nobody restored them, a lock
that is held for weeks would end when the third of five servers is patched. So after a majority has
confirmed a push, the holder writes the lock again to each server that answered this push with "the
lock is free". *The end* is when the lock's time, counted from this push, is over. If another client
has taken the lock, the holder does not get it back:

1. A push counts only servers that still had the lock; a restored vote counts for later pushes.
2. A server restores the vote only before the end, by its own clock, which its answer reports. So a
   command that arrives late does nothing.
3. Before the end no other client can have a majority (*Time* in `requests`), unless the lock was
   released or removed (see below).
4. Each server that confirms the next push had the lock all the time, or again before the end. After
   the end it gave the lock to nobody else. These servers are a majority. So nobody else held the
   lock between the two pushes. By induction over the pushes, nobody has since it was taken.

A restored vote does no harm if meanwhile

- *the lock was removed:* a majority has the tombstone `all` and a record, and accepts no such vote
  any more; the others are no majority.
- *another thread releases it:* the release or `_restore_votes` withdraws the restored votes. A
  server that has not answered gets a tombstone before its requests are forgotten.
- *another process (a script) releases it:* the server's vote may stay until it expires.
- *a server has a lock of any client,* also of one that is only trying: there nothing is restored;
  the next push asks again.
"""

from __future__ import annotations

import time
from typing import Final

from lockclient.model.clocks import Deadline, format_stamp
from lockclient.stores import request_types
from lockclient.stores.outcomes import Conflict, Done, Outcome
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import (
    following,
    number_of,
    push_of,
    push_to_follow,
    revision_of,
)
from lockclient.stores.valkey.lua_scripts import Answers, Command
from lockclient.stores.valkey.voting.quorum import decoded, locks, without_lock
from lockclient.stores.valkey.voting.rounds import OwnLock, Plan, Rounds, memory_of
from lockclient.stores.valkey.wire.broadcast import GRACE_S
from lockclient.stores.valkey.wire.server import Sent

_MAX_LATE_S: Final = 1.0
"""Seconds after its answer within which a server restores a vote."""


def push_plan(rounds: Rounds, request: request_types.Push) -> Plan[Outcome]:
    """Return the plan of a push, which restores votes when it is confirmed."""
    name, uuid, quorum, keys = request.name, request.uuid, rounds.quorum, rounds.keys
    own = memory_of(request.delivery)
    own_sent = own.sent
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
        # If only a minority executed it, the next push learns its number from `moved`.
        if own.unconfirmed_push == number:  # else another push of ours is in flight
            own.unconfirmed_push = 0
        if quorum.agrees(answers, "pushed"):
            pushed = max(map(int, _numbers(answers, "pushed")))
            _restore_votes(rounds, request, pushed, answers, own, own_sent)
            return Done(revision_of(uuid, pushed))
        moved = [push_to_follow(name, found) for found in _numbers(answers, "moved")]
        if moved and quorum.can_agree(answers, "pushed", "moved"):
            return Conflict(revision_of(uuid, max(moved)))
        return quorum.not_holder(name, uuid, answers, resent)

    return Plan(command, quorum.decides("pushed"), read)


def _numbers(answers: Answers, kind: str) -> list[bytes]:
    return [reply.rest[0] for reply in answers.values() if reply.kind == kind]


def _restore_votes(
    rounds: Rounds,
    request: request_types.Push,
    push: int,
    answers: Answers,
    own: OwnLock,
    own_sent: dict[int, list[Sent]] | None,
) -> None:
    """Restore a lock on servers that have lost it, after a majority has confirmed this push.

    It takes two short rounds, of servers that have just answered. The next push repeats what fails.

    Args:
        own_sent: `own.sent` from before the push; None: another process has taken the lock.
    """
    name, uuid, unlock_at = request.name, request.uuid, request.stamps.auto_unlock_at
    clocks = without_lock(answers)
    late_s = _MAX_LATE_S if unlock_at is None else min(_MAX_LATE_S, unlock_at - time.time())
    if not clocks or late_s <= 0 or not (fields := _confirmed(rounds, request, push, answers)):
        return
    keys = rounds.keys
    where = keys.server, keys.lock(name), keys.tombstone(name, uuid), keys.record(name, uuid)
    what = fields["take"], fields["expiry"], *(text for pair in fields.items() for text in pair)
    commands = {
        i: Command(lua_scripts.RESTORE_VOTE, where, (str(now + int(1000 * late_s)), *what))
        for i, now in clocks.items()
    }
    result = rounds.servers.ask(commands, Deadline.after(GRACE_S))
    if own_sent is None:
        return
    # This adds to the dict, then reads `own.sent`. A release in another thread sets `own.sent` to
    # None, then reads the dict (`requests._deletion`). So at least one of them withdraws the votes.
    for i, sent in result.sent.items():
        own_sent.setdefault(i, []).append(sent)
    if own.sent is not own_sent:  # released meanwhile
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
