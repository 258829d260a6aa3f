"""Rounds: asks all servers again and again, until there are enough votes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping
from math import inf
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.stores.common.lifecycle import closed
from lockclient.stores.requests import Delivery
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.keys import LATE_REQUEST_S, milliseconds
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.voting.lock_view import LockViews
from lockclient.stores.valkey.voting.quorum import Quorum
from lockclient.stores.valkey.voting.undo_queue import UndoQueue, is_granted
from lockclient.stores.valkey.wire.broadcast import Broadcast, Enough, Round
from lockclient.stores.valkey.wire.connection import Command
from lockclient.stores.valkey.wire.server import Sent
from lockclient.threads.backoff import Backoff

ROUND_TIMEOUT_S: Final = 2.0
"""Seconds that the servers have for one round."""
_SETTLED_ROUNDS: Final = 3
"""Rounds after which what a majority has answered counts, though it decides nothing."""
MIN_ROUND_S: Final = 0.1
"""Seconds below which no round is begun: it would only leave what nobody answers in time."""
ROUND_PAUSES_S: Final = (0.02, 0.02, 0.3)
"""Seconds between two rounds when there are too few votes."""


class SentTake:
    """The takes of one uuid that this process sent to each server and that may still arrive."""

    def __init__(self) -> None:
        self.requests: dict[int, tuple[Sent, ...]] = {}

    def add(self, requests: Mapping[int, Sent]) -> None:
        for i, request in requests.items():
            self.requests[i] = (*self.requests.get(i, ()), request)

    def given(self) -> set[int]:
        """Return the servers that have answered that they give it."""
        return {i for i, sent in self.requests.items() if any(map(is_granted, sent))}

    def settled(self) -> set[Sent]:
        """Return the requests that can't arrive any more."""
        sent = itertools.chain(*self.requests.values())  # a push may add some meanwhile
        return {request for request in sent if request.answer and not request.unanswered}


class OwnLock:
    """The store's memory of one acquisition, in `Delivery.memory`.

    Attributes:
        take: what was sent; None: nothing, or it is undone.
        unconfirmed_push: the highest number of a push that no majority has confirmed.
    """

    def __init__(self) -> None:
        self.take: SentTake | None = None
        self.unconfirmed_push = 0


def own_lock(delivery: Delivery | None) -> OwnLock:
    """Return what is remembered of an acquisition; of another process's (None), nothing."""
    if delivery is None:
        return OwnLock()
    if delivery.memory is None:
        delivery.memory = OwnLock()
    own: OwnLock = delivery.memory
    return own


class Rounds:
    """Asks one set of servers on behalf of all acquisitions."""

    def __init__(self, servers: Broadcast, undo_queue: UndoQueue) -> None:
        self.servers = servers
        self.undo_queue = undo_queue
        self.keys = servers.keys
        self.location = servers.location
        self.all = servers.all
        self.quorum = Quorum(len(servers.endpoints))
        self.views = LockViews(servers.keys, self.quorum)
        self.tries = itertools.count(1)  # a uuid is one process's: of one uuid they only grow

    def is_majority(self, answers: Mapping[int, Reply]) -> bool:
        """Tell whether so many have answered."""
        return len(answers) >= self.quorum.majority

    def once(
        self,
        which: Collection[int],
        command: Command,
        until: Deadline | None = None,
        enough: Enough | None = None,
    ) -> Round:
        """Ask these servers once, until `enough` have answered (all, unless that is given)."""
        return self.servers.ask(
            {i: Sent(command) for i in which},
            until or Deadline.after(ROUND_TIMEOUT_S),
            enough or (lambda answers: len(answers) == len(which)),
        )

    def until_enough(
        self,
        command: Command,
        deadline: Deadline,
        enough: Enough,
        delivery: Delivery | None = None,
        early: Enough | None = None,
        settled: float | None = None,
    ) -> dict[int, Reply]:
        """Ask all servers, and those that have not answered again, until there are enough votes.

        For what may be sent twice to a server. With `early` each round waits for all whom it asks,
        until that holds. With `settled` each round forgets what the one before was told, and after
        so many rounds the answers of a majority are enough whatever they say: see `read`.
        """
        delivery, answers = delivery or Delivery(), dict[int, Reply]()
        pauses, rounds, together = Backoff(*ROUND_PAUSES_S), 0, early or enough
        while True:
            if self.servers.closed:
                raise closed(self.location, unknown=delivery.ambiguous)
            delivery.in_flight = True
            if settled is not None:
                answers.clear()
            missing = [i for i in self.all if i not in answers]
            until = deadline.within(0.0, ROUND_TIMEOUT_S)
            result = self.once(missing, command, until, lambda new: together({**answers, **new}))
            answers.update(result.answers)
            rounds += 1
            if enough(answers) or (
                settled is not None and rounds >= settled and self.is_majority(answers)
            ):
                return answers
            delivery.ambiguous |= bool(result.silent)
            error = errors.no_majority(self.location, result.failures, unknown=delivery.ambiguous)
            self.pause_or_raise(error, delivery, deadline, pauses)

    @staticmethod
    def pause_or_raise(
        error: Exception, delivery: Delivery, deadline: Deadline, pauses: Backoff
    ) -> None:
        """Wait before another round; raise what kept the last one, if none can help or be had."""
        permanent = not isinstance(error, ConnectionError)
        pause = pauses.next()
        if not permanent and deadline.remaining() < pause + MIN_ROUND_S and not delivery.abandoned:
            time.sleep(deadline.remaining())  # the time was given, and is up when this returns
        if permanent or delivery.abandoned or deadline.expired():
            raise error
        time.sleep(pause)

    def read(
        self,
        command: Command,
        deadline: Deadline,
        enough: Enough,
        *,
        sure: bool = False,
    ) -> dict[int, Reply]:
        """Ask all servers, and all of them anew, until what they say at one time is enough.

        A lock may just be taken or removed: two servers tell of before it and two of after it, and
        as long as the fifth is away these answers say nothing, however long one waits for that. If
        they say the same thing again and again, it stands like that, and those who are away know:
        what may be held is told then (`Quorum.may_hold`), so that it can be removed, and be waited
        for. It may be what is left of a lock of whose end one of them was not told. So who acts on
        it wants to be `sure`, and is told that too few have answered, as long as they do.
        """
        settled = inf if sure else _SETTLED_ROUNDS
        return self.until_enough(command, deadline, enough, settled=settled)

    def drop(self, name: str, uuid: str, up_to: str, *, tombstone: bool = False) -> Command:
        """Return what deletes a uuid's lock, and makes its takes do nothing up to that try."""
        keys = self.keys
        alone = len(self.all) == 1 and up_to == "all"  # then it is confirmed as it is done
        return Command(
            lua_scripts.DROP,
            (keys.lock(name), keys.tombstone(name, uuid), keys.record(name, uuid)),
            (
                uuid,
                up_to,
                milliseconds(LATE_REQUEST_S) if tombstone else "",
                keys.channel(name),
                "1" if alone else "",
            ),
        )
