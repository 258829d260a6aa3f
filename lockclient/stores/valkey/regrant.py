"""Restoring votes: a holder gets the vote of a server again that has lost its lock.

Servers are patched one after the other, and a restarted one may have forgotten each lock, also
locks that are held for weeks: without this they would end with the third server of five. So after a
majority has confirmed a push, each server that answered to that very push that the lock is free
gets it again, with all its fields as of that push.

**Why a lock that another client had meanwhile does not come back.** The push itself counts only the
servers that still had the lock; a restored vote counts for later pushes. It is written only before
the end of the time that this push confirmed, by the clock of the server itself, which its answer
reports, so a command that arrives late does nothing. Until then no other client can have a majority
(step 1 of `requests`), unless the lock was released or removed. So, push by push, a holder with a
majority had one all the time.

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
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.stores.requests import Push
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import number_of
from lockclient.stores.valkey.lua_scripts import Answers, Command
from lockclient.stores.valkey.voting.quorum import decoded, locks
from lockclient.stores.valkey.voting.rounds import OwnLock, Rounds
from lockclient.stores.valkey.wire.broadcast import GRACE_S
from lockclient.stores.valkey.wire.server import Sent

_MAX_LATE_S: Final = 1.0
"""The most seconds after a server's answer in which it restores a vote."""


def restore_votes(rounds: Rounds, request: Push, push: int, answers: Answers, own: OwnLock) -> None:
    """Restore a lock on servers that have lost it, after a majority has confirmed this push.

    It takes two short rounds, of servers that have just answered. The next push repeats what fails.
    """
    name, uuid, unlock_at = request.name, request.uuid, request.stamps.auto_unlock_at
    replies = {i: reply.rest for i, reply in answers.items() if reply.kind == "not_holder"}
    empty = {i: now for i, (holder, record, now) in replies.items() if not holder and not record}
    late_s = min(_MAX_LATE_S, _MAX_LATE_S if unlock_at is None else unlock_at - time.time())
    if not empty or late_s <= 0 or not (fields := _confirmed(rounds, request, push, answers)):
        return
    keys, before = rounds.keys, own.sent
    where = keys.server, keys.lock(name), keys.tombstone(name, uuid), keys.record(name, uuid)
    what = fields["take"], fields["expiry"], *(text for pair in fields.items() for text in pair)
    requests = {
        i: Sent(Command(lua_scripts.RESTORE_VOTE, where, (str(now + int(1000 * late_s)), *what)))
        for i, now in empty.items()
    }
    if before is not None:  # else another process has taken the lock, and releases it
        for i, sent in requests.items():
            before.setdefault(i, []).append(sent)
    until = Deadline.after(GRACE_S)
    rounds.servers.ask(requests, until, lambda restored: len(restored) == len(requests))
    if before is not None and own.sent is not before:  # released meanwhile
        rounds.undo_queue.add(requests, rounds.drop(name, uuid, "all", tombstone=True))


def _confirmed(rounds: Rounds, request: Push, push: int, answers: Answers) -> dict[str, str]:
    """Return the lock's fields as of this push, from a server that confirmed it; none: a later push
    was written since."""
    confirming = [i for i, reply in answers.items() if reply.kind == "pushed"]
    command = rounds.reading(request.name, whole=True)
    result = rounds.once(confirming, command, Deadline.after(GRACE_S), bool)
    for uuid, found in locks(result.answers):
        fields = {field: decoded(value) for field, value in found.items()}
        numbers = {field: str(number_of(found.get(field, b""))) for field in lua_scripts.NUMBERS}
        if uuid == request.uuid and numbers["push"] == str(push):
            return fields | numbers
    return {}
