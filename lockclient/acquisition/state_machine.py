"""The life of one acquisition, without I/O: wait, hold, push, lose, release.

Whoever drives it (threads, asyncio) does what a step says and comes back with what happened:

    step = acquisition.begin(now)
    Request  → send `acquisition.sending`, then `answered(outcome, now)`, or if nobody answers
               perhaps `again(now)`
    Wait     → watch its target, then `woken(event, now)`
    Pause    → wait that long, then `woken(None, now)`
    Acquired → the lock is had
    Busy     → somebody else has it, and the caller did not want to wait
    UsedUp   → begin with a new uuid: this one had the lock already, and lost it

Its states are named after what it waits for; `_AFTER` says the same as code:

    state        asked last   after which
    taking       Take         Taken: held · Refused: identifying, queueing, or Busy
    identifying  Read         whose is it? ReadResult: reclaiming, queueing, or Busy
    reclaiming   Reclaim      Taken: held · Refused: queueing, or Busy
    queueing     TakeOrQueue  Taken: held · Queued: waiting, or claiming as the head
    waiting      a watch      the one ahead has gone: looking · the holder has: claiming
    looking      GetPosition  Position: waiting, claiming, or queueing again; without a line:
                              pausing, or taking
    claiming     Claim        Taken: held · Refused: waiting, or queueing again
    pausing      a pause      its end: looking · a hint: taking
    refreshing   Push         the stamps in the store are older than known, or too old: Done: held ·
                              Conflict: refreshing

A Refused whose uuid is spent, and a NotHolder, mean UsedUp in all of them.

The line: a waiter watches the ticket ahead of it, and the head of the line watches the holder, so
that one release wakes one waiter. A watch only wakes; the transaction decides. Where the store
keeps no line each waiter looks for itself, less and less often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any, Final

from lockclient.acquisition.held_state import HeldState
from lockclient.acquisition.steps import Acquired, Busy, Pause, Step, UsedUp, Wait
from lockclient.model.backtrace import innermost_frame
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.model.process_identity import provably_runs
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
    Withdraw,
)
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

LOOK_INTERVAL = 60.0
"""Seconds after which a waiter looks for itself, in case a watch lied."""
SHORT_QUEUE = 32
"""Tickets in a queue up to which a waiter's watch begins from now; see `attempt`."""
_WITHOUT_LINE = (0.2, 1.0, 30.0)
"""Seconds between two looks where there is no line: soon at first, as most locks are held for a
moment only."""


_ACQUIRED = Acquired()


class Acquisition(HeldState):
    """One acquisition of one lock.

    Args:
        holder: what is to be written; its times are renewed for each request.
        runtime: how its stamps are made.
        queue: whether to get in line if the lock is not free.
        lease_ready: whether a ticket costs no extra request, so that the first one may queue.
        own: uuids of locks that this very process holds: they are taken over by nobody in it.
        line: whether the store keeps a line. Without one, to queue is to look from time to time.
    """

    __slots__ = (
        "_awaited",
        "_late",
        "_lease_ready",
        "_own",
        "_pauses",
        "_queue",
        "_rival",
        "_sent_at",
        "_short_queue",
        "_since",
        "_ticket_revision",
        "_tried_identity",
        "sending",
    )

    def __init__(
        self,
        holder: Holder,
        runtime: Runtime,
        *,
        queue: bool,
        lease_ready: bool = False,
        own: Container[str | None] = (),
        line: bool = True,
    ) -> None:
        self._facts = holder
        self.name = holder.name
        self.uuid = holder.uuid or ""
        self.token = 0
        self.deadline = math.inf
        self.quiet_until = 0.0
        self.loss = None
        self.trouble = ""
        self.sending: RequestState | None = None
        """The request that was sent last, and what is not known of it."""
        self._runtime = runtime
        self._queue = queue
        self._lease_ready = lease_ready
        self._own = own
        self._pauses = None if line else Backoff(*_WITHOUT_LINE)
        self._ticket_revision = 0
        self._short_queue = False
        self._awaited: WatchTarget | None = None
        self._late = False  # something of an earlier request may still be out there
        self._sent_at = 0.0
        self.confirmed_at = -math.inf
        self._tried_identity = holder.identity is None
        self._rival: Holder | None = None
        self._since: float | None = None
        self._written_at = 0  # revision of our own last confirmed write of the stamps
        self._releasing = False

    # ------------------------------------------------------------ getting it

    def begin(self, now: Now) -> Step:
        """Return the first request."""
        if self._queue and self._lease_ready and self._tried_identity:
            return self._get_in_line(now)
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
        request = self._asked
        if isinstance(request, Take | TakeOrQueue | Claim | Reclaim):
            request = replace(request, holder=self._stamped(now))
        elif isinstance(request, Push):
            request = self.push(now)
        if request is None:
            raise AssertionError("again() before begin()")
        return self._ask(request, now)

    def answered(self, outcome: Outcome, now: Now) -> Step:
        """Return the next step after an outcome of the last request."""
        sending = self.sending
        assert sending is not None, "answered() before begin()"
        # What may be left behind is noted before the request counts as answered.
        if isinstance(outcome, Taken):
            self.token = outcome.token
            if outcome.late_safe:
                self._late = sending.ambiguous = False
        elif isinstance(outcome, Queued):
            self._ticket_revision = outcome.ticket_revision
            self._short_queue = outcome.waiters is not None and outcome.waiters <= SHORT_QUEUE
        sending.in_flight = False
        after = _AFTER[type(sending.request)].get(type(outcome))
        if after is None:
            raise AssertionError(f"no answer to {sending.request}: {outcome}")
        return after(self, outcome, now)

    def woken(self, event: WatchEvent | None, now: Now) -> Step:
        """Return the next step after an event of the awaited target; None: time to look."""
        target = self._awaited
        if self.rival_gone():
            self._rival = None
            return self._ask(Read(self.name), now)
        if self._pauses is not None and event is not None and not event.started:
            return self._ask(Take(self._stamped(now)), now)  # a hint: most likely it is free
        if event is None and target is not None:  # most likely nothing has changed
            return self._look(now, predecessor=target.ticket)
        if event is None or event.gap or target is None:
            return self._look(now)
        if event.uuid is not None:  # written, not deleted: still in the way
            return Wait(target, event.revision + 1, self._from_now(target))
        if target.ticket is None:
            return self._claim(now)
        return self._look(now, predecessor=target.ticket, left_at=event.revision)

    @property
    def queues(self) -> bool:
        """Whether it is waited for where it is not free."""
        return self._queue

    @property
    def has_rival(self) -> bool:
        """Whether a live process of our identity had the lock when that was last looked at."""
        return self._rival is not None

    def rival_gone(self) -> bool:
        """Tell whether that process has ended, so that its lock can be taken over: no request."""
        return self._rival is not None and not self._lives(self._rival)

    @property
    def may_be_out_there(self) -> bool:
        """Whether a take or ticket of this acquisition may still arrive, see `RequestState`."""
        sending = self.sending
        if sending is not None and (sending.in_flight or sending.ambiguous):
            return self._late or sending.may_come_late()
        return self._late

    def abandon(self) -> Withdraw | None:
        """Return what leaves nothing of this acquisition behind; None if there can be nothing.

        After a plain refusal there is nothing, so that a try that fails costs no request more.
        """
        self._releasing = True
        sending = self.sending
        unsettled = sending is not None and (sending.in_flight or sending.ambiguous)
        if not (unsettled or self._late or self.token or self._ticket_revision):
            return None
        return Withdraw(self.name, self.uuid, tombstone=self.may_be_out_there)

    def _taken(self, outcome: Taken, now: Now) -> Step:
        sent_at = self._sent_at
        self._ticket_revision = 0
        if isinstance(self._asked, Take | TakeOrQueue | Claim | Reclaim):
            self._facts = self._asked.holder
        self._confirmed(sent_at, outcome.token)
        if outcome.by_earlier_send or now.monotonic - sent_at > self._runtime.push_interval:
            # The stamps in the store are older than we know, or too old: refresh and confirm first.
            return self._ask(self.push(now), now)
        return _ACQUIRED

    def _refreshed(self, outcome: Done | Conflict, now: Now) -> Step:
        assert isinstance(self._asked, Push)
        if self.pushed(self._asked, outcome, self._sent_at):
            return _ACQUIRED
        return self._ask(self.push(now), now)

    def _spent(self, outcome: Refused | NotHolder, _now: Now) -> Step:
        return UsedUp() if self._queue else Busy(outcome.holder)

    def _positioned(self, position: Position, now: Now) -> Step:
        if self._pauses is not None:
            if position.holder not in (None, self.uuid):
                return Pause(self._pauses.next())
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
        return self._get_in_line(now) if self._queue else Busy(outcome.holder)

    def _same_identity(self, seen: ReadResult, now: Now) -> Step:
        """Take over from the holder if it has our identity and is not certainly alive."""
        previous = seen.holder
        ours = previous is not None and previous.identity == self.holder.identity
        if previous is not None and ours and previous.unknown_needs():  # left alone, dead or not
            log.warning(
                *("Not taking %r over from %s, though the identity is the same: %s.",),
                *(*_named(previous), previous.undecided()),
                extra=naming(self),
            )
            ours = False
        if previous is None or not ours or self._lives(previous):
            self._rival = previous if ours else None
            if self._queue:  # whoever stands in line already, keeps its place
                return self._look(now) if self._ticket_revision else self._get_in_line(now)
            return Busy(None if previous is None else previous.uuid)
        log.warning(
            "Taking %r over from %s: the identity is the same.",
            *_named(previous),
            extra=naming(self),
        )
        return self._ask(Reclaim(self._stamped(now), previous), now)

    def _lives(self, other: Holder) -> bool:
        return other.uuid in self._own or provably_runs(other.process)

    def _get_in_line(self, now: Now) -> Step:
        if self._pauses is not None:
            return Pause(self._pauses.next())
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
        return self._get_in_line(now)

    def _stand(self, place: Queued | Position, now: Now) -> Step:
        """Wait for the ticket ahead, as the head for the holder, or claim if there is neither."""
        if place.ambiguous:
            return self._look(now)
        if place.predecessor is None and place.holder in (None, self.uuid):
            return self._claim(now)  # if an earlier sending of ours has taken it, this tells
        self._awaited = WatchTarget(self.name, place.predecessor)
        return Wait(self._awaited, place.revision + 1, self._from_now(self._awaited))

    def _from_now(self, target: WatchTarget) -> bool:
        return target.ticket is None or self._short_queue

    def _claim(self, now: Now) -> Step:
        return self._ask(Claim(self._stamped(now), self._ticket_revision), now)

    def _look(
        self, now: Now, predecessor: str | None = None, left_at: int | None = None
    ) -> Request:
        look = GetPosition(self.name, self.uuid, self._ticket_revision, predecessor, left_at)
        return self._ask(look, now)

    @property
    def _asked(self) -> Request | None:
        return None if self.sending is None else self.sending.request

    def _ask(self, request: Request, now: Now) -> Request:
        if self.sending is not None:  # the only one who knows of it is about to be forgotten
            self._late = self.may_be_out_there
        self.sending, self._sent_at = RequestState(request), now.monotonic
        return request

    def _stamped(self, now: Now) -> Holder:
        taken_at = round(now.wall, 3)
        if self._facts.locked_at == taken_at:  # made for this moment: no second copy
            return self._facts
        return replace(self._facts.stamped(self._runtime.stamps(now.wall)), locked_at=taken_at)


_After = Mapping[type, Callable[[Acquisition, Any, Now], Step]]
_TAKES: _After = {Taken: Acquisition._taken, Refused: Acquisition._refused}
_AFTER: Final[Mapping[type, _After]] = {
    Take: _TAKES,
    Read: {ReadResult: Acquisition._same_identity},
    Reclaim: {**_TAKES, NotHolder: Acquisition._spent},
    TakeOrQueue: {**_TAKES, Queued: Acquisition._stand},
    GetPosition: {Position: Acquisition._positioned},
    Claim: {Taken: Acquisition._taken, Refused: Acquisition._claim_refused},
    Push: {
        Done: Acquisition._refreshed,
        Conflict: Acquisition._refreshed,
        NotHolder: Acquisition._spent,
    },
}
"""What comes after which outcome of the request that was asked last; see the table at the top."""


def _named(holder: Holder) -> tuple[str, str]:
    return holder.name, holder.describe()
