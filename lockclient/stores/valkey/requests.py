"""Mutex requests as rounds of votes; and why they are safe, in whatever order they arrive.

The algorithm is Redlock's. Each server gives a lock to whom it names first, and no other one until
that one lets go of it or its time is over; who has a majority has the lock. Two holders at once
would both have the vote of one server.

| step | what a server does | only if |
| --- | --- | --- |
| take | writes the lock, with an expiry | nobody has it there, and no mark names this try |
| push | writes the stamps, and the expiry again | own uuid; the number follows what was confirmed |
| release | deletes it | own uuid |
| reclaim | writes it over the dead one's | its uuid, and no later push than was seen |
| removal | deletes it, with record and mark | its uuid, and no later push than was seen |

**1. Time.** A holder counts its time from before it sent the take, or the push, and a server from
when it does it, a hundredth longer than the holder. So a lock stands in each server that gave it
for as long as the holder counts on it, if no server's clock gains more than that. A majority that
was so slow that the time was over before it had answered has given nothing.

**2. A try that fails is undone**, on all servers that were sent it. Each try of a uuid has a
number; what undoes it names that, so that it may come late itself and not harm the next try, which
the same acquisition makes a moment later. A server that did not answer gets a mark besides: tries
up to that number do nothing there, however late they arrive.

**3. Pushes.** Two at once, and a removal at the same time, are decided by each server alone: the
first changes the number, and the other is refused. A majority makes one of them true, and at most
one. A push that a minority did is not confirmed, and the holder's deadline stays where it was. So
is one at the very edge: its votes count from before it was sent. Its number is not used again: the
next push has a higher one, so that the servers that did the first one can't pass for up to date,
and one that arrives late changes nothing. Nor does another process use it that pushes for the same
uuid, though it may know nothing of it: numbers are the time in milliseconds (`keys.following`).
Only if two of them push within one, or by clocks that differ by more than the time between them,
and the first came to a minority alone, may the second be taken for it; of one number the later
stamps are what is read.

**4. A removal that a minority did** is not done as long as a majority names the holder; then its
records are deleted again. When no majority does any more, the lock is gone, and by whom is told by
the records: each server has that of who removed it there. What most of them have counts, and of two
that as many have the smaller one: two removers that share a bare majority between them see the same
servers and so agree on it. Who lost puts the other's record in place of its own, never anything in
place of the other's; so what has won goes on to win, whoever counts when, and one record at least
stands, also if one of them dies in between. Only if each of two saw servers that the other one did
not may both say that it was they, or both that it was the other. Where a majority has neither lock
nor record its holder has let go of it, and nobody has removed it.

**5. Who is killed** between take and answer leaves a lock as if it had been killed a moment later;
in the middle of a take it leaves some keys, which expire: *each* take has an expiry. That of a lock
that is never auto-unlocked is taken off in a second round, and only when a majority has done that
is the lock had. Whom it is taken off, and who is killed then, has had a majority: what a minority
has of it when that is gone is deleted by the next taker (`TakeExecutor._purge_stale`). So it need
not expire, and a silent holder that is never to be auto-unlocked does not lose it with time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, format_stamp
from lockclient.model.removal import Removal
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores.common.dispatch import dispatch
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Outcome,
    Position,
    ReadResult,
)
from lockclient.stores.requests import (
    Delivery,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    Take,
    Unlock,
    Withdraw,
    delivery_of,
)
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import (
    LATE_REQUEST_S,
    following,
    milliseconds,
    numbered,
    push_of,
    revision_of,
    token_of,
)
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.regrant import give_back
from lockclient.stores.valkey.take import ExpectedHolder, TakeExecutor
from lockclient.stores.valkey.voting.quorum import count
from lockclient.stores.valkey.voting.rounds import Rounds, own_lock
from lockclient.stores.valkey.wire.connection import Command

_RETENTION_MS: Final = milliseconds(RECORD_RETENTION_S)


class ValkeyRequestExecutor:
    """Does the requests of all acquisitions on one set of servers.

    Args:
        rounds: asks them.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._keys = rounds.keys
        self._quorum = rounds.quorum
        self._takes = TakeExecutor(rounds)
        self._views = rounds.views

    def do(self, request: Request, deadline: Deadline) -> Outcome:
        """Do a request.

        Raises:
            StoreUnavailable: no majority answered by the deadline.
            StoreError: no majority will, for reasons that trying again won't cure.
        """
        try:
            outcome: Outcome = dispatch(self, request, deadline)
        except ClusterMutexError:
            delivery_of(request).in_flight = False
            raise
        return outcome

    # ------------------------------------------------------------ getting it

    def take(self, request: Take, deadline: Deadline) -> Outcome:
        delivery = delivery_of(request)
        return self._takes.take(request.holder, ExpectedHolder(), delivery, deadline)

    def reclaim(self, request: Reclaim, deadline: Deadline) -> Outcome:
        previous = request.previous
        uuid, seen = previous.uuid or "", max(previous.stamp_revisions)
        if previous.fencing_token != token_of(uuid):
            uuid = "nobody's"
        # A push since then wins: it is not dead.
        expected = ExpectedHolder(uuid, str(push_of(seen)) if seen else "")
        return self._takes.take(request.holder, expected, delivery_of(request), deadline)

    # ------------------------------------------------------------ having it

    def push(self, request: Push, deadline: Deadline) -> Outcome:
        name, uuid, quorum, keys = request.name, request.uuid, self._quorum, self._keys
        own, sent = own_lock(request.delivery), Delivery()
        # A number that was tried may stand on some servers, with the stamps of then, or come to.
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
        answers = self._rounds.until_enough(command, deadline, quorum.decides("pushed"), sent)
        # Known now: it is confirmed, or who pushes next is told of a number that is no lower.
        if own.unconfirmed_push == number:  # else another push of ours is under way
            own.unconfirmed_push = 0
        if quorum.agrees(answers, "pushed"):
            pushed = [int(reply.rest[0]) for reply in answers.values() if reply.kind == "pushed"]
            give_back(self._rounds, request, max(pushed), answers)
            return Done(revision_of(uuid, max(pushed)))
        replies = (reply.rest[0] for reply in answers.values() if reply.kind == "moved")
        moved = [numbered(name, push) for push in replies]
        if moved and quorum.can_agree(answers, "pushed", "moved"):
            return Conflict(revision_of(uuid, max(moved)))
        return self._views.not_holder(name, uuid, answers, resent=sent.ambiguous)

    def unlock(self, request: Unlock, deadline: Deadline) -> Outcome:
        sent = Delivery()
        answers = self._delete_by_majority(request, sent, deadline)
        if len(answers) - count(answers, "dropped") < self._quorum.majority:
            return Done(0)
        return self._views.not_holder(request.name, request.uuid, answers, resent=sent.ambiguous)

    def withdraw(self, request: Withdraw, deadline: Deadline) -> Outcome:
        self._delete_by_majority(request, Delivery(), deadline)
        return Done(0)

    def _delete_by_majority(
        self, request: Unlock | Withdraw, delivery: Delivery, deadline: Deadline
    ) -> dict[int, Reply]:
        """Have a uuid's lock deleted by a majority; others that may have it do so later."""
        name, uuid, rounds = request.name, request.uuid, self._rounds
        tombstone = rounds.drop(name, uuid, "all", tombstone=True)
        own = own_lock(request.delivery)
        take = own.take
        if isinstance(request, Withdraw) and request.tombstone:
            drop, is_everywhere = tombstone, True
        else:
            drop = rounds.drop(name, uuid, "all")
            is_everywhere = take is None  # another process has taken it: maybe on any server
        settled = take.settled() if take is not None else set()
        answers = rounds.until_enough(drop, deadline, rounds.is_majority, delivery)
        own.take = None
        if is_everywhere:
            rounds.undo_queue.add({*rounds.all} - answers.keys(), tombstone)
        elif take is not None:
            for i in rounds.all:
                sent = take.requests.get(i, ())
                # After this answer a take may arrive yet, or a push give the vote back.
                owed = [one for one in sent if one not in settled] if i in answers else sent
                rounds.undo_queue.add_when_answered(i, owed, drop, tombstone)
        self._notify_waiters(name, uuid, answers)
        return answers

    def _notify_waiters(self, name: str, uuid: str, answers: Mapping[int, Reply]) -> None:
        """Tell who waits that it is free, where somebody listens; it is confirmed by now."""
        heard = {
            i: reply.rest[0]
            for i, reply in answers.items()
            if reply.kind == "dropped" and reply.rest[0]
        }
        if heard:
            said = f"{uuid} {max(heard.values())}"
            command = Command(lua_scripts.TELL, (), (self._keys.channel(name), said))
            self._rounds.once(heard, command, enough=lambda said: len(said) > 0)

    # ------------------------------------------------------------ reading, removing

    def get_position(self, request: GetPosition, deadline: Deadline) -> Outcome:
        command = self._views.read_command(request.name)
        # A poll for holders has no uuid: by its answer a lock is lost, for good.
        sure = not request.uuid
        answers = self._rounds.read(command, deadline, self._views.is_known, sure=sure)
        uuid, push = self._views.holder_and_push(answers)
        return Position(False, None, uuid, 0 if uuid is None else revision_of(uuid, push))

    def read(self, request: Read, deadline: Deadline) -> Outcome:
        command = self._views.read_command(request.name, request.uuid or "", whole=True)
        answers = self._rounds.read(command, deadline, self._views.is_known)
        holder = self._views.holder(request.name, answers, request.uuid or "")
        removal = None
        if request.uuid is not None:
            removal = self._views.record(request.name, request.uuid, answers)
        revision = 0 if holder is None else max(holder.stamp_revisions)
        warning = self._views.votes_text(request.name, answers)
        return ReadResult(holder, (), removal, revision, warning)

    def remove(self, request: Remove, deadline: Deadline) -> Outcome:
        name, uuid = request.removal.holder.name, request.removal.holder.uuid or ""
        seen, quorum, keys = request.stamp_revisions, self._quorum, self._keys
        record = request.removal.without_token().value() if request.recorded else ""
        push = "" if seen is None else str(push_of(max(seen)))
        command = Command(
            lua_scripts.REMOVE,
            (keys.server, keys.lock(name), keys.record(name, uuid), keys.tombstone(name, uuid)),
            (uuid, push, keys.channel(name), record, _RETENTION_MS, milliseconds(LATE_REQUEST_S)),
        )

        def enough(said: Mapping[int, Reply]) -> bool:
            impossible = not count(said, "dropped") and not quorum.can_agree(said, "dropped")
            return impossible or self._views.holder_named(uuid, said)[0]

        sent = Delivery()
        answers = self._rounds.until_enough(
            command,
            deadline,
            enough,
            sent,
            early=lambda said: quorum.agrees(said, "dropped") or quorum.agrees(said, "moved"),
        )
        held = self._views.holder_named(uuid, answers)[1] == uuid
        stands = b"" if held else self._views.winning_record(answers, record.encode())
        if quorum.agrees(answers, "dropped") or (record and stands == record.encode()):
            # Where it was not, a push may be giving it back.
            dropped = {i for i, reply in answers.items() if reply.kind == "dropped"}
            drop = self._rounds.drop(name, uuid, "all", tombstone=True)
            self._rounds.undo_queue.add({*self._rounds.all} - dropped, drop)
            self._notify_waiters(name, uuid, answers)
            return Done(0)
        if record:
            ours = {i for i, reply in answers.items() if _has(reply, record.encode())}
            # Another record of the removal in place of ours, or (empty) none.
            instead = (record, stands.decode(errors="replace"), _RETENTION_MS)
            undo = Command(lua_scripts.UNRECORD, (keys.record(name, uuid),), instead)
            self._rounds.undo_queue.add(ours, undo)
        removal = Removal.read(name, uuid, stands) if stands else None
        return NotHolder(self._views.holder_named(uuid, answers)[1], removal, sent.ambiguous)


def _has(reply: Reply, record: bytes) -> bool:
    """Tell whether a server has our record of a removal, by this sending or an earlier one."""
    return reply.kind == "dropped" or (reply.kind == "gone" and reply.rest[1] == record)
