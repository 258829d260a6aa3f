"""State machine of one acquisition, without I/O: which request follows which outcome.

`acquire` carries out each step and passes the outcome back:

    step = acquisition.begin(now)
    Request → send it, then `answered(outcome, now)`; without an answer, `again(now)` for a retry
    Wait    → watch its target, then `woken(event, now)`; None: none came, or one may be missed
    End     → acquired, busy, or begin with a new uuid

The states are the values of `State`. `_HANDLER_OF` is this table as code:

    state        last request  outcome: next state
    taking       Take          Taken: held · Refused: identifying (once, if the acquisition has an
                               identity), or queueing
    identifying  Read          the holder has our identity and may have ended: reclaiming ·
                               else: queueing, or locating if there is a ticket
    reclaiming   Reclaim       Taken: held · Refused: queueing
    queueing     TakeOrQueue   Taken: held · Queued: waiting, claiming, or locating if unsure
    waiting      a watch       lock deleted: claiming · ticket ahead deleted, gap, time passed:
                               locating · overwritten: waiting · its rival ended: identifying
    locating     GetPosition   waiting, claiming, or locating if unsure · no ticket: queueing
    claiming     Claim         Taken: held · Refused: waiting or claiming · no ticket: queueing
    refreshing   Push          Done: held · Conflict: refreshing

"Unsure" means that the store's answer does not show which ticket is ahead. Exceptions to the table:

- A take was sent twice and the first one took the lock, or the answer took longer than
  `push_interval`: the stamps are old, so refreshing comes before held.
- The store has no queue: waiting instead of queueing, and taking instead of claiming.
- The outcome says `uuid_spent`, or is NotHolder: the end is UUID_SPENT.
- The caller does not wait: the end is BUSY instead of queueing, waiting or UUID_SPENT.

A waiter watches the ticket ahead of it, and the head of the queue watches the holder, so that one
release wakes one waiter. A watch event only starts a request: the store's transaction decides which
waiter acquires.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from lockclient.acquisition.validity import Validity
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.model.process_identity import provably_runs
from lockclient.model.ticket import Ticket
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Outcome,
    Position,
    Queued,
    ReadResult,
    Refused,
    Taken,
)
from lockclient.stores.request_types import (
    Claim,
    Delivery,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Request,
    Take,
    TakeOrQueue,
    Withdraw,
)
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

SHORT_QUEUE = 32
"""Queue length up to which a new waiter's watch starts at the current revision; see `acquire`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Watch `target` from `revision` on.

    With `from_now` the watch begins when the store receives it. If that is later than `revision`,
    the waiter reads its position again.
    """

    target: WatchTarget
    revision: int
    from_now: bool = False


class End(Enum):
    """The ends of this state machine."""

    ACQUIRED = "the lock is held"
    BUSY = "another holder has the lock, and the caller does not wait"
    UUID_SPENT = (
        "this uuid had the lock, and lost it before its process knew: begin with a new uuid"
    )
    """A uuid identifies one acquisition, because removal records name acquisitions by uuid."""


Step = Request | Wait | End


class State(Enum):
    """The state until the lock is held; its value is the type of the request in flight, else None
    or a word."""

    NEW = None
    TAKING = Take
    IDENTIFYING = Read
    RECLAIMING = Reclaim
    QUEUEING = TakeOrQueue
    WAITING = "a watch"
    LOCATING = GetPosition
    CLAIMING = Claim
    REFRESHING = Push
    HELD = "held"

    __hash__ = object.__hash__  # each answer hashes a state; Enum's is Python code, and slow


class Acquisition(Validity):
    """The state machine of one acquisition; `Validity` is its part for a held lock.

    Args:
        holder: the record to write; each request renews its stamps.
        runtime: how its stamps are made.
        queue: whether to wait if the lock is not free.
        has_ticket_lease: whether the process has one: then a waiter begins with TakeOrQueue.
        own: uuids of locks that this process holds; this acquisition takes none of them over.
        has_queue: whether the store keeps a queue. Without one a waiter watches the holder.
    """

    def __init__(
        self,
        holder: Holder,
        runtime: Runtime,
        *,
        queue: bool,
        has_ticket_lease: bool = False,
        own: Container[str | None] = (),
        has_queue: bool = True,
    ) -> None:
        self._record = holder
        self.name = holder.name
        self.uuid = holder.uuid or ""
        self.pid = os.getpid()
        """The process that acquires the lock; its fork's child sends nothing for it."""
        self.state = State.NEW
        self.delivery = Delivery()
        self.request: Request | None = None
        """The request sent last."""
        self._runtime = runtime
        self._queue = queue
        self._has_ticket_lease = has_ticket_lease
        self._own = own
        self._has_queue = has_queue
        self.ticket_revision = 0
        """The revision of its latest ticket, which may be lost; 0: it had none."""
        self._is_queue_short = False
        self._watched: WatchTarget | None = None
        self._sent_at = 0.0
        self._may_reclaim = holder.identity is not None  # at most one Reclaim is sent
        self.rival: Holder | None = None
        """The holder at the last read, if it has our identity and its process runs."""
        self._queued_since: float | None = None

    def begin(self, now: Now) -> Step:
        """Return the first request."""
        if self._queue and self._has_ticket_lease and not self._may_reclaim:
            return self._join_queue(now)
        return self._ask(Take(self._stamped(now), delivery=self.delivery), now)

    def with_new_uuid(self, uuid: str) -> Acquisition:
        """Return a copy in state `NEW`."""
        copy = Acquisition(
            replace(self._record, uuid=uuid),
            self._runtime,
            queue=self._queue,
            has_ticket_lease=self._has_ticket_lease,
            own=self._own,
            has_queue=self._has_queue,
        )
        copy._queued_since = self._queued_since
        return copy

    def again(self, now: Now) -> Step:
        """Return the last request again, with new stamps."""
        request = self.request
        assert request is not None, "again() before begin()"
        if isinstance(request, Push):
            return self._ask(self.push(now), now)
        if isinstance(request, Take | TakeOrQueue | Claim | Reclaim):
            request = replace(request, holder=self._stamped(now))
        return self._ask(request, now)

    def answered(self, outcome: Outcome, now: Now) -> Step:
        """Return the next step after an outcome of the last request."""
        # This thread sets token and ticket, then clears `in_flight`. A withdrawal by another thread
        # reads `in_flight`, then token and ticket. So it sees at least one of them.
        if isinstance(outcome, Taken):
            self.token = outcome.token
        elif isinstance(outcome, Queued):
            self.ticket_revision = outcome.ticket_revision
            self._is_queue_short = outcome.waiters is not None and outcome.waiters <= SHORT_QUEUE
        self.delivery.in_flight = False
        after = _HANDLER_OF[self.state].get(type(outcome))
        if after is None:
            raise AssertionError(f"no answer to {self.request} while {self.state}: {outcome}")
        return after(self, outcome, now)

    def woken(self, event: WatchEvent | None, now: Now) -> Step:
        """Return the next step after an event; None: none came, or one may have been missed."""
        target = self._watched
        if self.rival_gone():
            self.rival = None
            return self._ask(Read(self.name), now)
        if event is None and target is not None:  # probably the same is ahead
            return self._read_position(now, predecessor=target.ticket)
        if event is None or event.gap or target is None:
            return self._read_position(now)
        if event.uuid is not None:  # overwritten, not deleted: keep waiting
            return self._watch(target, event.revision)
        if target.ticket is None:
            return self._claim(now)
        return self._read_position(now, target.ticket, event.revision)

    def rival_gone(self) -> bool:
        """Return whether a rival's process has ended, so that its lock can be reclaimed."""
        return self.rival is not None and not self._lives(self.rival)

    def start_withdrawal(self, *, at_end: bool = False) -> Withdraw | None:
        """Return the request that withdraws this; None if the store has neither lock nor ticket.

        A fork's child gets None, too: the acquisition is the parent's. `at_end`: the driver sends
        nothing any more, and a ticket ends with its lease.
        """
        if os.getpid() != self.pid:
            return None
        self._is_releasing = True
        # The state is set before a request is sent: a take that is about to be sent counts, too.
        may_arrive_late = self.may_arrive_late or (at_end and self.state in _TAKE_STATES)
        # A late claim needs no tombstone: it fails without its ticket.
        may_have_lock = may_arrive_late or self.token or self.state is State.CLAIMING
        if not may_have_lock and (at_end or not self.ticket_revision):
            return None  # so a plain refusal costs no further request
        record = self._record if may_have_lock else None
        return Withdraw(
            self.name, self.uuid, may_arrive_late, record=record, delivery=self.delivery
        )

    def poll(self, now: Now) -> Step:
        """Return the request of a waiter that can't watch: also binds its ticket to a new lease."""
        return self._join_queue(now) if self._has_queue else self._claim(now)

    def _taken(self, outcome: Taken, now: Now) -> Step:
        self.ticket_revision = 0
        self._confirm(self._sent_at, outcome.token)
        if outcome.by_earlier_send or now.monotonic - self._sent_at > self._runtime.push_interval:
            # The store has stamps from an earlier send, or the answer took long: push first.
            return self._ask(self.push(now), now)
        self.state = State.HELD
        return End.ACQUIRED

    def _refreshed(self, outcome: Done | Conflict, now: Now) -> Step:
        assert isinstance(self.request, Push)
        if not self.pushed(self.request, outcome, self._sent_at):
            return self._ask(self.push(now), now)
        self.state = State.HELD
        return End.ACQUIRED

    def _spent(self, _outcome: Refused | NotHolder, _now: Now) -> Step:
        return End.UUID_SPENT if self._queue else End.BUSY

    def _positioned(self, position: Position, now: Now) -> Step:
        has_place = position.ticket or not self._has_queue
        return self._wait_in_queue(position, now) if has_place else self._queue_again(now)

    def _claim_refused(self, outcome: Refused, now: Now) -> Step:
        if outcome.uuid_spent:
            return self._spent(outcome, now)
        if not outcome.ticket:
            return self._queue_again(now)
        # The head was refused: a client that ignores the queue has the lock.
        return self._wait_in_queue(Position(True, None, outcome.holder, outcome.revision), now)

    def _refused(self, outcome: Refused, now: Now) -> Step:
        if outcome.uuid_spent:
            return self._spent(outcome, now)
        if self._may_reclaim and outcome.holder is not None:
            self._may_reclaim = False
            return self._ask(Read(self.name), now)
        return self._join_queue(now) if self._queue else End.BUSY

    def _identified(self, seen: ReadResult, now: Now) -> Step:
        """Reclaim the lock if its holder has our identity and its process may have ended."""
        previous = seen.holder
        ours = previous is not None and previous.identity == self._record.identity
        if previous is not None and ours and previous.has_newer_format:  # never reclaimed
            log.warning(
                "Not taking %r over from %s, though the identity is the same: its format %s is "
                "newer than the one known here.",
                previous.name,
                previous.describe(),
                previous.format,
                extra=naming(self),
            )
            ours = False
        if previous is None or not ours or self._lives(previous):
            self.rival = previous if ours else None
            if self._queue:  # with a ticket it keeps its place
                return self._read_position(now) if self.ticket_revision else self._join_queue(now)
            return End.BUSY
        log.warning(
            "Taking %r over from %s: the identity is the same. Live processes on different "
            "machines or in different containers must not share one.",
            previous.name,
            previous.describe(),
            extra=naming(self),
        )
        return self._ask(Reclaim(self._stamped(now), previous, delivery=self.delivery), now)

    def _lives(self, other: Holder) -> bool:
        return other.uuid in self._own or provably_runs(other.process)

    def _join_queue(self, now: Now) -> Step:
        if not self._has_queue:
            return self._watch(self.target(), 0)
        holder = self._stamped(now)
        self._queued_since = self._queued_since or now.wall
        ticket = Ticket.of(holder, self._queued_since)
        return self._ask(TakeOrQueue(holder, ticket, delivery=self.delivery), now)

    def _queue_again(self, now: Now) -> Step:
        log.warning(
            "Lost the place in the queue for %r (no contact with the store for too long); "
            "queueing again at the end.",
            self.name,
            extra=naming(self),
        )
        return self._join_queue(now)

    def _wait_in_queue(self, place: Queued | Position, now: Now) -> Step:
        """Wait for the ticket ahead, else for the holder; with neither claim the lock."""
        if place.is_unsure:
            return self._read_position(now)
        if place.predecessor is None and place.holder in (None, self.uuid):
            return self._claim(now)  # it is free, or an unanswered Take of ours got it
        return self._watch(self.target(place.predecessor), place.revision)

    def target(self, ticket: str | None = None) -> WatchTarget:
        """Return what this waiter watches: a ticket, or the holder."""
        return WatchTarget(self.name, ticket, waiter=self.uuid)

    def _watch(self, target: WatchTarget, revision: int) -> Wait:
        self._watched, self.state = target, State.WAITING
        if not self._has_queue:  # a later event may have a lower revision: all count
            return Wait(target, 0, from_now=True)
        from_now = target.ticket is None or self._is_queue_short  # see `acquire`
        return Wait(target, revision + 1, from_now)

    def _claim(self, now: Now) -> Step:
        if not self._has_queue:
            return self._ask(Take(self._stamped(now), delivery=self.delivery), now)
        return self._ask(Claim(self._stamped(now), self.ticket_revision), now)

    def _read_position(
        self, now: Now, predecessor: str | None = None, deleted_at: int | None = None
    ) -> Request:
        ticket = self.ticket_revision
        return self._ask(GetPosition(self.name, self.uuid, ticket, predecessor, deleted_at), now)

    def _ask(self, request: Request, now: Now) -> Request:
        self.request = request
        self.delivery.answered = False
        self._sent_at = now.monotonic
        self.state = _STATE_OF_REQUEST[type(request)]
        return request

    def _stamped(self, now: Now) -> Holder:
        taken_at = round(now.wall, 3)
        if self._record.locked_at != taken_at:  # in the same millisecond the stamps are right
            stamped = self._record.stamped(self._runtime.stamps(now.wall))
            self._record = replace(stamped, locked_at=taken_at)
        return self._record


_Handlers = Mapping[type, Callable[[Acquisition, Any, Now], Step]]
_TAKE_HANDLERS: _Handlers = {Taken: Acquisition._taken, Refused: Acquisition._refused}
_HANDLER_OF: Final[Mapping[State, _Handlers]] = {
    State.TAKING: _TAKE_HANDLERS,
    State.IDENTIFYING: {ReadResult: Acquisition._identified},
    State.RECLAIMING: {**_TAKE_HANDLERS, NotHolder: Acquisition._spent},
    State.QUEUEING: {**_TAKE_HANDLERS, Queued: Acquisition._wait_in_queue},
    State.LOCATING: {Position: Acquisition._positioned},
    State.CLAIMING: {Taken: Acquisition._taken, Refused: Acquisition._claim_refused},
    State.REFRESHING: {
        Done: Acquisition._refreshed,
        Conflict: Acquisition._refreshed,
        NotHolder: Acquisition._spent,
    },
}
_TAKE_STATES: Final = (State.TAKING, State.QUEUEING, State.RECLAIMING)
_STATE_OF_REQUEST: Final[Mapping[object, State]] = {state.value: state for state in State}
