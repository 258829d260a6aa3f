"""The life of one acquisition, without I/O: wait, hold, push, lose, release.

Its driver, a thread or an event loop, does each step and reports the outcome:

    step = acquisition.begin(now)
    Request  → send it, then `answered(outcome, now)`; without an answer, `again(now)` for a retry
    Wait     → watch its target, then `woken(event, now)`; None: a long time has passed
    Acquired → the lock is held
    Busy     → another holder has it, and the caller does not wait
    UsedUp   → begin with a new uuid: this one had the lock already, and lost it

Its states are the values of `State`; `_HANDLER_OF` says this table as code:

    state        last request  outcome: next state
    taking       Take          Taken: held · Refused: identifying (once, by identity), or queueing
    identifying  Read          held by its identity, and not provably running: reclaiming ·
                               else: queueing, or locating if it has a ticket
    reclaiming   Reclaim       Taken: held · Refused: queueing
    queueing     TakeOrQueue   Taken: held · Queued: waiting, claiming, or locating if ambiguous
    waiting      a watch       lock deleted: claiming · ticket ahead deleted, gap, time passed:
                               locating · overwritten: waiting · its rival ended: identifying
    locating     GetPosition   waiting, claiming, or locating if ambiguous · no ticket: queueing
    claiming     Claim         Taken: held · Refused: waiting or claiming · no ticket: queueing
    refreshing   Push          Done: held · Conflict: refreshing

A Taken from an earlier send, or with stamps near their end, leads to refreshing instead of held.
In a store without a queue waiting replaces queueing, and taking replaces claiming. A Refused with a
spent uuid, and a NotHolder, mean UsedUp. A caller that does not wait gets Busy instead of queueing,
waiting and UsedUp.

A waiter watches the ticket ahead of it, and the head of the queue watches the holder, so that one
release wakes one waiter. A watch event only starts a request: the store's transaction decides which
waiter acquires.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from lockclient.errors import LockLost
from lockclient.model.backtrace import innermost_frame
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.model.process_identity import provably_runs
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
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
from lockclient.stores.protocol import WatchEvent, WatchTarget
from lockclient.stores.requests import (
    Claim,
    Delivery,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Request,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from lockclient.text.durations import period
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

SHORT_QUEUE = 32
"""Tickets in a queue up to which a waiter's watch begins from now; see `acquire`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Watch `target` from `revision` on.

    With `from_now` the watch begins when the store receives it. If that is later than `revision`,
    the waiter reads its position once more.
    """

    target: WatchTarget
    revision: int
    from_now: bool = False


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lock is held."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock was not acquired: `holder` (a uuid) has it, or None if only waiters are ahead."""

    holder: str | None


@dataclass(frozen=True, slots=True)
class UsedUp:
    """This uuid had the lock and lost it before its process knew: go on with a new one.

    A uuid is used for one acquisition, ever: else its removal record would mean two.
    """


Step = Request | Wait | Acquired | Busy | UsedUp
_ACQUIRED = Acquired()


class State(Enum):
    """State until the lock is held; its value is the request sent last. A loss is in `loss`."""

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


class Acquisition:
    """One acquisition of one lock.

    The lock is held as long as the store has confirmed stamps whose time has not run out, counted
    from before the request was sent. It is lost for ever once another client removed it or its
    confirmed time ran out.

    Args:
        holder: the record to write; each request renews its times.
        runtime: how its stamps are made.
        queue: whether to wait if the lock is not free.
        has_ticket_lease: whether a ticket costs no extra request, so that the first one may queue.
        own: uuids of locks that this process holds: none of its acquisitions takes them over.
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
        """The process that acquires it; a fork's child sends and withdraws nothing of it."""
        self.state = State.NEW
        self.token = 0
        self.deadline = math.inf
        """Monotonic time at which the lock may be removed if no push is confirmed before."""
        self.quiet_until = 0.0
        """Monotonic time before which another push is not worth a request."""
        self.loss: LockLost | None = None
        self._loss_detail = -1
        self.last_push_error = ""  # the loss names it when the time runs out
        self.delivery = Delivery()
        self.request: Request | None = None
        """The request sent last."""
        self._runtime = runtime
        self._queue = queue
        self._has_ticket_lease = has_ticket_lease
        self._own = own
        self._has_queue = has_queue
        self._ticket_revision = 0
        self._short_queue = False
        self._awaited: WatchTarget | None = None
        self._sent_at = 0.0
        self._confirmed_at = -math.inf  # monotonic send time of the last confirmed request
        self._tried_identity = holder.identity is None
        self.rival: Holder | None = None  # holder at the last read, if alive with our identity
        self._queued_since: float | None = None
        self._written_at = 0  # revision of our own last confirmed write of the stamps
        self._releasing = False

    # ------------------------------------------------------------ acquiring

    def begin(self, now: Now) -> Step:
        """Return the first request."""
        if self._queue and self._has_ticket_lease and self._tried_identity:
            return self._join_queue(now)
        return self._ask(Take(self._stamped(now), delivery=self.delivery), now)

    def with_new_uuid(self, uuid: str) -> Acquisition:
        """Return a copy that has not begun."""
        fresh = Acquisition(
            replace(self._record, uuid=uuid),
            self._runtime,
            queue=self._queue,
            has_ticket_lease=self._has_ticket_lease,
            own=self._own,
            has_queue=self._has_queue,
        )
        fresh._queued_since = self._queued_since
        return fresh

    def again(self, now: Now) -> Step:
        """Return the last request for a retry, with new stamps."""
        request = self.request
        assert request is not None, "again() before begin()"
        if isinstance(request, Take | TakeOrQueue | Claim | Reclaim):
            request = replace(request, holder=self._stamped(now))
        elif isinstance(request, Push):
            request = self.push(now)
        return self._ask(request, now)

    def answered(self, outcome: Outcome, now: Now) -> Step:
        """Return the next step after an outcome of the last request."""
        # Store token and ticket, then clear `in_flight`: a concurrent withdrawal sees one of them.
        if isinstance(outcome, Taken):
            self.token = outcome.token
        elif isinstance(outcome, Queued):
            self._ticket_revision = outcome.ticket_revision
            self._short_queue = outcome.waiters is not None and outcome.waiters <= SHORT_QUEUE
        self.delivery.in_flight = False
        after = _HANDLER_OF[self.state].get(type(outcome))
        if after is None:
            raise AssertionError(f"no answer to {self.request} while {self.state}: {outcome}")
        return after(self, outcome, now)

    def woken(self, event: WatchEvent | None, now: Now) -> Step:
        """Return the next step after an event of the awaited target; None: time passed."""
        target = self._awaited
        if self.rival_gone():
            self.rival = None
            return self._ask(Read(self.name), now)
        if event is None and target is not None:  # probably nothing has changed
            return self._read_position(now, predecessor=target.ticket)
        if event is None or event.gap or target is None:
            return self._read_position(now)
        if event.uuid is not None:  # overwritten, not deleted: keep waiting
            return self._watch(target, event.revision)
        if target.ticket is None:
            return self._claim(now)
        return self._read_position(now, target.ticket, event.revision)

    def rival_gone(self) -> bool:
        """Return whether the rival's process has ended, so that its lock can be reclaimed."""
        return self.rival is not None and not self._lives(self.rival)

    @property
    def may_arrive_late(self) -> bool:
        """True if the store may still execute a take of this acquisition, see `Delivery`."""
        return self.delivery.in_flight or self.delivery.ambiguous

    def start_withdrawal(self) -> Withdraw | None:
        """Return the request that withdraws this; None if the store has neither lock nor ticket.

        In a fork's child None, too: the parent withdraws it, or has the lock meanwhile.
        """
        if os.getpid() != self.pid:
            return None
        self._releasing = True
        may_arrive_late = self.may_arrive_late
        if not (may_arrive_late or self.token or self._ticket_revision):
            return None  # so a plain refusal costs no further request
        return Withdraw(self.name, self.uuid, may_arrive_late, delivery=self.delivery)

    def _taken(self, outcome: Taken, now: Now) -> Step:
        self._ticket_revision = 0
        self._confirmed(self._sent_at, outcome.token)
        if outcome.by_earlier_send or now.monotonic - self._sent_at > self._runtime.push_interval:
            # The stamps in the store are from an earlier send, or near their end: push first.
            return self._ask(self.push(now), now)
        self.state = State.HELD
        return _ACQUIRED

    def _refreshed(self, outcome: Done | Conflict, now: Now) -> Step:
        assert isinstance(self.request, Push)
        if not self.pushed(self.request, outcome, self._sent_at):
            return self._ask(self.push(now), now)
        self.state = State.HELD
        return _ACQUIRED

    def _spent(self, outcome: Refused | NotHolder, _now: Now) -> Step:
        return UsedUp() if self._queue else Busy(outcome.holder)

    def _positioned(self, position: Position, now: Now) -> Step:
        if position.ticket or not self._has_queue:
            return self._wait_in_queue(position, now)
        return self._queue_again(now)

    def _claim_refused(self, outcome: Refused, now: Now) -> Step:
        if outcome.uuid_spent:
            return self._spent(outcome, now)
        if not outcome.ticket:
            return self._queue_again(now)
        # A client without queue support has the lock.
        return self._wait_in_queue(Position(True, None, outcome.holder, outcome.revision), now)

    def _refused(self, outcome: Refused, now: Now) -> Step:
        if outcome.uuid_spent:
            return self._spent(outcome, now)
        if not self._tried_identity and outcome.holder is not None:
            self._tried_identity = True
            return self._ask(Read(self.name), now)
        return self._join_queue(now) if self._queue else Busy(outcome.holder)

    def _same_identity(self, seen: ReadResult, now: Now) -> Step:
        """Take over from the holder if it has our identity and is not provably running."""
        previous = seen.holder
        ours = previous is not None and previous.identity == self._record.identity
        if previous is not None and ours and previous.has_newer_format:  # never taken over
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
            if self._queue:  # a waiter with a ticket keeps its place
                return self._read_position(now) if self._ticket_revision else self._join_queue(now)
            return Busy(None if previous is None else previous.uuid)
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
        ticket = Ticket(
            holder.name,
            self.uuid,
            hostname=holder.hostname,
            pid=holder.pid,
            thread=holder.thread,
            reason=holder.reason,
            since=round(self._queued_since, 3),
            actor=holder.actor,
            frame=innermost_frame(holder.backtrace),
        )
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
        """Wait for the ticket ahead, as the head for the holder, or claim if there is neither."""
        if place.ambiguous:
            return self._read_position(now)
        if place.predecessor is None and place.holder in (None, self.uuid):
            return self._claim(now)  # free, or an unanswered Take of ours got it: this shows which
        return self._watch(self.target(place.predecessor), place.revision)

    def target(self, ticket: str | None = None) -> WatchTarget:
        """Return what this waiter watches: a ticket, or the holder."""
        return WatchTarget(self.name, ticket, waiter=self.uuid)

    def _watch(self, target: WatchTarget, revision: int) -> Wait:
        self._awaited, self.state = target, State.WAITING
        if not self._has_queue:  # its revisions need not grow; what it notifies is so now
            return Wait(target, 0, from_now=True)
        return Wait(target, revision + 1, target.ticket is None or self._short_queue)

    def _take(self, now: Now) -> Step:
        return self._ask(Take(self._stamped(now), delivery=self.delivery), now)

    def _claim(self, now: Now) -> Step:
        if not self._has_queue:
            return self._take(now)
        return self._ask(Claim(self._stamped(now), self._ticket_revision), now)

    def _read_position(
        self, now: Now, predecessor: str | None = None, deleted_at: int | None = None
    ) -> Request:
        ticket = self._ticket_revision
        return self._ask(GetPosition(self.name, self.uuid, ticket, predecessor, deleted_at), now)

    def _ask(self, request: Request, now: Now) -> Request:
        self.request = request
        self.delivery.answered = False
        self._sent_at = now.monotonic
        self.state = _STATE_OF_REQUEST[type(request)]
        return request

    def _stamped(self, now: Now) -> Holder:
        taken_at = round(now.wall, 3)
        if self._record.locked_at != taken_at:  # same millisecond: reuse the copy
            stamped = self._record.stamped(self._runtime.stamps(now.wall))
            self._record = replace(stamped, locked_at=taken_at)
        return self._record

    # ------------------------------------------------------------ holding

    @property
    def holder(self) -> Holder:
        """The record as the store last confirmed it."""
        return replace(self._record, fencing_token=self.token)

    def push(self, now: Now) -> Push:
        """Return the request that pushes the stamps; its outcome goes to `pushed`."""
        stamps = self._runtime.stamps(now.wall)
        return Push(self.name, self.uuid, stamps, self._written_at, delivery=self.delivery)

    def pushed(self, push: Push, outcome: Outcome, sent_at: float) -> bool:
        """Note a push's outcome; False: push again.

        `sent_at` is the monotonic time before it was sent.
        """
        if isinstance(outcome, Conflict):
            # A concurrent push of ours (a task's and keepalive's), or another client's write: no
            # answer has confirmed it.
            self._written_at = max(self._written_at, outcome.revision)
            return False
        if isinstance(outcome, Done):
            self._record = self._record.stamped(push.stamps)
            self._confirmed(sent_at, outcome.revision)
        elif isinstance(outcome, NotHolder) and not self._releasing:
            self._lose_to(outcome.holder, outcome.removal)  # not after our own unlock
        return True

    def _confirmed(self, sent_at: float, revision: int) -> None:
        """Note that the store has stamps made at `sent_at`; the deadline counts from there.

        An unlocker counts from when it sees the write, which is later. So this deadline is never
        later than an unlocker's.
        """
        self._written_at = max(self._written_at, revision)
        # Two concurrent pushes (a task's and keepalive's) may be answered in either order.
        sent_at = self._confirmed_at = max(sent_at, self._confirmed_at)
        if self._runtime.auto_unlock is not None:
            self.deadline = sent_at + self._runtime.auto_unlock
        self.quiet_until = min(sent_at + self._runtime.push_interval, self.deadline)

    def check(self, monotonic: float) -> LockLost | None:
        """Return why the lock is lost, or None as long as it is held."""
        if self.loss is None and monotonic >= self.deadline and not self._releasing:
            why = "Call alive() more often or raise auto_unlock_after."
            if self.last_push_error:
                why = f"The last try failed: {self.last_push_error}"
            self._lose(
                f"The lock {self.name!r} counts as lost: the store has confirmed no heartbeat "
                f"of it for {period(self._runtime.auto_unlock or 0)} (auto_unlock_after), so an "
                f"unlocker may have removed it. {why}"
            )
        return self.loss

    def observed(self, event: WatchEvent) -> None:
        """Note an event of the lock's uuid."""
        if not self._releasing and event.uuid != self.uuid:
            self._lose_to(event.uuid, None)

    def saw(self, seen: ReadResult) -> None:
        """Note what the store has for the lock."""
        uuid = None if seen.holder is None else seen.holder.uuid
        if not self._releasing and uuid != self.uuid:
            self._lose_to(uuid, seen.removal, seen.holder)

    def put_off(self, monotonic: float) -> None:
        """Put off the next push after one without an answer, so a hot loop sends none per call."""
        self.quiet_until = min(monotonic, self.deadline)  # then `alive()` must raise `LockLost`

    def keep_pace(self, pace: float, answered_at: float) -> None:
        """Allow no push within `pace` seconds of an answer, so that two never arrive closer."""
        # Four pushes per expected runtime stay allowed, so one late push raises no alert.
        rest = answered_at + min(pace, self._runtime.expected / 4)
        self.quiet_until = min(max(self.quiet_until, rest), self.deadline)

    def unlock_request(self) -> Unlock:
        """Return the request that unlocks; its `NotHolder` goes to `note_unlock_refused`."""
        self._releasing = True
        return Unlock(self.name, self.uuid, delivery=self.delivery)

    def note_unlock_refused(self, outcome: NotHolder) -> None:
        """Note a loss: the store did not have the lock any more.

        But if the request was sent twice, and no removal record exists, the first send unlocked it.
        """
        if not (outcome.resent and outcome.removal is None):
            self._lose_to(outcome.holder, outcome.removal)

    def _lose_to(
        self, uuid: str | None, removal: Removal | None, holder: Holder | None = None
    ) -> None:
        how = f" ({removal.describe()})" if removal else ""
        new_holder = "this process" if uuid in self._own else ""
        if holder is not None:
            new_holder = holder.describe()
        named = f"{new_holder} ({uuid})" if new_holder else uuid
        now_held = f" It is now held by {named}." if uuid else ""
        self._lose(
            f"The lock {self.name!r} was removed from this holder{how}.{now_held} "
            "Stop the work that it protects.",
            removal,
            detail=2 if removal else 1 if holder else 0,
        )

    def _lose(self, message: str, removal: Removal | None = None, detail: int = 1) -> None:
        """Keep the loss, or replace one of less detail: a watch event has no removal record."""
        if detail > self._loss_detail:
            self.loss = LockLost(
                message,
                name=self.name,
                uuid=self.uuid,
                holder=self.holder,
                removal=removal,
            )
            self._loss_detail = detail  # last: an interrupt before this hides no loss


_Handlers = Mapping[type, Callable[[Acquisition, Any, Now], Step]]
_TAKE_HANDLERS: _Handlers = {Taken: Acquisition._taken, Refused: Acquisition._refused}
_HANDLER_OF: Final[Mapping[State, _Handlers]] = {
    State.TAKING: _TAKE_HANDLERS,
    State.IDENTIFYING: {ReadResult: Acquisition._same_identity},
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
_STATE_OF_REQUEST: Final[Mapping[object, State]] = {state.value: state for state in State}
