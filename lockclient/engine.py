"""The life of one acquisition, without I/O: wait, hold, push, lose, release.

Whoever drives it (threads, asyncio) does what a step says and comes back with what happened:

    step = acquisition.begin(now)
    Request → ask the store, then `answered(outcome, now)`; if nobody answers, `unanswered()` and
              perhaps `again(now)`
    Wait    → watch its target from its revision on, then `woken(event, now)`
    Held    → the lock is had
    Busy    → somebody else has it, and the caller did not want to wait

The line: a waiter watches the ticket ahead of it, and the head of the line watches the holder, so
that one release wakes one waiter. A watch only wakes; the transaction decides.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

from lockclient.errors import LockLost
from lockclient.process import provably_runs
from lockclient.record import Holder, Removal, Ticket
from lockclient.store import (
    Claim,
    Done,
    Event,
    Gone,
    Look,
    Outcome,
    Position,
    Push,
    Queued,
    Read,
    Reclaim,
    Refused,
    Request,
    Seen,
    Take,
    Taken,
    TakeOrQueue,
    Target,
    Unlock,
    Withdraw,
)
from lockclient.timing import Now, Runtime

log = logging.getLogger(__name__)

LOOK_INTERVAL = 60.0
"""Seconds after which a waiter looks for itself, in case a watch lied."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Watch `target` from `revision` on; look after `LOOK_INTERVAL` in any case."""

    target: Target
    revision: int


@dataclass(frozen=True, slots=True)
class Held:
    """The lock is had."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock was not had: `holder` (a uuid) has it, or None if only a line stands before it."""

    holder: str | None


Step = Request | Wait | Held | Busy


class Acquisition:
    """One acquisition of one lock.

    Args:
        holder: what is to be written; its times are renewed for each request.
        runtime: how its stamps are made.
        queue: whether to get in line if the lock is not free.
        line_ready: whether a ticket costs no extra request, so that the first one may queue.
    """

    def __init__(
        self, holder: Holder, runtime: Runtime, *, queue: bool, line_ready: bool = False
    ) -> None:
        self._facts = holder
        self.name = holder.name
        self.uuid = holder.uuid or ""
        self.token = 0
        self.deadline = math.inf
        """Monotonic time at which the lock may be removed if no push is confirmed before."""
        self.quiet_until = 0.0
        """Monotonic time before which another push is not worth a request."""
        self.loss: LockLost | None = None
        self.trouble = ""
        """Why the last push failed, if it did: told when the time runs out."""
        self.unsure = False
        """A take may still be under way somewhere and arrive late: when it is all over, withdraw.

        A late take would hold a lock that nobody knows of, a late take or queue leave a ticket
        that blocks the line for as long as the process lives. Everything else is harmless late: it
        compares a uuid or ticket that is gone by then.
        """
        self._runtime = runtime
        self._queue = queue
        self._line_ready = line_ready
        self._ticket_revision = 0
        self._awaited: Target | None = None
        self._asked: Request | None = None
        self._sent_at = 0.0
        self._confirmed_at = -math.inf
        self._settled = True  # the last request was answered, and not by giving us the lock
        self._tried_identity = holder.identity is None
        self._since: float | None = None
        self._newest = 0.0  # wall-clock time of the latest stamps that were made
        self._releasing = False

    @property
    def holder(self) -> Holder:
        """What this holder has written, as far as it was confirmed."""
        return replace(self._facts, fencing_token=self.token)

    # ------------------------------------------------------------ getting it

    def begin(self, now: Now) -> Step:
        """Return the first request."""
        if self._queue and self._line_ready and self._tried_identity:
            return self._get_in_line(now)
        return self._ask(Take(self._stamped(now)), now)

    def unanswered(self, *, unknown: bool) -> None:
        """Take note that nobody answered the last request; `unknown`: it may have happened."""
        self._settled = not unknown
        self.unsure |= unknown and isinstance(self._asked, Take | TakeOrQueue | Reclaim)

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
        # What may be left behind is noted before the request counts as answered: an interrupt may
        # come between any two of these lines.
        if isinstance(outcome, Taken | Refused | Queued):
            self.unsure |= outcome.resent
        if isinstance(outcome, Taken):
            self.token = outcome.token
        elif isinstance(outcome, Queued):
            self._ticket_revision = outcome.ticket_revision
        self._settled = True
        match outcome:
            case Taken():
                return self._taken(outcome, now)
            case Done() if isinstance(self._asked, Push):
                self.pushed(self._asked, outcome, self._sent_at)
                return Held()
            case Gone():
                return self._get_in_line(now) if self._queue else Busy(outcome.holder)
            case Position(ticket=False):
                return self._queue_again(now)
            case Queued(unsure=True) | Position(unsure=True):
                return self._look()
            case Queued() | Position():
                return self._stand(outcome.predecessor, outcome.holder, outcome.revision, now)
            case Refused():
                return self._refused(outcome, now)
            case Seen():
                return self._same_identity(outcome, now)
        raise AssertionError(f"no answer to {self._asked}: {outcome}")

    def woken(self, event: Event | None, now: Now) -> Step:
        """Return the next step after an event of the awaited target; None: time to look."""
        target = self._awaited
        if event is None or event.missed or target is None:
            return self._look()
        if event.uuid is not None:  # written, not deleted: still in the way
            return Wait(target, event.revision + 1)
        if target.ticket is None:
            return self._claim(now)
        return self._look(predecessor=target.ticket, left_at=event.revision)

    def abandon(self) -> Withdraw | None:
        """Return what leaves nothing of this acquisition behind; None if nothing was ever sent."""
        self._releasing = True
        if not self._settled:  # an interrupt came while it was under way
            self.unanswered(unknown=True)
        return None if self._asked is None else Withdraw(self.name, self.uuid, self.unsure)

    def leaves_traces(self) -> bool:
        """Tell whether a lock or ticket of ours may stand in the store.

        Not after a plain refusal: so a try that fails costs no request more.
        """
        return self.unsure or not self._settled or (self.token or self._ticket_revision) != 0

    def _taken(self, outcome: Taken, now: Now) -> Step:
        sent_at = self._sent_at
        self._ticket_revision = 0
        self._facts = _holder_of(self._asked) or self._facts
        self._confirmed(sent_at)
        if outcome.earlier or now.monotonic - sent_at > self._runtime.push_interval:
            # The stamps in the store are older than we know, or too old: refresh and confirm first.
            return self._ask(self.push(now), now)
        return Held()

    def _refused(self, outcome: Refused, now: Now) -> Step:
        if isinstance(self._asked, Claim):
            if not outcome.ticket:
                return self._queue_again(now)
            # A client that does not know the queue has barged in: wait for it to go.
            return self._stand(None, outcome.holder, outcome.revision, now)
        if not self._tried_identity and outcome.holder is not None:
            self._tried_identity = True
            return self._ask(Read(self.name), now)
        return self._get_in_line(now) if self._queue else Busy(outcome.holder)

    def _same_identity(self, seen: Seen, now: Now) -> Step:
        """Take over from the holder if it has our identity and is not certainly alive."""
        previous = seen.holder
        ours = previous is not None and previous.identity == self.holder.identity
        if previous is None or not ours or provably_runs(previous.process):
            if self._queue:
                return self._get_in_line(now)
            return Busy(None if previous is None else previous.uuid)
        log.warning("Taking %r over from %s: the identity is the same.", *_named(previous))
        return self._ask(Reclaim(self._stamped(now), previous), now)

    def _get_in_line(self, now: Now) -> Step:
        holder = self._stamped(now)
        self._since = self._since or now.wall
        ticket = Ticket(
            *(holder.name, self.uuid, holder.hostname, holder.pid, holder.thread),
            *(holder.reason, round(self._since, 3)),
        )
        return self._ask(TakeOrQueue(holder, ticket), now)

    def _queue_again(self, now: Now) -> Step:
        log.warning(
            "The place in line for %r is lost (no contact with the store for too long); "
            "queueing again at the end.",
            self.name,
        )
        return self._get_in_line(now)

    def _stand(self, predecessor: str | None, holder: str | None, revision: int, now: Now) -> Step:
        """Wait for the ticket ahead, as the head for the holder, or claim if there is neither."""
        if predecessor is None and holder in (None, self.uuid):
            return self._claim(now)  # if an earlier sending of ours has taken it, this tells
        self._awaited = Target(self.name, predecessor)
        return Wait(self._awaited, revision + 1)

    def _claim(self, now: Now) -> Step:
        return self._ask(Claim(self._stamped(now), self._ticket_revision), now)

    def _look(self, predecessor: str | None = None, left_at: int | None = None) -> Step:
        look = Look(self.name, self.uuid, self._ticket_revision, predecessor, left_at)
        self._asked = look
        return look

    def _ask(self, request: Request, now: Now) -> Request:
        self._asked, self._sent_at, self._settled = request, now.monotonic, False
        return request

    def _stamped(self, now: Now) -> Holder:
        self._newest = max(self._newest, now.wall)
        if self._facts.locked_at == now.wall:  # made for this moment: no second copy
            return self._facts
        return self._facts.stamped(self._runtime.stamps(now.wall), taken=True)

    # ------------------------------------------------------------ holding it

    def push(self, now: Now) -> Push:
        """Return the request that pushes the stamps; its outcome goes to `pushed`."""
        newest = now.wall >= self._newest  # unless the clock was set back
        self._newest = max(self._newest, now.wall)
        return Push(self.name, self.uuid, self._runtime.stamps(now.wall), newest)

    def pushed(self, push: Push, outcome: Outcome, sent_at: float) -> None:
        """Take note of a push's outcome; `sent_at` is the monotonic time before it was sent."""
        if not isinstance(outcome, Gone):
            self._facts = self._facts.stamped(push.stamps)
            self._confirmed(sent_at)
        elif not self._releasing:  # otherwise our own unlock may have overtaken it
            self._lose_to(outcome.holder, outcome.removal)

    def _confirmed(self, sent_at: float) -> None:
        """The store has stamps that were made at `sent_at`, so the lock is ours until then + …

        Counted from before the request was sent, the deadline here is never later than the one of
        an unlocker, which counts from when it sees the write.
        """
        # Of two pushes at once (a task's and keepalive's) the store keeps the later one.
        sent_at = self._confirmed_at = max(sent_at, self._confirmed_at)
        self.quiet_until = sent_at + self._runtime.push_interval
        if self._runtime.auto_unlock is not None:
            self.deadline = sent_at + self._runtime.auto_unlock

    def check(self, monotonic: float) -> LockLost | None:
        """Return why the lock is lost, or None as long as it is held."""
        if self.loss is None and monotonic >= self.deadline and not self._releasing:
            why = (
                f"The last try failed: {self.trouble}"
                if self.trouble
                else "Call alive() more often or raise auto_unlock_after."
            )
            self._lose(
                f"The lock {self.name!r} must be taken for lost: no push of its stamps was "
                f"confirmed for {self._runtime.auto_unlock:g} s (auto_unlock_after), so that the "
                f"unlocker may have removed it. {why}"
            )
        return self.loss

    def observed(self, event: Event) -> None:
        """Take note of an event of the lock's uuid."""
        if not self._releasing and event.uuid != self.uuid:
            self._lose_to(event.uuid, None)

    def saw(self, seen: Seen) -> None:
        """Take note of what stands in the store for the lock."""
        uuid = None if seen.holder is None else seen.holder.uuid
        if not self._releasing and uuid != self.uuid:
            self._lose_to(uuid, seen.removal)

    def release(self) -> Unlock:
        """Return the request that gives the lock back; its outcome goes to `released`."""
        self._releasing = True
        return Unlock(self.name, self.uuid)

    def released(self, outcome: Outcome) -> None:
        """Take note of the unlock's outcome.

        Gone without a removal record after a second sending means that the first one did it.
        """
        if isinstance(outcome, Gone) and not (outcome.resent and outcome.removal is None):
            self._lose_to(outcome.holder, outcome.removal)

    def _lose_to(self, uuid: str | None, removal: Removal | None) -> None:
        name = self.name
        how = f" ({removal.describe()})" if removal else ""
        now_held = f" It is now held by {uuid}." if uuid else ""
        self._lose(
            f"The lock {name!r} was removed from this holder{how}.{now_held} "
            "Stop the work that it protects.",
            removal,
        )

    def _lose(self, message: str, removal: Removal | None = None) -> None:
        if self.loss is None or (removal is not None and self.loss.removal is None):
            self.loss = LockLost(
                message,
                name=self.name,
                uuid=self.uuid,
                holder=self.holder,
                removal=removal,
            )


def _holder_of(request: Request | None) -> Holder | None:
    if isinstance(request, Take | TakeOrQueue | Claim | Reclaim):
        return request.holder
    return None


def _named(holder: Holder) -> tuple[str, str]:
    return holder.name, holder.describe()
