"""Attempt: one `acquire()` call. It sends requests, waits in the queue, withdraws on failure.

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
from lockclient.acquisition.state_machine import Acquired, Acquisition, Busy, Step, UsedUp, Wait
from lockclient.acquisition.steps import Hear, Steps
from lockclient.acquisition.wait_report import WaitReport
from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.stores import protocol
from lockclient.stores.protocol import Inbox, MutexStore, Subscription, WatchEvent, WatchTarget
from lockclient.stores.requests import GetPosition, RequestState, TakeOrQueue
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger, naming

if TYPE_CHECKING:
    from lockclient.instruments.observer import Observation

log = get_logger(__name__)

CLEAN_UP = 1.0
"""Seconds that an `acquire` without success waits for its withdrawal, which goes on without it."""
PROMPT = 0.3
"""Seconds after which the request of a caller that has gone counts as unanswered."""
LOOK_INTERVAL = 60.0
"""Seconds after which a waiter reads its position, in case a watch missed something."""
RIVAL_INTERVAL = 1.0
"""Seconds after which a waiter checks whether a process of its identity still lives."""


class GivenUp(Exception):
    """No caller waits for this acquisition any more."""


class Attempt:
    """One call of `acquire`: it ends with a `holding`, or leaves nothing.

    Args:
        store: where the lock lives.
        acquisition: its state machine.
        inbox: makes an inbox of the driver's kind.
        make_holding: makes the `Holding` of an acquired lock.
        begun: when it began.
        limit: seconds to wait for the lock.
    """

    def __init__(
        self,
        store: MutexStore,
        acquisition: Acquisition,
        inbox: Callable[[], Inbox],
        make_holding: Callable[[MutexStore, Acquisition], Holding],
        begun: Now,
        limit: float,
    ) -> None:
        self.store = store
        self.holding: Holding | None = None
        self.observation: Observation | None = None
        """Notifies the program's instruments, if there are any."""
        self._acquisition = acquisition
        self._make_inbox = inbox
        self._make_holding = make_holding
        self._begun = begun
        self._deadline = Deadline(begun.monotonic + limit)
        self._watched: WatchTarget | None = None
        self._watch: Subscription | None = None
        self._inbox: Inbox | None = None  # to which the watch puts its events
        self._report: WaitReport | None = None
        self._answered = False
        self._given_up = False
        self._over = False

    def steps(self) -> Steps[bool]:
        """Do what the state machine says to its end; return whether the lock is held.

        Even without time one answer is waited for: a lock that is free is acquired.

        Raises:
            StoreUnavailable: the store did not answer by the deadline, or was never there.
            StoreError: it refuses.
            GivenUp: see `let_go`.
        """
        observation = self.observation
        try:
            step: Step | None = self._acquisition.begin(self._begun)
            while step is not None and not isinstance(step, (Acquired, Busy)):
                # This thread publishes `sending`, then reads the flag. `let_go` sets the flag, then
                # reads `sending`. So at least one of them sees the other.
                if self._given_up:
                    raise GivenUp
                if isinstance(step, Wait):
                    step = yield from self._wait(step)
                    continue
                if isinstance(step, UsedUp):
                    yield from self._withdrawing()
                    self._acquisition = self._acquisition.with_new_uuid(str(uuid4()))
                    step = self._acquisition.begin(Now.read())
                    continue
                if self._answered and isinstance(step, TakeOrQueue) and self._deadline.expired():
                    break  # no ticket only to withdraw it
                if isinstance(step, GetPosition) and step.predecessor_deleted_at is not None:
                    # Likely the head of the queue from now on: watch first, then look.
                    self._listen(WatchTarget(self._acquisition.name), 0)
                sending = self._acquisition.sending
                assert sending is not None
                # Not longer than a while in one go: the stamps in it grow old.
                limit = self._deadline.within(protocol.ONE_ANSWER_S, protocol.STORE_TIMEOUT_S)
                try:
                    outcome = yield (sending, limit)
                except StoreUnavailable as error:
                    step = self._unanswered(error)
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
                    self._report.log_end(self._acquisition.uuid)
                return True
            yield from self._withdrawing()
            if observation is not None:
                observation.gave_up(self._acquisition.uuid, None)
            return False
        except BaseException as error:  # a cancellation, too
            self._given_up = True
            if observation is not None and self.holding is None:
                observation.gave_up(self._acquisition.uuid, error)
            raise
        finally:
            # The driver sets `_over`, then reads `_given_up`; `let_go` does it the other way round.
            self._over = True
            if self._inbox is not None:
                self._stop_listening(self._inbox)
            if self._given_up:
                self._leave_nothing()

    def _unanswered(self, error: StoreUnavailable) -> Step | None:
        """Return the next step after no answer; None if the time is up. Or raise the error.

        A store that never answered is an error, even without a time limit. One that becomes
        unreachable during the wait is a pause, and so is one that is busy.
        """
        begun_at = self._begun.monotonic
        if self._answered:
            if self._deadline.expired():  # the store may be reachable
                return None
        elif error.refused:  # by all, and the caller's own time is up
            raise error
        elif self._deadline == math.inf:
            if not error.busy and monotonic() >= begun_at + protocol.STORE_TIMEOUT_S:
                raise error
        elif monotonic() >= max(begun_at + protocol.ONE_ANSWER_S, self._deadline):
            raise error
        return self._acquisition.again(Now.read())

    def _wait(self, wait: Wait) -> Steps[Step | None]:
        """Wait for the target's next event; return the next step, None if the time is up."""
        if self._report is None:
            self._report = WaitReport(self._acquisition.name, self._begun.monotonic)
            self._warn_of_own_lock()
        inbox = self._listen(wait.target, 0 if wait.from_now else wait.revision)
        if self._given_up:  # `let_go` may have found no inbox
            raise GivenUp
        until = min(Deadline.after(min(wait.seconds, LOOK_INTERVAL)), self._deadline)
        while True:
            event = yield from self._next_event(inbox, until, self._report)
            if event is None:
                break
            if event.gap and not event.started:
                self._watched = None  # it may have missed something: the next wait needs another
                break
            if event.revision >= wait.revision:  # else the store's last answer shows it already
                if event.started:  # after that answer: an event in between was missed
                    event = None
                break
        if event is None and self._deadline.expired():
            return None
        return self._acquisition.woken(event, Now.read())

    def _next_event(
        self, inbox: Inbox, until: Deadline, report: WaitReport
    ) -> Steps[WatchEvent | None]:
        """Return the next event in the inbox; None: the moment has come, or the rival ended."""
        while True:
            longest = RIVAL_INTERVAL if self._acquisition.rival else math.inf
            timeout = min(until.remaining(), report.due_at.remaining(), longest)
            event: WatchEvent | None = yield Hear(inbox, timeout)
            if event is not None:
                return event
            if until.expired() or self._acquisition.rival_gone():
                return None
            if report.due_at.expired():
                yield from report.log_holder(self._acquisition.uuid, until)

    def _listen(self, target: WatchTarget, revision: int) -> Inbox:
        """Return the inbox of a watch of the target, from a revision on or (0) from now.

        Meanwhile the waiter's ticket is kept alive.
        """
        if self._inbox is not None:
            if self._watched == target:
                return self._inbox
            self._stop_listening(self._inbox)
        self._watched = target
        self._inbox = inbox = self._make_inbox()
        if self.store.can.queue:
            self.store.background.tickets.join(inbox)
        if self.store.can.queue or self.store.can.hints:
            self._watch = self.store.watch(target, revision, inbox.put)
        return inbox

    def _stop_listening(self, inbox: Inbox) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.store.background.tickets.leave(inbox)

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
                    waiter.name,
                    line_of(held),
                    extra=naming(waiter),
                )

    def _withdrawing(self) -> Steps[None]:
        withdraw = self._acquisition.start_withdrawal()
        if withdraw is None:
            return
        try:
            yield RequestState(withdraw), self._deadline.within(CLEAN_UP, CLEAN_UP)
        except ClusterMutexError as error:
            text = "Withdrawing from %r continues in the background: %s"
            log.debug(text, withdraw.name, error, extra=naming(withdraw))
            self.store.background.clean_up(withdraw)

    # ------------------------------------------------------------ giving up, from any thread

    def let_go(self) -> None:
        """Leave nothing: the caller does not wait for what another thread may still do."""
        # First the flag, then what may wait for it: `steps` does it the other way round.
        self._given_up = True
        sending, inbox = self._acquisition.sending, self._inbox
        if sending is not None:
            sending.abandoned = True
        if inbox is not None:
            inbox.put(WatchEvent(0, gap=True))
        if not self._over:
            # Most likely the request in flight is answered in a moment; then none can arrive late.
            scheduler.shared.after(PROMPT, self._if_not_over)
        elif self.holding is not None:
            self._leave_nothing()

    def _if_not_over(self) -> None:
        """Withdraw by what is known now; at its end the driver withdraws by the rest."""
        if not self._over:
            self._leave_nothing()

    def _leave_nothing(self) -> None:
        # First the flag, then the withdrawal: a try that begins later sees it and is not sent.
        if (sending := self._acquisition.sending) is not None:
            sending.abandoned = True
        if self.holding is not None:
            self.holding.let_go()
        elif (withdraw := self._acquisition.start_withdrawal()) is not None:
            self.store.background.clean_up(withdraw)
