"""Taking a lock: one try after the other, each of which has a majority or is undone.

Why that is safe is said at the top of `requests`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores.common.lifecycle import closed
from lockclient.stores.outcomes import Outcome, Refused, Taken
from lockclient.stores.requests import Delivery
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import (
    LATE_REQUEST_S,
    drifted,
    milliseconds,
    revision_of,
    token_of,
    written,
)
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.voting.lock_view import seen
from lockclient.stores.valkey.voting.quorum import GRANTED, count, decoded
from lockclient.stores.valkey.voting.rounds import (
    MIN_ROUND_S,
    ROUND_PAUSES_S,
    ROUND_TIMEOUT_S,
    Rounds,
    SentTake,
    own_lock,
)
from lockclient.stores.valkey.wire.broadcast import Round
from lockclient.stores.valkey.wire.connection import Command
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

_MAX_SPLITS: Final = 4
"""How often a take is tried again at once because several have taken votes from each other."""
_SPLIT_PAUSES: Final = (2.0, 1.0, 16.0)
"""Of such a pause: for as long as so many rounds take."""


EXPIRED_TEXT: Final = "It expired: no heartbeat for its whole time, by the servers' clocks."
"""Why a lock has gone that expired (`expire=1`), in its record."""


class ExpectedHolder(NamedTuple):
    """The holder whose lock may be taken over, at the heartbeat that was seen; empty: none."""

    uuid: str = ""
    push: str = ""


class StaleEntry(NamedTuple):
    """An entry on a server that is left from a finished try."""

    uuid: str
    take: str


class TakeExecutor:
    """Takes locks.

    Args:
        rounds: asks the servers.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._keys = rounds.keys
        self._quorum = rounds.quorum
        self._views = rounds.views
        self._longest = float(milliseconds(drifted(rounds.location.longest)))

    def take(
        self, holder: Holder, expected: ExpectedHolder, delivery: Delivery, deadline: Deadline
    ) -> Outcome:
        """Take a lock. Errors: see `ValkeyRequestExecutor.do`."""
        rounds, after = self._rounds, holder.auto_unlock_after
        if after is not None and after > rounds.location.longest:
            raise errors.silence_too_long(rounds.location, after)
        splits, undecided, stale = 0, 0, dict[int, StaleEntry]()
        pauses, split_pauses = Backoff(*ROUND_PAUSES_S), Backoff(*_SPLIT_PAUSES)
        while True:
            if rounds.servers.closed:
                raise closed(rounds.location)
            until = deadline.within(0.0, ROUND_TIMEOUT_S)
            outcome, result = self._try_once(holder, expected, delivery, until)
            if outcome is not None:
                return outcome
            stale = self._purge_stale(holder.name, result.answers, stale)
            if not self._quorum.can_agree(result.answers, *GRANTED):
                splits += 1
                if splits > _MAX_SPLITS or deadline.remaining() < MIN_ROUND_S or delivery.abandoned:
                    return Refused(None, 0)
                time.sleep(split_pauses.next() * rounds.servers.round_s)
                continue
            undecided += 1
            if undecided > _MAX_SPLITS and (refused := self._may_hold(result.answers)) is not None:
                return refused
            # What was sent is being undone, and can't do anything any more: nothing is unknown.
            error = errors.no_majority(rounds.location, result.failures, unknown=False)
            rounds.pause_or_raise(error, delivery, deadline, pauses)

    def _try_once(
        self, holder: Holder, expected: ExpectedHolder, delivery: Delivery, until: Deadline
    ) -> tuple[Outcome | None, Round]:
        """Try once; None: nobody has a majority, or too few have answered, and it is undone."""
        rounds, quorum, keys = self._rounds, self._quorum, self._keys
        name, uuid, after = holder.name, holder.uuid or "", holder.auto_unlock_after
        number, began = str(next(rounds.tries)), monotonic()
        lasts_s = rounds.location.longest if after is None else after
        expiry = milliseconds(drifted(lasts_s) + LATE_REQUEST_S)
        command = Command(
            lua_scripts.TAKE,
            (keys.server, keys.lock(name), keys.tombstone(name, uuid)),
            (uuid, number, expiry, *expected, *written(holder)),
        )
        delivery.in_flight = True
        result = rounds.once(rounds.all, command, until, quorum.decides(*GRANTED))
        answers = result.answers
        if rounds.location.expire:
            self._record_expired(name, answers)
        own = own_lock(delivery)
        own.take = take = own.take or SentTake()
        take.add(result.sent)
        lasts = after is None or drifted(monotonic() - began) < after
        if quorum.agrees(answers, *GRANTED) and lasts:
            if after is not None or self._persist(name, uuid, number, until):
                # As in `_purge_stale`; here the majority that was asked after that names us.
                for i, entry in self._stale_entries(answers).items():
                    rounds.undo_queue.add({i}, rounds.drop(name, entry.uuid, entry.take))
                by_earlier = count(answers, "had") > 0
                return Taken(token_of(uuid), by_earlier_send=by_earlier), result
            result.failures |= dict.fromkeys(rounds.all, VoteFailure("it did not keep the lock"))
            answers.clear()
        own.take = None
        self._undo(name, uuid, number, take)
        return self._refused(answers), result

    def _record_expired(self, name: str, answers: Mapping[int, Reply]) -> None:
        """Tell on record of a lock that a majority says has expired (`expire=1`), as they gave it.

        Of one of which fewer say so it is not known: its holder may have let go of it. If several
        ask at once, each may be told by a minority, and there is no record; nor is there if this
        user may not write any.
        """
        told = {i: Reply("seen", reply.rest) for i, reply in answers.items() if any(reply.rest)}
        told = {i: reply for i, reply in told.items() if answers[i].kind == "taken"}
        _, uuid = self._quorum.holder(uuid for uuid, _ in seen(told))
        holder = self._views.holder(name, told, uuid or "") if uuid is not None else None
        if uuid is None or holder is None:
            return
        by = f"taker@{socket.gethostname()}:{os.getpid()}"
        removal = Removal(holder, time.time(), by, AUTO_UNLOCK, EXPIRED_TEXT).without_token()
        key, value = self._keys.record(name, uuid), removal.value()
        how = value, milliseconds(RECORD_RETENTION_S)
        command = Command(lua_scripts.RECORD, (key,), how)
        self._rounds.once(self._rounds.all, command, enough=self._rounds.is_majority)
        log.warning("The lock %r has expired (expire=1): %s", name, removal.describe())

    def _refused(self, answers: Mapping[int, Reply]) -> Outcome | None:
        """Return who has it, if a majority says so."""
        if count(answers, "used_up"):
            return Refused(None, 0, uuid_spent=True)
        if self._quorum.can_agree(answers, *GRANTED):
            return None
        return _refused_by(self._quorum.holder(map(_holder, answers.values()))[1])

    def _may_hold(self, answers: Mapping[int, Reply]) -> Outcome | None:
        """Return who may have it, as far as the votes of a majority go; the others have failed."""
        if len(answers) < self._quorum.majority:
            return None
        return _refused_by(self._quorum.may_hold(map(_holder, answers.values())))

    def _purge_stale(
        self, name: str, answers: Mapping[int, Reply], before: Mapping[int, StaleEntry]
    ) -> dict[int, StaleEntry]:
        """Delete what is left of locks that are over, where this and the try before found it.

        Who let go of a lock while a server was away, and ended before that came back, has left it
        there; so has who was killed as it made a lock permanent. It would block the name for a day,
        or for ever. It is *stale* on that server if it was permanent, so that its try had a
        majority, or if its own time is over, so that its try can't be had any more. When a majority
        that was asked after that names somebody else or nobody, that try holds nothing: one server
        of its majority has let go of it. Hence two tries: within one, it may have been had between
        two answers. A later try of the same uuid has a higher number, and what is deleted names
        this one's.
        """
        stale = self._stale_entries(answers)
        for i, entry in stale.items():
            others = sum(_holder(reply) != entry.uuid for reply in answers.values())
            if before.get(i) == entry and others >= self._quorum.majority:
                self._rounds.once({i}, self._rounds.drop(name, entry.uuid, entry.take))
        return stale

    def _stale_entries(self, answers: Mapping[int, Reply]) -> dict[int, StaleEntry]:
        """Return by servers what may neither be in the middle of its take nor alive.

        A key that expires after more than `longest` has a day besides its own time; of others it
        is not known, and they expire by themselves.
        """
        stale: dict[int, StaleEntry] = {}
        for i, reply in answers.items():
            if reply.kind == "held":
                uuid, take, expiry, left = reply.rest
                lasts = int(expiry) if expiry.isdigit() else -1
                own_time_over = lasts > self._longest and left < 1000 * LATE_REQUEST_S
                if lasts == 0 or own_time_over:
                    stale[i] = StaleEntry(decoded(uuid), decoded(take))
        return stale

    def _persist(self, name: str, uuid: str, number: str, until: Deadline) -> bool:
        """Take the expiry off a lock that is never auto-unlocked."""
        keys = (self._keys.server, self._keys.lock(name))
        command = Command(lua_scripts.KEEP, keys, (uuid, number))
        rounds, decided = self._rounds, self._quorum.decides("kept")
        result = rounds.once(rounds.all, command, until, decided)
        return self._quorum.agrees(result.answers, "kept")

    def _undo(self, name: str, uuid: str, number: str, take: SentTake) -> None:
        """Leave nothing of a try: what was given is given back at once, the rest is queued."""
        rounds = self._rounds
        drop = rounds.drop(name, uuid, number)
        tombstone = rounds.drop(name, uuid, number, tombstone=True)
        given = take.given()
        result = rounds.once(given, drop)
        for i in take.requests.keys() - result.answers.keys():
            rounds.undo_queue.add_when_answered(i, take.requests[i], drop, tombstone)


def _holder(reply: Reply) -> str | None:
    """Return whom a server names that was asked for a lock, but for us."""
    return decoded(reply.rest[0]) if reply.kind == "held" else None


def _refused_by(holder: str | None) -> Refused | None:
    return None if holder is None else Refused(holder, revision_of(holder, 0))
