"""How an acquisition is carried through, whoever drives it: ask, listen, wait for one's turn.

A waiter watches the lock's holder, or the ticket ahead of its own.

etcd serves a watch that begins at a past revision from a list that it walks every 100 ms, and any
write to any key makes a revision the past. So a watch that begins at "the answer's revision + 1"
often delays a hand-over by 100 ms. A watch that begins from now is served at once, but it misses
an event that came after the answer and before the watch. Two steps close that gap:

1. etcd's answer to the watch names the revision after which the watch misses nothing.
2. If that revision is later than the store's answer, the waiter looks once more (`GetPosition`).
   The watch is open by then, so each event after the look reaches the waiter.

The look costs a request. The head of the queue, which watches the holder, always pays it: its
delay is everyone's. A waiter behind it pays where the queue was short when it joined
(`state_machine.SHORT_QUEUE`). In a long queue the waiter's turn comes much later than 100 ms after
it joined, and its watch begins at the answer's revision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from lockclient.acquisition.holding import Holding, own
from lockclient.acquisition.left_behind import line_of
from lockclient.acquisition.state_machine import LOOK_INTERVAL, Acquisition
from lockclient.acquisition.steps import Acquired, Busy, Hear, Pause, Step, Steps, UsedUp, Wait
from lockclient.acquisition.wait_report import WaitReport
from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.stores import protocol
from lockclient.stores.protocol import (
    ONE_ANSWER_S,
    Inbox,
    MutexStore,
    Subscription,
    WatchEvent,
    WatchTarget,
)
from lockclient.stores.requests import GetPosition, Request, RequestState, TakeOrQueue
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger, naming

if TYPE_CHECKING:
    from lockclient.instruments.observer import Observation

log = get_logger(__name__)

CLEAN_UP = 1.0
"""Seconds that an `acquire` that was too late waits for its clean-up, which goes on without it."""
PROMPT = 0.3
"""Seconds that a request whose caller has gone may take before it counts as lost."""
RIVAL_INTERVAL = 1.0
"""Seconds after which it is looked whether a process of the same identity still lives."""


class GivenUp(Exception):
    """Nobody waits for this acquisition any more."""


def next_event(
    inbox: Inbox, until: float, acquisition: Acquisition, report: WaitReport
) -> Steps[WatchEvent | None]:
    """Return the next event in a waiter's inbox; None: that moment has come, or its rival has gone.

    Meanwhile the waiter logs who holds the lock.
    """
    end = Deadline(until)
    while True:
        longest = RIVAL_INTERVAL if acquisition.has_rival else math.inf
        event: WatchEvent | None = yield Hear(inbox, min(end.remaining(), report.due_in(), longest))
        if event is not None:
            return event
        if end.expired() or acquisition.rival_gone():
            return None
        yield from report.if_due(acquisition.uuid, end)


class Ear:
    """Listens to one target for one waiter, whose ticket is kept alive meanwhile."""

    def __init__(self, store: MutexStore, target: WatchTarget, inbox: Inbox) -> None:
        self.target = target
        self.deaf = False
        """Whether it may have missed something, so that another one is needed."""
        self.inbox = inbox
        self._store = store
        self._watch: Subscription | None = None

    def open(self, revision: int) -> None:
        """Listen from a revision on; 0: from now."""
        self._store.background.tickets.join(self.inbox)
        self._watch = self._store.watch(self.target, revision, self.inbox.put)

    def close(self) -> None:
        """Listen no more."""
        if self._watch is not None:
            self._watch.close()
        self._store.background.tickets.leave(self.inbox)

    def hear(
        self, wait: Wait, deadline: Deadline, acquisition: Acquisition, report: WaitReport
    ) -> Steps[WatchEvent | None]:
        """Return the next event that the waiter has not seen in an answer.

        None: the waiter is to look, or the deadline has come.
        """
        until = min(Deadline.after(LOOK_INTERVAL), deadline)
        while True:
            event = yield from next_event(self.inbox, until, acquisition, report)
            if event is None:
                return None
            if event.gap:
                self.deaf = True
                return event
            if event.revision < wait.revision:
                continue  # the store's last answer shows it already
            if event.started:  # after that answer: an event in between was missed
                return None
            return event


class Attempt:
    """One call of `acquire`: it comes to a `holding`, or leaves nothing.

    Args:
        store: where the lock lives.
        acquisition: its engine.
        inbox: makes an inbox of the driver's kind.
        make_holding: makes what holds the lock once it is had.
    """

    def __init__(
        self,
        store: MutexStore,
        acquisition: Acquisition,
        inbox: Callable[[], Inbox],
        make_holding: Callable[[MutexStore, Acquisition], Holding],
    ) -> None:
        self.store = store
        self.holding: Holding | None = None
        self._acquisition = acquisition
        self._inbox = inbox
        self._make_holding = make_holding
        self._ear: Ear | None = None
        self._quiet: Inbox | None = None  # of a pause: that it is over, and hints
        self._hints: Subscription | None = None
        self.observation: Observation | None = None
        """Tells the program's instruments of it, if there are any."""
        self._report: WaitReport | None = None
        self._begun_at = 0.0
        self._answered = False
        self._given_up = False
        self._over = False

    def steps(self, now: Now, deadline: Deadline) -> Steps[bool]:
        """Do what the engine says to its end; return whether the lock is held.

        However short the time is, there is time for one answer: a lock that is free is had.

        Raises:
            StoreUnavailable: the store did not answer by the deadline, or was never there.
            StoreError: it refuses.
            GivenUp: see `let_go`.
        """
        left = True  # an error, a cancellation, or nobody waits any more
        why: BaseException | None = None
        observation = self.observation
        self._begun_at = now.monotonic
        try:
            step: Step | None = self._acquisition.begin(now)
            while step is not None and not isinstance(step, _ENDS):
                # The sending stands already, then the look: `let_go` does it the other way round.
                if self._given_up:
                    raise GivenUp
                if isinstance(step, _WAITS):
                    step = yield from self._between(step, deadline)
                    continue
                if self._answered and not self._worth_it(step, deadline):
                    break
                sending = self._acquisition.sending
                assert sending is not None
                # Not longer than a while in one go: the stamps in it grow old.
                limit = deadline.within(ONE_ANSWER_S, protocol.STORE_TIMEOUT_S)
                try:
                    outcome = yield (sending, limit)
                except StoreUnavailable as error:
                    step = self._unanswered(error, deadline)
                else:
                    self._answered = True
                    step = self._acquisition.answered(outcome, Now.read())
            if isinstance(step, Acquired):
                self.holding = self._make_holding(self.store, self._acquisition)
                if observation is not None:
                    self.holding.observation = observation
                    token = self._acquisition.holder.shown_token()
                    observation.acquired(self._acquisition.uuid, token)
                if self._report is not None:
                    self._report.end(self._acquisition.uuid)
            else:
                yield from self._withdrawing(deadline)
            left = False
            return self.holding is not None
        except BaseException as error:
            why = error
            raise
        finally:
            if observation is not None and self.holding is None:
                observation.gave_up(self._acquisition.uuid, why)
            why = None  # else it would hold itself by its traceback
            # First the end, then whether it was wanted: `let_go` does it the other way round.
            self._over = True
            for subscription in (self._ear, self._hints):
                if subscription is not None:
                    subscription.close()
            if left or self._given_up:
                self._leave_nothing()

    def _unanswered(self, error: StoreUnavailable, deadline: Deadline) -> Step | None:
        """Return the next step after no answer; None if the time is up. Or raise the error.

        A store that was never there is an error even to who would wait for ever; one that goes away
        while we wait is a pause, and so is one that is there and takes no more at the moment.
        """
        if error.refused and not self._answered:  # by all, and the caller's own time is up
            raise error
        if self._answered:
            if deadline.expired():  # the caller's time was up: that says nothing about the store
                return None
        else:
            forever = deadline == math.inf
            patience = protocol.STORE_TIMEOUT_S if forever else ONE_ANSWER_S
            until = self._begun_at + patience
            waits = forever and error.busy
            if not waits and monotonic() >= (until if forever else max(until, deadline)):
                raise error
        return self._acquisition.again(Now.read())

    def _worth_it(self, step: Request, deadline: Deadline) -> bool:
        """Tell whether to send this; listen before where it is better to."""
        if isinstance(step, GetPosition) and step.left_at is not None:
            # Likely the head of the line from now on: listen first, then look.
            self._listen(Wait(WatchTarget(self._acquisition.name), 0, from_now=True))
        # No ticket only to be taken back.
        return not (isinstance(step, TakeOrQueue) and deadline.expired())

    def _between(self, step: Wait | Pause | UsedUp, deadline: Deadline) -> Steps[Step | None]:
        """Do what is no request; return the engine's next step, None if the time is up."""
        if isinstance(step, Wait):
            return (yield from self._wait(step, deadline))
        if isinstance(step, Pause):
            return (yield from self._pause(step.seconds, deadline))
        yield from self._withdrawing(deadline)
        if self._hints is not None:  # they are told to the uuid of before
            self._hints.close()
            self._hints = self._quiet = None
        self._acquisition = self._acquisition.anew(str(uuid4()))
        return self._acquisition.begin(Now.read())

    def _reporting(self) -> WaitReport:
        """Return the report of this wait, made as the wait begins."""
        if self._report is None:
            self._report = WaitReport(self._acquisition.name, self._begun_at)
            self._warn_of_own_lock()
        return self._report

    def _warn_of_own_lock(self) -> None:
        """Warn if the caller's own thread or task holds the lock: it waits for itself."""
        waiter = self._acquisition
        for held in list(own.values()):
            if held.store is not self.store or held.acquisition.name != waiter.name:
                continue
            if held.acquisition.holder.actor == waiter.holder.actor:
                log.warning(
                    "Waiting for the lock %r, which this thread or task itself acquired at %s. "
                    "A lock is not reentrant: this waits in vain unless another thread or task "
                    "releases it.",
                    *(waiter.name, line_of(held)),
                    extra=naming(waiter),
                )

    def _wait(self, step: Wait, deadline: Deadline) -> Steps[Step | None]:
        """Wait for what the engine waits for; return its next step, None if the time is up."""
        ear = self._listen(step)
        if self._given_up:  # there was no ear to tell it to
            raise GivenUp
        event = yield from ear.hear(step, deadline, self._acquisition, self._reporting())
        if event is None and deadline.expired():
            return None
        return self._acquisition.woken(event, Now.read())

    def _pause(self, seconds: float, deadline: Deadline) -> Steps[Step | None]:
        """Wait for as long as the engine says; return its next step, None if the time is up."""
        if self._quiet is None:
            self._quiet = self._inbox()
            if self.store.can.hints:
                target = WatchTarget(self._acquisition.name, waiter=self._acquisition.uuid)
                self._hints = self.store.watch(target, 0, self._quiet.put)
        if self._given_up:  # there was no inbox to tell it to
            raise GivenUp
        acquisition = self._acquisition
        if deadline.expired():
            return None
        until = min(Deadline.after(seconds), deadline)
        event = yield from next_event(self._quiet, until, acquisition, self._reporting())
        if self._given_up:
            raise GivenUp
        if event is None and deadline.expired():
            return None
        return acquisition.woken(event, Now.read())

    def _listen(self, wait: Wait) -> Ear:
        """Return an ear on the target: the one from before, or else a new one in its place."""
        before = self._ear
        if before is not None:
            if before.target == wait.target and not before.deaf:
                return before
            before.close()
        self._ear = ear = Ear(self.store, wait.target, self._inbox())
        ear.open(0 if wait.from_now else wait.revision)
        return ear

    def _withdrawing(self, deadline: Deadline) -> Steps[None]:
        withdraw = self._acquisition.abandon()
        if withdraw is None:
            return
        try:
            yield RequestState(withdraw), deadline.within(CLEAN_UP, CLEAN_UP)
        except ClusterMutexError as error:
            log.debug(
                *("Withdrawing from %r continues in the background: %s", withdraw.name, error),
                extra=naming(withdraw),
            )
            self.store.background.clean_up(withdraw)

    # ------------------------------------------------------------ giving up, from any thread

    def let_go(self) -> None:
        """Leave nothing: nobody waits any more for what another thread may still do."""
        # First the word, then the look for who is to hear it: the steps do it the other way round.
        self._given_up = True
        sending, ear, quiet = self._acquisition.sending, self._ear, self._quiet
        if sending is not None:
            sending.abandoned = True
        for inbox in (quiet, None if ear is None else ear.inbox):
            if inbox is not None:
                inbox.put(WatchEvent(0, gap=True))
        if not self._over:
            # Most likely it is answered in a moment, and then nothing can arrive late any more.
            scheduler.shared.after(PROMPT, self._if_not_over)
        elif self.holding is not None:
            self._leave_nothing()

    def _if_not_over(self) -> None:
        """Leave nothing of what is known now; at the end, what came of the rest is seen to."""
        if not self._over:
            self._leave_nothing()

    def _leave_nothing(self) -> None:
        # First the word, then the clean-up: a try that begins after that has looked is not sent.
        if (sending := self._acquisition.sending) is not None:
            sending.abandoned = True
        if self.holding is not None:
            self.holding.let_go()
        elif (withdraw := self._acquisition.abandon()) is not None:
            self.store.background.clean_up(withdraw)


_ENDS = (Acquired, Busy)
_WAITS = (Wait, Pause, UsedUp)
