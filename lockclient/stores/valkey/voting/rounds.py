"""Rounds: the command of a plan is sent to all servers, in rounds until there are enough votes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lockclient.model.clocks import Deadline
from lockclient.stores.common.store_lifecycle import closed
from lockclient.stores.request_types import Delivery
from lockclient.stores.valkey import errors, lua_scripts, reads
from lockclient.stores.valkey.keys import LATE_REQUEST_S, milliseconds
from lockclient.stores.valkey.lua_scripts import Answers, Command, Reply
from lockclient.stores.valkey.voting.quorum import Quorum
from lockclient.stores.valkey.voting.retry_queue import RetryQueue
from lockclient.stores.valkey.wire.broadcast import ROUND_TIMEOUT_S, Broadcast, Enough
from lockclient.stores.valkey.wire.server import Sent
from lockclient.threads.backoff import Backoff

Result = TypeVar("Result")

SETTLED_ROUNDS: Final = 3
"""Rounds of a read after which the answers of a majority count, although they decide nothing."""
MIN_ROUND_S: Final = 0.1
"""Seconds left below which no round begins: no server would answer in time."""
ROUND_PAUSES_S: Final = (0.02, 0.02, 0.3)
"""Seconds between two rounds when there are too few votes."""


class OwnLock:
    """The store's memory of one acquisition, in `Delivery.memory`.

    Attributes:
        sent: the requests to each server that may give it the lock; None: none, or it is withdrawn.
        unconfirmed_push: the highest number of a push that no majority has confirmed.
    """

    sent: dict[int, list[Sent]] | None = None
    unconfirmed_push = 0


def memory_of(delivery: Delivery | None) -> OwnLock:
    """Return the store's memory of an acquisition; of another process's (None) it has none."""
    if delivery is None:
        return OwnLock()
    own: OwnLock = delivery.memory or OwnLock()
    delivery.memory = own
    return own


@dataclass(frozen=True, slots=True)
class Plan(Generic[Result]):
    """One request: what all servers are sent, and the function that reads their answers.

    Attributes:
        command: may be sent to a server twice.
        enough: tells whether answers are enough.
        read: returns the result of the answers, and of whether an earlier sending may have been
            executed without an answer.
        early: each round waits for all servers unless this holds; None: `enough`.
        settled: each round asks all servers again; after so many rounds the answers of a majority
            are enough in any case. None: a round asks those that have not answered.

    **Reads.** While a lock is taken or removed, two servers may answer as before it and two as
    after it; as long as the fifth is unreachable, no single round decides. If the answers stay the
    same for `SETTLED_ROUNDS`, the result names a uuid that may hold the lock (`Quorum.may_hold`),
    so that it can be removed and be waited for. It may be the rest of a lock that has ended. So a
    caller that acts on the answer passes infinity, and gets an error while too few answer.
    """

    command: Command
    enough: Enough
    read: Callable[[Answers, bool], Result]
    early: Enough | None = None
    settled: float | None = None


class Rounds:
    """Asks one set of servers on behalf of all acquisitions."""

    def __init__(self, servers: Broadcast, retry_queue: RetryQueue) -> None:
        self.servers = servers
        self.retry_queue = retry_queue
        self.keys = servers.keys
        self.location = servers.location
        self.all = servers.all
        self.quorum = Quorum(len(servers.endpoints))
        self.tries = itertools.count(1)  # a uuid belongs to one process, so its numbers only grow

    def is_majority(self, answers: Answers) -> bool:
        return len(answers) >= self.quorum.majority

    def call(self, plan: Plan[Result], deadline: Deadline) -> Result:
        """Send a plan's command until there are enough answers; return what `plan.read` does.

        Raises:
            StoreUnavailable: no majority answered by the deadline.
            StoreError: no majority will, for reasons that persist.
        """
        answers, resent = dict[int, Reply](), False
        pauses, rounds, together = Backoff(*ROUND_PAUSES_S), 0, plan.early or plan.enough
        while True:
            if self.servers.closed:
                raise closed(self.location, unknown=resent)
            if plan.settled is not None:
                answers.clear()
            missing = [i for i in self.all if i not in answers]
            until = deadline.within(0.0, ROUND_TIMEOUT_S)
            result = self.servers.ask(
                dict.fromkeys(missing, plan.command),
                until,
                lambda new: together({**answers, **new}),
            )
            answers.update(result.answers)
            rounds += 1
            is_settled = plan.settled is not None and rounds >= plan.settled
            if plan.enough(answers) or (is_settled and self.is_majority(answers)):
                return plan.read(answers, resent)
            resent |= bool(result.silent)
            error = errors.no_majority(self.location, result.failures, unknown=resent)
            self.pause_or_raise(error, deadline, pauses)

    @staticmethod
    def pause_or_raise(
        error: Exception, deadline: Deadline, pauses: Backoff, *, is_given_up: bool = False
    ) -> None:
        """Wait before another round; raise the error if no round can help, or none is wanted."""
        permanent = not isinstance(error, ConnectionError)
        pause = pauses.next()
        if not permanent and deadline.remaining() < pause + MIN_ROUND_S and not is_given_up:
            time.sleep(deadline.remaining())  # the caller's timeout is over when this returns
        if permanent or is_given_up or deadline.expired():
            raise error
        time.sleep(pause)

    # ------------------------------------------------------------ commands of several requests

    def reading(self, name: str, uuid: str = "", *, whole: bool = False) -> Command:
        """Return the command that reads the holder of a lock; `whole`: all its fields, and the
        record of that uuid's removal."""
        keys = (self.keys.server, self.keys.lock(name), self.keys.record(name, uuid))
        return Command(reads.READ, keys, ("1" if whole else "",))

    def drop(self, name: str, uuid: str, up_to: str, *, tombstone: bool = False) -> Command:
        """Return the command that deletes a uuid's lock; with `tombstone` its takes up to that try
        do nothing any more."""
        keys = self.keys
        publishes = len(self.all) == 1 and up_to == "all"  # one server confirms it as it does it
        return Command(
            lua_scripts.DROP,
            (keys.lock(name), keys.tombstone(name, uuid), keys.record(name, uuid)),
            (
                uuid,
                up_to,
                milliseconds(LATE_REQUEST_S) if tombstone else "",
                keys.channel(name),
                "1" if publishes else "",
            ),
        )

    def publish_release(self, name: str, uuid: str, answers: Answers) -> None:
        """Publish a confirmed release or removal on the servers that have subscribers."""
        listening = {
            i: reply.rest[0]
            for i, reply in answers.items()
            if reply.kind == "dropped" and reply.rest[0]
        }
        if listening:
            message = f"{uuid} {max(listening.values())}"
            command = Command(lua_scripts.PUBLISH, (), (self.keys.channel(name), message))
            self.servers.ask(dict.fromkeys(listening, command), enough=bool)
