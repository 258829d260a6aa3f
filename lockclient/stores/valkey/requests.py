"""What a mutex asks, as rounds of votes; and why they are safe, however they are ordered.

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

**Time.** A holder counts its time from before it sent the take, or the push, and a server from when
it does it, a hundredth longer than the holder. So a lock stands in each server that gave it for as
long as the holder counts on it, if no server's clock gains more than that. A majority that was so
slow that the time was over before it had answered has given nothing.

**A try that fails is undone**, on all servers that were sent it. Each try of a uuid has a number;
what undoes it names that, so that it may come late itself and not harm the next try, which the same
acquisition makes a moment later. A server that did not answer gets a mark besides: tries up to that
number do nothing there, however late they arrive.

**Pushes.** Two at once, and a removal at the same time, are decided by each server alone: the first
changes the number, and the other is refused. A majority makes one of them true, and at most one. A
push that a minority did is not confirmed, and the holder's deadline stays where it was. So is one
at the very edge: its votes count from before it was sent. Its number is not used again: the next
push has a higher one, so that the servers that did the first one can't pass for up to date, and one
that arrives late changes nothing. Nor does another process use it that pushes for the same uuid,
though it may know nothing of it: numbers are the time in milliseconds (`keys.following`). Only if
two of them push within one, or by clocks that differ by more than the time between them, and the
first came to a minority alone, may the second be taken for it; of one number the later stamps are
what is read.

**A removal that a minority did** is not done as long as a majority names the holder; then its
records are deleted again. When no majority does any more, the lock is gone, and by whom is told by
the records: each server has that of who removed it there. What most of them have counts, and of two
that as many have the smaller one: two removers that share a bare majority between them see the same
servers and so agree on it. Who lost puts the other's record in place of its own, never anything in
place of the other's; so what has won goes on to win, whoever counts when, and one record at least
stands, also if one of them dies in between. Only if each of two saw servers that the other one did
not may both say that it was they, or both that it was the other. Where a majority has neither lock
nor record its holder has let go of it, and nobody has removed it.

**Who is killed** between take and answer leaves a lock as if it had been killed a moment later; in
the middle of a take it leaves some keys, which expire: *each* take has an expiry. That of a lock
that is never auto-unlocked is taken off in a second round, and only when a majority has done that
is the lock had. Whom it is taken off, and who is killed then, has had a majority: what a minority
has of it when that is gone is deleted by the next taker (`Getting._clear`). So it need not expire,
and a silent holder that is never to be auto-unlocked does not lose it with time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, format_stamp
from lockclient.model.removal import Removal
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores.outcomes import Conflict, Done, NotHolder, Outcome, Position, ReadResult
from lockclient.stores.requests import (
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    RequestState,
    Take,
    Unlock,
    Withdraw,
)
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import (
    DAY,
    following,
    milliseconds,
    numbered,
    push_of,
    record_of,
    revision_of,
    token_of,
)
from lockclient.stores.valkey.take import Getting, Over
from lockclient.stores.valkey.voting.lock_view import Views
from lockclient.stores.valkey.voting.quorum import count
from lockclient.stores.valkey.voting.rounds import TRY, Own, Rounds
from lockclient.stores.valkey.wire.connection import Command, Reply

_RETENTION_MS: Final = milliseconds(RECORD_RETENTION_S)


class RequestExecutor:
    """Does the requests of all acquisitions on one set of servers."""

    def __init__(self, at: Rounds) -> None:
        self._at = at
        self._getting = Getting(at)
        self._views = Views(at.keys, at.quorum)

    def do(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do a request.

        Raises:
            StoreUnavailable: no majority answered by the deadline.
            StoreError: no majority will, for reasons that trying again won't cure.
        """
        request = sending.request
        step = _STEPS.get(type(request))
        if step is None:
            raise AssertionError(f"a store without a line was asked {request}")
        try:
            return step(self, request, sending, deadline)
        except ClusterMutexError:
            sending.in_flight = False
            raise

    # ------------------------------------------------------------ getting it

    def _take(self, request: Take, sending: RequestState, deadline: Deadline) -> Outcome:
        return self._getting.get(request.holder, Over(), sending, deadline)

    def _reclaim(self, request: Reclaim, sending: RequestState, deadline: Deadline) -> Outcome:
        previous = request.previous
        uuid, seen = previous.uuid or "", max(previous.stamp_revisions)
        if previous.fencing_token != token_of(uuid):
            uuid = "nobody's"
        # A push since then wins: it is not dead.
        over = Over(uuid, str(push_of(seen)) if seen else "")
        return self._getting.get(request.holder, over, sending, deadline)

    # ------------------------------------------------------------ having it

    def _push(self, request: Push, sending: RequestState, deadline: Deadline) -> Outcome:
        name, uuid, quorum = request.name, request.uuid, self._at.quorum
        # A number that was tried may stand on some servers, with the stamps of then, or come to.
        known = max(push_of(request.revision), self._at.tried.get(uuid, 0))
        number = self._at.tried[uuid] = following(known)
        alert_at, unlock_at = request.stamps
        call = Command(
            lua_scripts.PUSH,
            (self._at.keys.server, self._at.keys.lock(name), self._at.keys.record(name, uuid)),
            (
                *(uuid, str(known), str(number), format_stamp(alert_at)),
                "" if unlock_at is None else format_stamp(unlock_at),
            ),
        )
        answers = self._at.until_enough(
            lambda _: call, sending, deadline, lambda said: quorum.decided(said, "pushed")
        )
        # Known now: it is confirmed, or who pushes next is told of a number that is no lower.
        if self._at.tried.get(uuid) == number:  # else another push of ours is under way
            del self._at.tried[uuid]
        if quorum.agree(answers, "pushed"):
            pushed = [int(said.rest[0]) for said in answers.values() if said.kind == "pushed"]
            return Done(revision_of(uuid, max(pushed)))
        moved = [numbered(name, said.rest[0]) for said in answers.values() if said.kind == "moved"]
        if moved and quorum.can_agree(answers, "pushed", "moved"):
            return Conflict(revision_of(uuid, max(moved)))
        return self._views.gone(name, uuid, answers, resent=sending.ambiguous)

    def _unlock(self, request: Unlock, sending: RequestState, deadline: Deadline) -> Outcome:
        silent: set[int] = set()
        answers = self._let_go(request, sending, deadline, silent, mark=False)
        # Who was sent it before, and did not answer, has done it then.
        done = [
            i
            for i, said in answers.items()
            if said.kind == "dropped" or (i in silent and not any(said.rest))
        ]
        gone = len(answers) - len(done)
        if gone < self._at.quorum.majority:
            self._tell(request.name, request.uuid, answers)
            return Done(0)
        return self._views.gone(request.name, request.uuid, answers, resent=sending.ambiguous)

    def _withdraw(self, request: Withdraw, sending: RequestState, deadline: Deadline) -> Outcome:
        answers = self._let_go(request, sending, deadline, set(), mark=request.tombstone)
        self._tell(request.name, request.uuid, answers)
        return Done(0)

    def _let_go(
        self,
        request: Unlock | Withdraw,
        sending: RequestState,
        deadline: Deadline,
        silent: set[int],
        *,
        mark: bool,
    ) -> dict[int, Reply]:
        """Have a uuid's lock deleted by a majority; the others that may have it are owed that."""
        name, uuid = request.name, request.uuid
        own = self._at.own.get(uuid) or Own(frozenset(self._at.all), frozenset())

        call = self._at.drop(name, uuid, "all", mark=mark)
        marking = self._at.drop(name, uuid, "all", mark=True) if own.silent else call
        answers = self._at.until_enough(
            lambda i: marking if i in own.silent else call,
            *(sending, deadline, lambda said: len(said) >= self._at.quorum.majority, silent),
        )
        sent = frozenset(self._at.all) if mark else own.sent
        if owing := sent - answers.keys():
            self._at.debts.owe(owing, self._at.drop(name, uuid, "all", mark=True))
        self._at.own.pop(uuid, None)
        self._at.tried.pop(uuid, None)
        return answers

    def _tell(self, name: str, uuid: str, answers: Mapping[int, Reply]) -> None:
        """Tell who waits that it is free, where somebody listens; it is confirmed by now."""
        heard = [i for i, said in answers.items() if said.kind == "dropped" and said.rest[0]]
        if heard:
            call = Command(lua_scripts.TELL, (), (self._at.keys.channel(name), uuid), votes=False)
            self._at.servers.ask(
                dict.fromkeys(heard, call), Deadline.after(TRY), lambda said: len(said) > 0
            )

    # ------------------------------------------------------------ reading, removing

    def _look(self, request: GetPosition, sending: RequestState, deadline: Deadline) -> Outcome:
        call = self._views.call(request.name)
        # A holder's watch asks for nobody: by its answer a lock is lost, for good.
        sure = not request.uuid
        answers = self._at.read(call, sending, deadline, self._views.known, sure=sure)
        uuid, push = self._views.who(answers)
        return Position(False, None, uuid, 0 if uuid is None else revision_of(uuid, push))

    def _read(self, request: Read, sending: RequestState, deadline: Deadline) -> Outcome:
        call = self._views.call(request.name, request.uuid or "", whole=True)
        answers = self._at.read(call, sending, deadline, self._views.known)
        holder = self._views.holder(request.name, answers, request.uuid or "")
        removal = None
        if request.uuid is not None:
            removal = self._views.record(request.name, request.uuid, answers)
        at = 0 if holder is None else max(holder.stamp_revisions)
        return ReadResult(holder, (), removal, at, self._views.few(request.name, answers))

    def _remove(self, request: Remove, sending: RequestState, deadline: Deadline) -> Outcome:
        name, uuid = request.removal.holder.name, request.removal.holder.uuid or ""
        seen, quorum, keys = request.stamp_revisions, self._at.quorum, self._at.keys
        record = record_of(request.removal) if request.recorded else ""
        push = "" if seen is None else str(push_of(max(seen)))
        call = Command(
            lua_scripts.REMOVE,
            (keys.server, keys.lock(name), keys.record(name, uuid), keys.mark(name, uuid)),
            (uuid, push, keys.channel(name), record, _RETENTION_MS, milliseconds(DAY)),
        )

        def enough(said: Mapping[int, Reply]) -> bool:
            hopeless = not count(said, "dropped") and not quorum.can_agree(said, "dropped")
            return hopeless or self._views.whose(uuid, said)[0]

        answers = self._at.until_enough(
            *(lambda _: call, sending, deadline, enough),
            early=lambda said: quorum.agree(said, "dropped") or quorum.agree(said, "moved"),
        )
        held = self._views.whose(uuid, answers)[1] == uuid
        stands = b"" if held else self._views.removed_by(answers, record.encode())
        if quorum.agree(answers, "dropped") or (record and stands == record.encode()):
            left = {i for i in self._at.all if not _is_gone(answers.get(i))}
            self._at.debts.owe(left, self._at.drop(name, uuid, "all", mark=True))
            self._tell(name, uuid, answers)
            return Done(0)
        if record:
            ours = {i for i, said in answers.items() if _has(said, record.encode())}
            self._at.debts.owe(ours, self._instead(keys.record(name, uuid), record, stands))
        removal = Removal.read(name, uuid, stands) if stands else None
        return NotHolder(self._views.whose(uuid, answers)[1], removal, sending.ambiguous)

    @staticmethod
    def _instead(key: str, record: str, stands: bytes) -> Command:
        """Return what puts another record of a removal in place of ours, or (empty) none."""
        text = stands.decode(errors="replace")
        return Command(lua_scripts.UNRECORD, (key,), (record, text, _RETENTION_MS), votes=False)


def _has(said: Reply, record: bytes) -> bool:
    """Tell whether a server has our record of a removal, by this sending or an earlier one."""
    return said.kind == "dropped" or (said.kind == "gone" and said.rest[1] == record)


def _is_gone(said: Reply | None) -> bool:
    return said is not None and said.kind in ("dropped", "gone")


_STEPS: Final[
    dict[type[Request], Callable[[RequestExecutor, Any, RequestState, Deadline], Outcome]]
] = {
    Take: RequestExecutor._take,
    GetPosition: RequestExecutor._look,
    Reclaim: RequestExecutor._reclaim,
    Push: RequestExecutor._push,
    Unlock: RequestExecutor._unlock,
    Withdraw: RequestExecutor._withdraw,
    Read: RequestExecutor._read,
    Remove: RequestExecutor._remove,
}
