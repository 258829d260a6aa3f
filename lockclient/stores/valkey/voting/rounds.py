"""What all requests of a mutex have in common: rounds until there are enough votes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.stores.requests import RequestState
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.keys import DAY, milliseconds
from lockclient.stores.valkey.voting.quorum import Quorum
from lockclient.stores.valkey.voting.undo_queue import UndoQueue
from lockclient.stores.valkey.wire.broadcast import Broadcast, Enough
from lockclient.stores.valkey.wire.connection import Command, Reply
from lockclient.threads.backoff import Backoff

TRY: Final = 2.0
"""Seconds that the servers have for one round."""
_SETTLED: Final = 3
"""Rounds after which what a majority has answered counts, though it decides nothing."""
LEAST: Final = 0.1
"""Seconds below which no round is begun: it would only leave what nobody answers in time."""
PAUSES: Final = (0.02, 0.02, 0.3)
"""Seconds between two rounds when there are too few votes."""


@dataclass(frozen=True, slots=True)
class Own:
    """What is known of a lock that this process took.

    Attributes:
        sent: the servers that were sent a take of it, and did not say that they refuse it.
        silent: those of them that have not answered it.
    """

    sent: frozenset[int]
    silent: frozenset[int]


class Rounds:
    """Asks one set of servers on behalf of all acquisitions."""

    def __init__(self, servers: Broadcast, debts: UndoQueue) -> None:
        self.servers = servers
        self.debts = debts
        self.keys = servers.keys
        self.place = servers.place
        self.all = servers.all
        self.quorum = Quorum(len(servers.place.endpoints))
        self.tries = itertools.count(1)  # a uuid is one process's: of one uuid they only grow
        self.own: dict[str, Own] = {}
        self.tried: dict[str, int] = {}  # of a uuid, the highest push that was not confirmed

    def until_enough(
        self,
        call: Callable[[int], Command],
        sending: RequestState,
        deadline: Deadline,
        enough: Enough,
        silent: set[int] | None = None,
        early: Enough | None = None,
        settled: float | None = None,
    ) -> dict[int, Reply]:
        """Ask all servers, and those that have not answered again, until there are enough votes.

        For what may be sent twice to a server. `silent` is told those of which an earlier sending
        was never answered. With `early` each round waits for all whom it asks, until that holds.
        With `settled` each round forgets what the one before was told, and after so many rounds
        the answers of a majority are enough whatever they say: see `read`.
        """
        answers: dict[int, Reply] = {}
        pauses, rounds = Backoff(*PAUSES), 0
        while True:
            if self.servers.closed:
                raise errors.closed(self.place, unknown=sending.ambiguous)
            sending.in_flight = True
            if settled is not None:
                answers.clear()
            asked = {i: call(i) for i in self.all if i not in answers}
            found = self.servers.ask(
                asked, deadline.within(0.0, TRY), partial(_with, early or enough, answers)
            )
            answers |= found.answers
            if silent is not None:
                silent |= found.silent
            rounds += 1
            if enough(answers) or (
                settled is not None and rounds >= settled and len(answers) >= self.quorum.majority
            ):
                return answers
            sending.ambiguous |= bool(found.silent)
            error = errors.no_majority(self.place, found.troubles, unknown=sending.ambiguous)
            self.pause_or_raise(error, sending, deadline, pauses)

    @staticmethod
    def pause_or_raise(
        error: Exception, sending: RequestState, deadline: Deadline, pauses: Backoff
    ) -> None:
        """Wait before another round; raise what kept the last one, if none can help or be had."""
        hopeless = not isinstance(error, ConnectionError)
        pause = pauses.next()
        if not hopeless and deadline.remaining() < pause + LEAST and not sending.abandoned:
            time.sleep(deadline.remaining())  # the time was given, and is up when this returns
        if hopeless or sending.abandoned or deadline.expired():
            raise error
        time.sleep(pause)

    def read(
        self,
        call: Command,
        sending: RequestState,
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
        settled = inf if sure else _SETTLED
        return self.until_enough(lambda _: call, sending, deadline, enough, settled=settled)

    def drop(self, name: str, uuid: str, up_to: str, *, mark: bool) -> Command:
        """Return what deletes a uuid's lock, and makes its takes do nothing up to that try."""
        keys = self.keys
        alone = len(self.all) == 1 and up_to == "all"  # then it is confirmed as it is done
        return Command(
            lua_scripts.DROP,
            (keys.lock(name), keys.mark(name, uuid), keys.record(name, uuid)),
            (
                *(uuid, up_to, milliseconds(DAY) if mark else ""),
                *(keys.channel(name), "1" if alone else ""),
            ),
            votes=False,
        )


def _with(enough: Enough, known: dict[int, Reply], new: Mapping[int, Reply]) -> bool:
    """Tell whether these answers are enough, with those that are known."""
    return enough({**known, **new})
