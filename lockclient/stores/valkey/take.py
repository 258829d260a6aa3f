"""Getting a lock: one try after the other, each of which is had or undone; see `steps`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Holder
from lockclient.stores.outcomes import Outcome, Refused, Taken
from lockclient.stores.requests import RequestState
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.errors import Trouble
from lockclient.stores.valkey.keys import DAY, drifted, milliseconds, revision_of, token_of, written
from lockclient.stores.valkey.voting.quorum import HAD, count, text
from lockclient.stores.valkey.voting.rounds import LEAST, PAUSES, TRY, Own, Rounds
from lockclient.stores.valkey.wire.broadcast import Round
from lockclient.stores.valkey.wire.connection import Command, Reply
from lockclient.threads.backoff import Backoff

_SPLITS: Final = 4
"""How often a take is tried again at once because several have taken votes from each other."""
_SPLIT_PAUSES: Final = (0.005, 0.003, 0.05)


class Over(NamedTuple):
    """Whose lock may be taken over, and at which push it was seen; empty: nobody's, at any."""

    uuid: str = ""
    push: str = ""


class Left(NamedTuple):
    """What a server has of a try that has nothing to come: whose, and which."""

    uuid: str
    take: str

    @classmethod
    def of(cls, held: Reply, longest: float) -> Left | None:
        """Read who has a lock there; None: it may be in the middle of its take, or alive.

        A key that expires after more than `longest` has a day besides its own time; of others it
        is not known, and they expire by themselves.
        """
        uuid, take, expiry, left = held.rest
        lasts = int(expiry) if expiry.isdigit() else -1
        own_time_over = lasts > longest and left < 1000 * DAY
        return cls(text(uuid), text(take)) if lasts == 0 or own_time_over else None


class Getting:
    """Takes locks.

    Args:
        at: how the servers are asked.
    """

    def __init__(self, at: Rounds) -> None:
        self._at = at
        self._longest = float(milliseconds(drifted(at.place.longest)))

    def get(
        self,
        holder: Holder,
        over: Over,
        sending: RequestState,
        deadline: Deadline,
    ) -> Outcome:
        """Take a lock. Errors: see `RequestExecutor.do`."""
        after = holder.auto_unlock_after
        if after is not None and after > self._at.place.longest:
            raise errors.too_long(self._at.place, after)
        splits, undecided, pauses = 0, 0, Backoff(*_SPLIT_PAUSES)
        waits, spent = Backoff(*PAUSES), dict[int, Left]()
        while True:
            if self._at.servers.closed:
                raise errors.closed(self._at.place)
            outcome, found = self._try(holder, over, sending, deadline.within(0.0, TRY))
            if outcome is not None:
                return outcome
            spent = self._clear(holder.name, found.answers, spent)
            if not self._at.quorum.can_agree(found.answers, *HAD):
                splits += 1
                if splits > _SPLITS or deadline.remaining() < LEAST or sending.abandoned:
                    return Refused(None, 0)
                time.sleep(pauses.next())
                continue
            undecided += 1
            if undecided > _SPLITS and (mine := self._may_hold(found.answers)) is not None:
                return mine
            # What was sent is being undone, and can't do anything any more: nothing is unknown.
            error = errors.no_majority(self._at.place, found.troubles, unknown=False)
            self._at.pause_or_raise(error, sending, deadline, waits)

    def _try(
        self, holder: Holder, over: Over, sending: RequestState, until: Deadline
    ) -> tuple[Outcome | None, Round]:
        """Try once; None: nobody has a majority, or too few have answered, and it is undone."""
        quorum = self._at.quorum
        name, uuid, after = holder.name, holder.uuid or "", holder.auto_unlock_after
        number, began = str(next(self._at.tries)), monotonic()
        expiry = self._expiry(after)
        call = Command(
            lua_scripts.TAKE,
            (self._at.keys.server, self._at.keys.lock(name), self._at.keys.mark(name, uuid)),
            (uuid, number, milliseconds(expiry), *over, *written(holder)),
        )
        sending.in_flight = True
        found = self._at.servers.ask(
            dict.fromkeys(self._at.all, call), until, lambda said: quorum.decided(said, *HAD)
        )
        sent = {i for i, said in found.answers.items() if said.kind in HAD} | found.silent
        silent = found.silent
        if (mine := self._at.own.get(uuid)) is not None:  # an earlier try has it
            sent |= mine.sent
            silent = silent | (mine.silent - set(found.answers))
        self._at.own[uuid] = Own(frozenset(sent), frozenset(silent))
        lasts = after is None or drifted(monotonic() - began) < after
        if quorum.agree(found.answers, *HAD) and lasts:
            if after is not None or self._keep(name, uuid, number, until):
                earlier = count(found.answers, "had") > 0
                # As in `_clear`; here the majority that was asked after that names us.
                for i, left in self._spent(found.answers).items():
                    self._at.debts.owe({i}, self._at.drop(name, left.uuid, left.take, mark=False))
                return Taken(token_of(uuid), by_earlier_send=earlier), found
            found.troubles |= dict.fromkeys(self._at.all, Trouble("it did not keep the lock"))
            found.answers.clear()
        self._undo(name, uuid, number)
        return self._refused(found.answers), found

    def _refused(self, answers: Mapping[int, Reply]) -> Outcome | None:
        """Return who has it, if a majority says so."""
        if count(answers, "used_up"):
            return Refused(None, 0, uuid_spent=True)
        if self._at.quorum.can_agree(answers, *HAD):
            return None
        _, holder = self._at.quorum.holder(_holder(said) for said in answers.values())
        return None if holder is None else Refused(holder, revision_of(holder, 0))

    def _may_hold(self, answers: Mapping[int, Reply]) -> Outcome | None:
        """Return who may have it, as far as the votes of a majority go; the others are away."""
        if len(answers) < self._at.quorum.majority:
            return None
        holder = self._at.quorum.may_hold(_holder(said) for said in answers.values())
        return None if holder is None else Refused(holder, revision_of(holder, 0))

    def _clear(
        self, name: str, answers: Mapping[int, Reply], before: Mapping[int, Left]
    ) -> dict[int, Left]:
        """Delete what is left of locks that are over, where this and the try before found it.

        Who let go of a lock while a server was away, and ended before that came back, has left it
        there; so has who was killed as it made a lock permanent. It would block the name for a day,
        or for ever. It is *spent* on that server if it was permanent, so that its try had a
        majority, or if its own time is over, so that its try can't be had any more. When a majority
        that was asked after that names somebody else or nobody, that try holds nothing: one server
        of its majority has let go of it. Hence two tries: within one, it may have been had between
        two answers. A later try of the same uuid has a higher number, and what is deleted names
        this one's.
        """
        spent = self._spent(answers)
        for i, left in spent.items():
            others = sum(_holder(said) != left.uuid for said in answers.values())
            if before.get(i) == left and others >= self._at.quorum.majority:
                call = self._at.drop(name, left.uuid, left.take, mark=False)
                self._at.servers.ask({i: call}, Deadline.after(TRY), bool)
        return spent

    def _spent(self, answers: Mapping[int, Reply]) -> dict[int, Left]:
        return {
            i: left
            for i, said in answers.items()
            if said.kind == "held" and (left := Left.of(said, self._longest)) is not None
        }

    def _expiry(self, after: float | None) -> float:
        if after is None:
            return drifted(self._at.place.longest) + DAY
        return drifted(after) + (0.0 if self._at.place.expire else DAY)

    def _keep(self, name: str, uuid: str, number: str, until: Deadline) -> bool:
        """Take the expiry off a lock that is never auto-unlocked."""
        call = Command(
            lua_scripts.KEEP, (self._at.keys.server, self._at.keys.lock(name)), (uuid, number)
        )
        found = self._at.servers.ask(
            dict.fromkeys(self._at.all, call),
            until,
            lambda said: self._at.quorum.decided(said, "kept"),
        )
        return self._at.quorum.agree(found.answers, "kept")

    def _undo(self, name: str, uuid: str, number: str) -> None:
        """Leave nothing of a try: what was given is given back at once, the rest is owed."""
        own = self._at.own.pop(uuid)
        given = own.sent - own.silent
        owed = set(own.silent)
        if given:
            call = self._at.drop(name, uuid, number, mark=False)
            done = self._at.servers.ask(
                dict.fromkeys(given, call),
                Deadline.after(TRY),
                lambda said: len(said) == len(given),
            )
            owed |= given - set(done.answers)
        self._at.debts.owe(owed, self._at.drop(name, uuid, number, mark=True))


def _holder(said: Reply) -> str | None:
    """Return whom a server names that was asked for a lock, but for us."""
    return text(said.rest[0]) if said.kind == "held" else None
