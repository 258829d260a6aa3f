"""Giving back votes: who holds a lock gets the vote of a server again that has lost it.

Servers are patched one after the other, and one that was restarted has forgotten each lock, also
those that are held for weeks: without this they would end with the third of five. So a push that a
majority has confirmed is followed by a take of its own on each server that has said to that very
push that nobody has the lock there. It stands there then with all its fields, as of that push.

**Why a lock that was another's meanwhile does not come back to life.** The push itself counts only
the servers that still had the lock: what it gives counts for the next one. Such a vote comes to
stand only before the time is over that this push has confirmed: by the clock of the server itself,
which has told its time with its answer, so that a request that arrives late does nothing. Until
then nobody else can have a majority (`requests`, 1), unless the lock was let go of or removed. So,
push by push, whoever has a majority now has had one all the time.

- *Removed:* a majority has the mark `all` and a record, and takes no such vote any more; what the
  others may still be given is no majority.
- *Released:* a server that has not answered has a mark before it is forgotten what it was sent; who
  releases at this very moment finds here that it did (`_settle`). A release by another process (a
  script's) may leave the vote of a server, until that expires.
- *Nobody's at that moment:* a server that has the lock of anybody, also of one who is only trying,
  gives nothing back; the next push asks again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.stores.requests import Push
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import number_of
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.voting.lock_view import seen
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.voting.rounds import Rounds, own_lock
from lockclient.stores.valkey.wire.broadcast import GRACE_S
from lockclient.stores.valkey.wire.connection import Command
from lockclient.stores.valkey.wire.server import Sent

_MAX_LATE_S: Final = 1.0
"""Seconds after a server's answer in which it gives a vote back, at most."""


def give_back(rounds: Rounds, request: Push, push: int, answers: Mapping[int, Reply]) -> None:
    """Give a lock back to servers that have lost it, after a majority has confirmed this push.

    It takes two rounds, of servers that have just answered: who does not at once, is late. What
    comes to nothing is tried again after the next push.
    """
    name, uuid, unlock_at = request.name, request.uuid, request.stamps.auto_unlock_at
    replies = {i: reply.rest for i, reply in answers.items() if reply.kind == "gone"}
    empty = {i: now for i, (holder, record, now) in replies.items() if not holder and not record}
    late_s = min(_MAX_LATE_S, _MAX_LATE_S if unlock_at is None else unlock_at - time.time())
    if not empty or late_s <= 0 or not (fields := _confirmed(rounds, request, push, answers)):
        return
    keys, own = rounds.keys, own_lock(request.delivery)
    before = own.take
    where = keys.server, keys.lock(name), keys.tombstone(name, uuid), keys.record(name, uuid)
    what = fields["take"], fields["expiry"], *(text for pair in fields.items() for text in pair)
    requests = {
        i: Sent(Command(lua_scripts.GIVE, where, (str(now + int(1000 * late_s)), *what)))
        for i, now in empty.items()
    }
    if before is not None:  # else another process has taken it, and releases it
        before.add(requests)
    rounds.servers.ask(requests, Deadline.after(GRACE_S), lambda said: len(said) == len(requests))
    if before is not None and own.take is not before:  # released meanwhile
        rounds.undo_queue.add(requests, rounds.drop(name, uuid, "all", tombstone=True))


def _confirmed(
    rounds: Rounds, request: Push, push: int, answers: Mapping[int, Reply]
) -> dict[str, str]:
    """Return the lock's fields as of this push, of one who has confirmed it; none: it is later."""
    having = [i for i, reply in answers.items() if reply.kind == "pushed"]
    command = rounds.views.read_command(request.name, whole=True)
    result = rounds.once(having, command, Deadline.after(GRACE_S), lambda said: len(said) > 0)
    for uuid, fields in seen(result.answers):
        said = {field: decoded(value) for field, value in fields.items()}
        numbers = {field: str(number_of(fields.get(field, b""))) for field in lua_scripts.NUMBERS}
        if uuid == request.uuid and numbers["push"] == str(push):
            return said | numbers
    return {}
