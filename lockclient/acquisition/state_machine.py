"""The life of one acquisition, without I/O: wait, hold, push, lose, release.

Its driver, a thread or an event loop, does what a step says and reports what happened:

    step = acquisition.begin(now)
    Request  → send `acquisition.sending`, then `answered(outcome, now)`, or if nobody answers
               perhaps `again(now)`
    Wait     → watch its target, then `woken(event, now)`; None: its time is up
    Acquired → the lock is held
    Busy     → another holder has it, and the caller does not wait
    UsedUp   → begin with a new uuid: this one had the lock already, and lost it

Its states are values of `State`; `_AFTER` says the same as code:

    state        asked last   after which
    taking       Take         Taken: held · Refused: identifying, queueing, or Busy
    identifying  Read         whose is it? ReadResult: reclaiming, queueing, or Busy
    reclaiming   Reclaim      Taken: held · Refused: queueing, or Busy
    queueing     TakeOrQueue  Taken: held · Queued: waiting, or claiming as the head
    waiting      a watch      the one ahead has gone: looking · the holder has: claiming
    looking      GetPosition  Position: waiting, claiming, or queueing again; without a queue:
                              pausing, or taking
    claiming     Claim        Taken: held · Refused: waiting, or queueing again
    pausing      a pause      its end: looking · a hint: taking
    refreshing   Push         the stamps in the store are older than known, or too old: Done: held ·
                              Conflict: refreshing

A Refused whose uuid is spent, and a NotHolder, mean UsedUp in all of them.

A waiter watches the ticket ahead of it, and the head of the queue watches the holder, so that one
release wakes one waiter. A watch only wakes; the transaction decides. Where the store keeps no
queue, each waiter polls, less and less often.
"""

from __future__ import annotations

import math
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
    GetPosition,
    Push,
    Read,
    Reclaim,
    Request,
    RequestState,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from lockclient.text.durations import period
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

SHORT_QUEUE = 32
"""Tickets in a queue up to which a waiter's watch begins from now; see `attempt`."""
_POLL_S = (0.2, 1.0, 30.0)
"""Seconds between two polls where there is no queue, see `Backoff`: soon at first, as most locks
are held for a moment only."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Watch `target` from `revision` on; look after `seconds` in any case.

    With `from_now` the watch begins when the store receives it. If that is later than `revision`,
    the waiter looks once more.
    """

    target: WatchTarget
    revision: int
    from_now: bool = False
    seconds: float = math.inf


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
    """The state of an acquisition until it has the lock, and what it asked last.

    `Acquisition.loss` says when it has the lock no more.
    """

    NEW = None
    TAKING = Take
    IDENTIFYING = Read
    RECLAIMING = Reclaim
    QUEUEING = TakeOrQueue
    WAITING = "a watch"
    LOOKING = GetPosition
    CLAIMING = Claim
    PAUSING = "a pause"
    REFRESHING = Push
    HELD = "held"

    __hash__ = object.__hash__  # in C: each answer is looked up by the state


class Acquisition:
    """One acquisition of one lock.

    The lock is held as long as the store has confirmed stamps whose time has not run out, counted
    from before the request was sent. It is lost when another client's write or that time says so,
    and then for ever.

    Args:
        holder: the record to write; each request renews its times.
        runtime: how its stamps are made.
        queue: whether to wait if the lock is not free.
        lease_ready: whether a ticket costs no extra request, so that the first one may queue.
        own: uuids of locks that this process holds: none of its acquisitions takes them over.
        has_queue: whether the store keeps a queue. Without one, to wait is to poll.
    """

    def __init__(
        self,
        holder: Holder,
        runtime: Runtime,
        *,
        queue: bool,
        lease_ready: bool = False,
        own: Container[str | None] = (),
        has_queue: bool = True,
    ) -> None:
        self._facts = holder
        self.name = holder.name
        self.uuid = holder.uuid or ""
        self.state = State.NEW
        self.token = 0
        self.deadline = math.inf
        """Monotonic time at which the lock may be removed if no push is confirmed before."""
        self.quiet_until = 0.0
        """Monotonic time before which another push is not worth a request."""
        self.loss: LockLost | None = None
        self._loss_detail = -1
        self.trouble = ""
        """Why the last push failed, if it did: the loss says it when the time runs out."""
        self.sending: RequestState | None = None
        """The request that was sent last, and what is not known of it."""
        self._runtime = runtime
        self._queue = queue
        self._lease_ready = lease_ready
        self._own = own
        self._pauses = None if has_queue else Backoff(*_POLL_S)
        self._ticket_revision = 0
        self._short_queue = False
        self._awaited: WatchTarget | None = None
        self._late = False  # an earlier request may still be in flight
        self._sent_at = 0.0
        self._confirmed_at = -math.inf
        """Monotonic time at which the last request was sent that the store confirmed as ours."""
        self._tried_identity = holder.identity is None
        self.rival: Holder | None = None
        """The holder, if a live process of our identity had the lock when that was looked at."""
        self._since: float | None = None
        self._written_at = 0  # revision of our own last confirmed write of the stamps
        self._releasing = False

    # ------------------------------------------------------------ getting it

    def begin(self, now: Now) -> Step:
        """Return the first request."""
        if self._queue and self._lease_ready and self._tried_identity:
            return self._join_queue(now)
        return self._ask(Take(self._stamped(now)), now)

    def anew(self, uuid: str) -> Acquisition:
        """Return one like this that has not begun, with a new uuid."""
        facts, how = replace(self._facts, uuid=uuid), self._runtime
        fresh = Acquisition(
            facts, how, queue=self._queue, lease_ready=self._lease_ready, own=self._own
        )
        fresh._since, fresh._pauses = self._since, self._pauses
        return fresh

    def again(self, now: Now) -> Step:
        """Return the last request once more, with stamps of now."""
        assert self.sending is not None, "again() before begin()"
        request = self.sending.request
        if isinstance(request, Take | TakeOrQueue | Claim | Reclaim):
            request = replace(request, holder=self._stamped(now))
        elif isinstance(request, Push):
            request = self.push(now)
        return self._ask(request, now)

    def answered(self, outcome: Outcome, now: Now) -> Step:
        """Return the next step after an outcome of the last request."""
        sending = self.sending
        assert sending is not None, "answered() before begin()"
        # What may be left behind is noted before the request counts as answered.
        if isinstance(outcome, Taken):
            self.token, self._late = outcome.token, sending.late
        elif isinstance(outcome, Queued):
            self._ticket_revision = outcome.ticket_revision
            self._short_queue = outcome.waiters is not None and outcome.waiters <= SHORT_QUEUE
        sending.in_flight = False
        after = _AFTER[self.state].get(type(outcome))
        if after is None:
            raise AssertionError(f"no answer to {sending.request} while {self.state}: {outcome}")
        return after(self, outcome, now)

    def woken(self, event: WatchEvent | None, now: Now) -> Step:
        """Return the next step after an event of the awaited target; None: time to look."""
        target = self._awaited
        if self.rival_gone():
            self.rival = None
            return self._ask(Read(self.name), now)
        if self._pauses is not None and event is not None and not event.started:
            return self._ask(Take(self._stamped(now)), now)  # a hint: most likely it is free
        if event is None and target is not None:  # most likely nothing has changed
            return self._look(now, predecessor=target.ticket)
        if event is None or event.gap or target is None:
            return self._look(now)
        if event.uuid is not None:  # written, not deleted: still in the way
            return self._watch(target, event.revision)
        if target.ticket is None:
            return self._claim(now)
        return self._look(now, predecessor=target.ticket, left_at=event.revision)

    def rival_gone(self) -> bool:
        """Tell whether the rival has ended, so that its lock can be taken over: no request."""
        return self.rival is not None and not self._lives(self.rival)

    @property
    def may_be_out_there(self) -> bool:
        """Whether a take or ticket of this acquisition may still arrive, see `RequestState`."""
        sending = self.sending
        if sending is not None and (sending.in_flight or sending.ambiguous):
            return self._late or sending.may_come_late()
        return self._late

    def abandon(self) -> Withdraw | None:
        """Return the request that withdraws this acquisition; None if it can have left nothing.

        A plain refusal leaves nothing, so that a try that fails costs no further request.
        """
        self._releasing = True
        sending = self.sending
        unsettled = sending is not None and (sending.in_flight or sending.ambiguous)
        if not (unsettled or self._late or self.token or self._ticket_revision):
            return None
        only_unheard = sending is not None and not (sending.ambiguous or self._late)
        unheard = sending if only_unheard else None
        return Withdraw(self.name, self.uuid, self.may_be_out_there, unheard)

    def _taken(self, outcome: Taken, now: Now) -> Step:
        self._ticket_revision = 0
        self._confirmed(self._sent_at, outcome.token)
        if outcome.by_earlier_send or now.monotonic - self._sent_at > self._runtime.push_interval:
            # The stamps in the store are older than we know, or too old: refresh and confirm first.
            return self._ask(self.push(now), now)
        self.state = State.HELD
        return _ACQUIRED

    def _refreshed(self, outcome: Done | Conflict, now: Now) -> Step:
        assert self.sending is not None
        assert isinstance(self.sending.request, Push)
        if not self.pushed(self.sending.request, outcome, self._sent_at):
            return self._ask(self.push(now), now)
        self.state = State.HELD
        return _ACQUIRED

    def _spent(self, outcome: Refused | NotHolder, _now: Now) -> Step:
        return UsedUp() if self._queue else Busy(outcome.holder)

    def _positioned(self, position: Position, now: Now) -> Step:
        if self._pauses is not None:
            if position.holder not in (None, self.uuid):
                return self._pause(self._pauses)
            # Free, or ours by a sending that nobody answered: the take tells.
            return self._ask(Take(self._stamped(now)), now)
        return self._stand(position, now) if position.ticket else self._queue_again(now)

    def _claim_refused(self, outcome: Refused, now: Now) -> Step:
        if outcome.uuid_spent:
            return self._spent(outcome, now)
        if not outcome.ticket:
            return self._queue_again(now)
        # A client that does not know the queue has barged in: wait for it to go.
        return self._stand(Position(True, None, outcome.holder, outcome.revision), now)

    def _refused(self, outcome: Refused, now: Now) -> Step:
        if outcome.uuid_spent:
            return self._spent(outcome, now)
        if not self._tried_identity and outcome.holder is not None:
            self._tried_identity = True
            return self._ask(Read(self.name), now)
        return self._join_queue(now) if self._queue else Busy(outcome.holder)

    def _same_identity(self, seen: ReadResult, now: Now) -> Step:
        """Take over from the holder if it has our identity and is not certainly alive."""
        previous = seen.holder
        ours = previous is not None and previous.identity == self._facts.identity
        if previous is not None and ours and previous.has_newer_format:  # left alone, dead or not
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
                return self._look(now) if self._ticket_revision else self._join_queue(now)
            return Busy(None if previous is None else previous.uuid)
        log.warning(
            "Taking %r over from %s: the identity is the same. Live processes on different "
            "machines or in different containers must not share one.",
            previous.name,
            previous.describe(),
            extra=naming(self),
        )
        return self._ask(Reclaim(self._stamped(now), previous), now)

    def _lives(self, other: Holder) -> bool:
        return other.uuid in self._own or provably_runs(other.process)

    def _join_queue(self, now: Now) -> Step:
        if self._pauses is not None:
            return self._pause(self._pauses)
        holder = self._stamped(now)
        self._since = self._since or now.wall
        ticket = Ticket(
            *(holder.name, self.uuid, holder.hostname, holder.pid, holder.thread),
            *(holder.reason, round(self._since, 3)),
            actor=holder.actor,
            frame=innermost_frame(holder.backtrace),
        )
        return self._ask(TakeOrQueue(holder, ticket), now)

    def _queue_again(self, now: Now) -> Step:
        log.warning(
            "Lost the place in the queue for %r (no contact with the store for too long); "
            "queueing again at the end.",
            self.name,
            extra=naming(self),
        )
        return self._join_queue(now)

    def _stand(self, place: Queued | Position, now: Now) -> Step:
        """Wait for the ticket ahead, as the head for the holder, or claim if there is neither."""
        if place.ambiguous:
            return self._look(now)
        if place.predecessor is None and place.holder in (None, self.uuid):
            return self._claim(now)  # if an earlier sending of ours has taken it, this tells
        return self._watch(WatchTarget(self.name, place.predecessor), place.revision)

    def _watch(self, target: WatchTarget, revision: int) -> Wait:
        self._awaited, self.state = target, State.WAITING
        return Wait(target, revision + 1, target.ticket is None or self._short_queue)

    def _pause(self, pauses: Backoff) -> Wait:
        self.state = State.PAUSING
        target = WatchTarget(self.name, waiter=self.uuid)
        return Wait(target, 0, from_now=True, seconds=pauses.next())

    def _claim(self, now: Now) -> Step:
        return self._ask(Claim(self._stamped(now), self._ticket_revision), now)

    def _look(
        self, now: Now, predecessor: str | None = None, left_at: int | None = None
    ) -> Request:
        look = GetPosition(self.name, self.uuid, self._ticket_revision, predecessor, left_at)
        return self._ask(look, now)

    def _ask(self, request: Request, now: Now) -> Request:
        if self.sending is not None:  # the only record of it is about to be replaced
            self._late = self.may_be_out_there
        self.sending, self._sent_at = RequestState(request, late=self._late), now.monotonic
        self.state = _ASKING[type(request)]
        return request

    def _stamped(self, now: Now) -> Holder:
        taken_at = round(now.wall, 3)
        if self._facts.locked_at != taken_at:  # else made for this moment: no second copy
            stamped = self._facts.stamped(self._runtime.stamps(now.wall))
            self._facts = replace(stamped, locked_at=taken_at)
        return self._facts

    # ------------------------------------------------------------ holding it

    @property
    def holder(self) -> Holder:
        """The record that this holder has written, as far as the store confirmed it."""
        return replace(self._facts, fencing_token=self.token)

    def push(self, now: Now) -> Push:
        """Return the request that pushes the stamps; its outcome goes to `pushed`."""
        return Push(self.name, self.uuid, self._runtime.stamps(now.wall), self._written_at)

    def pushed(self, push: Push, outcome: Outcome, sent_at: float) -> bool:
        """Note a push's outcome; False: push again, by what is known now.

        `sent_at` is the monotonic time before it was sent.
        """
        if isinstance(outcome, Conflict):
            # Another push of ours (a task's and keepalive's), or another client's: no answer has
            # confirmed what it wrote.
            self._written_at = max(self._written_at, outcome.revision)
            return False
        if isinstance(outcome, Done):
            self._facts = self._facts.stamped(push.stamps)
            self._confirmed(sent_at, outcome.revision)
        elif isinstance(outcome, NotHolder) and not self._releasing:
            self._lose_to(outcome.holder, outcome.removal)  # our own unlock did not overtake it
        return True

    def _confirmed(self, sent_at: float, revision: int) -> None:
        """Note that the store has stamps made at `sent_at`; the deadline counts from there.

        That is before the request was sent, and an unlocker counts from when it sees the write: so
        the deadline here is never later than an unlocker's.
        """
        self._written_at = max(self._written_at, revision)
        # Answers of two pushes at once (a task's and keepalive's) may come in either order.
        sent_at = self._confirmed_at = max(sent_at, self._confirmed_at)
        if self._runtime.auto_unlock is not None:
            self.deadline = sent_at + self._runtime.auto_unlock
        self.quiet_until = min(sent_at + self._runtime.push_interval, self.deadline)

    def check(self, monotonic: float) -> LockLost | None:
        """Return why the lock is lost, or None as long as it is held."""
        if self.loss is None and monotonic >= self.deadline and not self._releasing:
            why = "Call alive() more often or raise auto_unlock_after."
            if self.trouble:
                why = f"The last try failed: {self.trouble}"
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
        """Put off the next push after one without an answer: no hot loop waits for another.

        But never beyond the deadline: then the lock is lost, and the caller must hear that.
        """
        self.quiet_until = min(monotonic, self.deadline)

    def keep_pace(self, pace: float, answered_at: float) -> None:
        """Allow no push within `pace` seconds of an answer, so that two never arrive closer.

        But four pushes in the expected runtime are allowed: so a holder that pushes in time is not
        alerted on, though one push be late.
        """
        rest = answered_at + min(pace, self._runtime.expected / 4)
        self.quiet_until = min(max(self.quiet_until, rest), self.deadline)

    def release(self) -> Unlock:
        """Return the request that unlocks; a `NotHolder` goes to `released`."""
        self._releasing = True
        return Unlock(self.name, self.uuid)

    def released(self, outcome: NotHolder) -> None:
        """Note that the unlock found the lock gone.

        After a second sending, without a removal record, the first sending has unlocked it.
        """
        if not (outcome.resent and outcome.removal is None):
            self._lose_to(outcome.holder, outcome.removal)

    def _lose_to(
        self, uuid: str | None, removal: Removal | None, holder: Holder | None = None
    ) -> None:
        how = f" ({removal.describe()})" if removal else ""
        heir = "this process" if uuid in self._own else ""
        if holder is not None:
            heir = holder.describe()
        now_held = f" It is now held by {f'{heir} ({uuid})' if heir else uuid}." if uuid else ""
        self._lose(
            f"The lock {self.name!r} was removed from this holder{how}.{now_held} "
            "Stop the work that it protects.",
            removal,
            detail=2 if removal else 1 if holder else 0,
        )

    def _lose(self, message: str, removal: Removal | None = None, detail: int = 1) -> None:
        """Keep the loss, or replace one of less detail: the watch tells less than a read."""
        if detail > self._loss_detail:
            self.loss = LockLost(
                message,
                name=self.name,
                uuid=self.uuid,
                holder=self.holder,
                removal=removal,
            )
            self._loss_detail = detail  # last: an interrupt before this hides no loss


_After = Mapping[type, Callable[[Acquisition, Any, Now], Step]]
_TAKES: _After = {Taken: Acquisition._taken, Refused: Acquisition._refused}
_AFTER: Final[Mapping[State, _After]] = {
    State.TAKING: _TAKES,
    State.IDENTIFYING: {ReadResult: Acquisition._same_identity},
    State.RECLAIMING: {**_TAKES, NotHolder: Acquisition._spent},
    State.QUEUEING: {**_TAKES, Queued: Acquisition._stand},
    State.LOOKING: {Position: Acquisition._positioned},
    State.CLAIMING: {Taken: Acquisition._taken, Refused: Acquisition._claim_refused},
    State.REFRESHING: {
        Done: Acquisition._refreshed,
        Conflict: Acquisition._refreshed,
        NotHolder: Acquisition._spent,
    },
}
"""The method that follows an outcome, by the state; see the table at the top."""
_ASKING: Final[Mapping[object, State]] = {state.value: state for state in State}
"""The state in which a request of that type was asked last."""
