"""Taking a lock: each try gets a majority or is withdrawn. `requests` says why that is safe."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores.common.store_lifecycle import closed
from lockclient.stores.outcomes import Outcome, Refused, Taken
from lockclient.stores.request_types import Delivery
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import (
    LATE_REQUEST_S,
    drifted,
    holder_of,
    milliseconds,
    revision_of,
    token_of,
)
from lockclient.stores.valkey.lua_scripts import Answers, Command, Reply
from lockclient.stores.valkey.voting.quorum import GRANTED, count, decoded, locks
from lockclient.stores.valkey.voting.retry_queue import is_granted
from lockclient.stores.valkey.voting.rounds import (
    MIN_ROUND_S,
    ROUND_PAUSES_S,
    OwnLock,
    Rounds,
)
from lockclient.stores.valkey.wire.broadcast import ROUND_TIMEOUT_S, Round
from lockclient.stores.valkey.wire.server import Sent
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

_MAX_SPLIT_TRIES: Final = 4
"""After more tries with a split vote, in which no taker can get a majority, the take is refused."""
_MAX_UNDECIDED_TRIES: Final = 4
"""After more tries in which too few servers answered, the take is refused, and names the uuid that
may hold the lock."""
_SPLIT_PAUSES: Final = (2.0, 1.0, 16.0)
"""Arguments of `Backoff` for the pauses before retries after a split vote; unit: `round_s`."""
EXPIRED_TEXT: Final = "It expired: no heartbeat for its whole time, by the servers' clocks."
"""The reason in the record of a lock that expired (`expire=1`)."""


Entry = tuple[str, str]
"""The uuid and the number of the try that wrote a lock's key on a server."""


class Replaceable(NamedTuple):
    """The holder that a take may replace.

    Attributes:
        uuid: its uuid; empty: the take may replace no holder.
        push: its last known push; empty: any push of the holder is accepted.
    """

    uuid: str
    push: str


@dataclass(eq=False, slots=True)
class Taking:
    """One take of a lock.

    Attributes:
        rounds: asks the servers.
        holder: the record to write.
        replaceable: the holder that the take may replace.
        delivery: of the acquisition.
    """

    rounds: Rounds
    holder: Holder
    replaceable: Replaceable
    delivery: Delivery

    def run(self, deadline: Deadline) -> Outcome:
        """Try until a majority decides. Errors: see `Rounds.call`."""
        rounds, quorum, after = self.rounds, self.rounds.quorum, self.holder.auto_unlock_after
        if after is not None and after > rounds.location.longest:
            raise errors.silence_too_long(rounds.location, after)
        splits, undecided, stale = 0, 0, dict[int, Entry]()
        pauses = split_pauses = None
        while True:
            if rounds.servers.closed:
                raise closed(rounds.location)
            outcome, result = self._try_once(deadline.within(0.0, ROUND_TIMEOUT_S))
            if outcome is not None:
                return outcome
            answers = result.answers
            stale = self._purge_stale(answers, stale)
            if not quorum.can_agree(answers, *GRANTED):
                splits += 1
                has_time = deadline.remaining() >= MIN_ROUND_S
                if splits > _MAX_SPLIT_TRIES or not has_time or self.delivery.is_given_up:
                    return Refused(None, 0)
                split_pauses = split_pauses or Backoff(*_SPLIT_PAUSES)
                time.sleep(split_pauses.next() * rounds.servers.round_s)
                continue
            undecided += 1
            if undecided > _MAX_UNDECIDED_TRIES and len(answers) >= quorum.majority:
                may_hold = quorum.may_hold(map(_holder, answers.values()))
                if may_hold is not None:  # with the missing servers' votes
                    return Refused(may_hold, revision_of(may_hold, 0))
            # Each failed try is withdrawn, at once or by the retry queue: no outcome is unknown.
            error = errors.no_majority(rounds.location, result.failures, unknown=False)
            pauses = pauses or Backoff(*ROUND_PAUSES_S)
            rounds.pause_or_raise(error, deadline, pauses, is_given_up=self.delivery.is_given_up)

    def _try_once(self, until: Deadline) -> tuple[Outcome | None, Round]:
        """Try once. Return None if no majority gave or refused it; then the try is withdrawn."""
        rounds, holder, after = self.rounds, self.holder, self.holder.auto_unlock_after
        keys, name, uuid = rounds.keys, holder.name, holder.uuid or ""
        number, began = str(next(rounds.tries)), monotonic()
        lifetime = drifted(rounds.location.longest if after is None else after) + LATE_REQUEST_S
        subkeys = chain.from_iterable(holder.subkeys().items())
        take = Command(
            lua_scripts.TAKE,
            (keys.server, keys.lock(name), keys.tombstone(name, uuid)),
            (uuid, number, milliseconds(lifetime), *self.replaceable, *subkeys),
        )
        self.delivery.in_flight = True
        commands = dict.fromkeys(rounds.all, take)
        result = rounds.servers.ask(commands, until, rounds.quorum.decides_take)
        answers = result.answers
        if rounds.location.expire:
            self._record_expired(answers)
        own = self.delivery.memory = self.delivery.memory or OwnLock()
        # Keep a reference of our own: a withdrawal in another thread may read `own.sent` at any
        # time, and set it to None when nothing is left to withdraw.
        sent = own.sent = own.sent or {}
        for i, request in result.sent.items():
            sent.setdefault(i, []).append(request)
        is_in_time = after is None or drifted(monotonic() - began) < after
        granted = count(answers, *GRANTED)
        if granted >= rounds.quorum.majority and is_in_time:
            if after is not None or self._persist(number, until):
                if granted < len(answers):
                    # Delete stale keys of other uuids without a second try: the majority that has
                    # just granted this take names this holder, so those uuids hold nothing.
                    for i, entry in self._stale_entries(answers).items():
                        rounds.retry_queue.add({i}, rounds.drop(name, *entry))
                was_taken = count(answers, "already_taken") > 0
                return Taken(token_of(uuid), was_taken), result
            result.failures |= dict.fromkeys(rounds.all, VoteFailure("it did not keep the lock"))
            answers.clear()  # as if no server had answered: the caller tries again
        own.sent = None  # the next lines withdraw these requests
        self._withdraw(sent, number)
        return self._refused(answers), result

    def _refused(self, answers: Answers) -> Outcome | None:
        """Return the holder, if a majority names it."""
        quorum = self.rounds.quorum
        if count(answers, "uuid_spent"):
            return Refused(None, 0, uuid_spent=True)
        if quorum.can_agree(answers, *GRANTED):
            return None
        holder = quorum.holder(map(_holder, answers.values()))[1]
        return None if holder is None else Refused(holder, revision_of(holder, 0))

    def _persist(self, number: str, until: Deadline) -> bool:
        """Remove the expiry of a lock that is never auto-unlocked."""
        rounds, keys = self.rounds, self.rounds.keys
        where, uuid = (keys.server, keys.lock(self.holder.name)), self.holder.uuid or ""
        command = Command(lua_scripts.PERSIST, where, (uuid, number))
        decided, commands = rounds.quorum.decides("persisted"), dict.fromkeys(rounds.all, command)
        result = rounds.servers.ask(commands, until, decided)
        return rounds.quorum.agrees(result.answers, "persisted")

    def _withdraw(self, requests: Mapping[int, list[Sent]], number: str) -> None:
        """Withdraw a try: at once where it was granted, else in the background."""
        rounds, name, uuid = self.rounds, self.holder.name, self.holder.uuid or ""
        drop = rounds.drop(name, uuid, number)
        tombstone = rounds.drop(name, uuid, number, tombstone=True)
        granted = [i for i, sent in requests.items() if any(map(is_granted, sent))]
        result = rounds.servers.ask(dict.fromkeys(granted, drop))
        for i in requests.keys() - result.answers.keys():
            rounds.retry_queue.add_when_answered(i, requests[i], drop, tombstone)

    # ------------------------------------------------------------ locks that have ended

    def _record_expired(self, answers: Answers) -> None:
        """Write the record of a lock of which a majority reports that it has expired (`expire=1`).

        If only a minority reports that, the holder may have released the lock, and no record is
        written. So there is no record either if several takers ask at once and each gets the report
        from a minority. Nor is there one if this user has no right to write it.
        """
        expired = {  # as replies to `READ`, for `locks`
            i: Reply("read", reply.rest)
            for i, reply in answers.items()
            if reply.kind == "taken" and any(reply.rest)
        }
        rounds, name = self.rounds, self.holder.name
        _, uuid = rounds.quorum.holder(uuid for uuid, _ in locks(expired))
        holder = holder_of(name, rounds.quorum.latest_fields(expired, uuid or ""))
        if uuid is None or holder is None:
            return
        by = f"taker@{socket.gethostname()}:{os.getpid()}"
        removal = Removal(holder, time.time(), by, AUTO_UNLOCK, EXPIRED_TEXT).without_token()
        what = removal.value(), milliseconds(RECORD_RETENTION_S)
        command = Command(lua_scripts.RECORD, (rounds.keys.record(name, uuid),), what)
        rounds.servers.ask(dict.fromkeys(rounds.all, command), enough=rounds.is_majority)
        log.warning("The lock %r has expired (expire=1): %s", name, removal.describe())

    def _purge_stale(self, answers: Answers, before: Mapping[int, Entry]) -> dict[int, Entry]:
        """Delete keys of ended locks that this try and the one before found.

        Two kinds of processes leave a key on a server: a holder that released its lock while the
        server was unreachable, and ended before the server came back; and a process that was killed
        while it cleared a lock's expiry. The key would block the name for a day, or for ever. It is
        *stale* in two cases: it has no expiry, which shows that its try had a majority; or its time
        is over, which shows that its try can't succeed any more.

        The uuid of a stale key does not hold the lock if a majority does not name it:

        1. At most a minority still has the key. If its try once had a majority, a server has lost
           or deleted the key since: by a release, a removal, an expiry or a restart.
        2. A minority confirms no push, and only a confirmed push restores votes on other servers.
           So the uuid gets no majority back.

        The check needs two tries with the same result, because during a single one the lock may be
        taken between two servers' answers. The deletion names the number of the stale key's try, so
        it does not delete a later try of the same uuid.
        """
        rounds, stale = self.rounds, self._stale_entries(answers)
        for i, entry in stale.items():
            others = sum(_holder(reply) != entry[0] for reply in answers.values())
            if before.get(i) == entry and others >= rounds.quorum.majority:
                rounds.servers.ask({i: rounds.drop(self.holder.name, *entry)})
        return stale

    def _stale_entries(self, answers: Answers) -> dict[int, Entry]:
        """Return by servers the keys that have no expiry, or whose lock's time is over.

        Such a key may still hold the lock; `_purge_stale` and `_try_once` compare the majority. A
        lifetime above `longest` proves that it includes the extra day (`LATE_REQUEST_S`), so that
        the lock's time is over when less than a day is left. A shorter one proves nothing; that key
        expires by itself.
        """
        longest = float(milliseconds(drifted(self.rounds.location.longest)))
        stale: dict[int, Entry] = {}
        for i, reply in answers.items():
            if reply.kind == "held":
                uuid, take, expiry, left = reply.rest
                lifetime = int(expiry) if expiry.isdigit() else -1  # another program may write it
                is_permanent = lifetime == 0
                is_over = lifetime > longest and left < 1000 * LATE_REQUEST_S
                if is_permanent or is_over:
                    stale[i] = decoded(uuid), decoded(take)
        return stale


def _holder(reply: Reply) -> str | None:
    """Return the other holder that a reply to `TAKE` names."""
    return decoded(reply.rest[0]) if reply.kind == "held" else None
