"""One `acquire()` call: sends requests, waits in the queue, withdraws on failure.

A thread (`thread_driver`) or an event loop (`aio`) drives its steps.

A watch from a past revision can delay a hand-over by 100 ms, because etcd serves such watches only
every 100 ms. If a waiter asks for the events from its last answer's revision + 1, that revision is
often past, because each write to any key advances it. A watch from now is served at once, but may
miss an event that came after the answer. Two steps close that gap:

1. etcd's answer to the watch names the revision after which the watch misses nothing.
2. If that revision is later than the store's answer, the waiter sends one more `GetPosition`. The
   watch is open by then, so each later event reaches the waiter.

The head of the queue watches the holder. It always takes both steps, because its delay delays every
waiter. A waiter behind it takes them if the queue was short when it joined
(`state_machine.SHORT_QUEUE`). In a long queue its turn comes much later than 100 ms, so its watch
begins at the answer's revision.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from lockclient.acquisition.heartbeat_and_loss import Holding, held_by_process
from lockclient.acquisition.state_machine import Acquisition, End, Step, Wait
from lockclient.acquisition.thread_driver import NextEvent, Steps
from lockclient.acquisition.wait_report import WaitReport
from lockclient.errors import ClusterMutexError, LockNotHeld, StoreFull, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.stores import timeouts
from lockclient.stores.mutex_store import Inbox, MutexStore, Subscription, WatchEvent, WatchTarget
from lockclient.stores.request_types import GetPosition, TakeOrQueue
from lockclient.threads import ending, scheduler
from lockclient.threads.log_queue import get_logger, naming

if TYPE_CHECKING:
    from lockclient.instruments.event_delivery import Observation

log = get_logger(__name__)

WITHDRAW_ANSWER_S = 0.2
"""Seconds that a failed `acquire` waits for its withdrawal; then the background repeats it."""
LATE_ANSWER_S = 0.3
"""Seconds to wait for a late answer after the caller gave up. If one comes, the `Withdraw` needs no
tombstone (a key that makes a late take fail)."""
POSITION_POLL_S = 60.0
"""Seconds after which a waiter reads its position, in case a watch missed an event."""
ENDING_POLL_S = 1.0
"""Seconds after which a waiter asks again that can't watch, because the program ends."""
REQUEUE_TURN_S = 1.0
"""Seconds for which a waiter that lost its ticket waits for older ones to queue again, at most."""
RIVAL_POLL_S = 1.0
"""Seconds between two checks, by a waiter, whether the holder with its own identity still runs."""


class GivenUp(Exception):
    """The caller stopped waiting for this acquisition."""


class Attempt(ending.Part):
    """One call of `acquire`: it ends with a `holding`, or is withdrawn.

    Args:
        inbox: makes an inbox of the driver's kind.
        begun: the time of the call.
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
        self.observation: Observation | None = None  # where the program has instruments
        self.name, self.uuid = acquisition.name, acquisition.uuid
        self._acquisition = acquisition
        self._make_inbox = inbox
        self._make_holding = make_holding
        self._begun = begun
        self._deadline = Deadline(begun.monotonic + limit)
        self._watched: WatchTarget | None = None
        self._watch: Subscription | None = None
        self._inbox: Inbox | None = None  # of the watch's events
        self._report: WaitReport | None = None
        self._has_answer = False
        self._caller = threading.get_ident()
        self._is_given_up = False
        self._is_marked = False
        self._error: Exception | None = None  # of the store's end
        self._is_store_full = False
        self._has_ended = False

    def steps(self) -> Steps[bool]:
        """Send the state machine's requests until it ends; return whether the lock is held.

        With timeout 0 it still waits for one answer, so that it acquires a free lock.

        Raises:
            StoreUnavailable: the store did not answer by the deadline, or never.
            StoreError: the store refuses.
            GivenUp: `withdraw_in_background` was called.
            LockNotHeld: this process is a fork's child, and its parent began the call.
        """
        running = self.store.background.acquisitions
        try:
            running[self] = None
            if ending.state.thread not in (None, self._caller):  # see `ending._end_program`
                self.mark(None)
                yield from self._stop()  # before there is a request to withdraw
            step: Step | None = self._acquisition.begin(self._begun)
            while step is not None and step is not End.ACQUIRED and step is not End.BUSY:
                if self._is_given_up:  # the order is argued in `withdraw_in_background`
                    yield from self._stop()
                if os.getpid() != self._acquisition.pid:
                    raise self._inherited_error()
                if isinstance(step, Wait):
                    step = yield from self._wait(step)
                elif isinstance(step, End):  # `UUID_SPENT`
                    step = yield from self._begin_with_new_uuid()
                elif (
                    isinstance(step, TakeOrQueue) and self._has_answer and self._deadline.expired()
                ):
                    break  # it would queue only to withdraw its ticket
                else:
                    if isinstance(step, TakeOrQueue) and self._watch is not None:
                        yield from self._await_turn()
                    if isinstance(step, GetPosition) and step.predecessor_deleted_at is not None:
                        # Probably the head of the queue now: open its watch before the request.
                        self._open_watch(self._acquisition.target(), 0)
                    try:
                        # At most `STORE_TIMEOUT_S` a try, so that a retry carries new stamps.
                        least = WITHDRAW_ANSWER_S if self._has_answer else timeouts.ONE_ANSWER_S
                        limit = self._deadline.within(least, timeouts.STORE_TIMEOUT_S)
                        outcome = yield step, limit
                    except StoreUnavailable as error:
                        step = self._unanswered(error)
                    except StoreFull as error:
                        if self._inbox is None:  # it has not begun to wait
                            raise
                        step = yield from self._wait_for_space(error, self._inbox)
                    else:
                        self._has_answer = True
                        if self._is_given_up and isinstance(step, GetPosition):
                            yield from self._stop()  # its ticket may be revoked by now
                        step = self._acquisition.answered(outcome, Now.read())
            if step is End.ACQUIRED:
                self.holding = self._make_holding(self.store, self._acquisition)
                if self._is_marked:
                    yield from self._stop()
                if self.observation is not None:
                    self._observe_success(self.observation, self.holding)
                if self._report is not None:
                    self._report.log_end(self._acquisition.uuid)
                return True
            yield from self._withdrawing()
            self._observe_failure(None)
            return False
        except BaseException as error:  # a cancellation, too
            if (
                self._is_marked
                and isinstance(error, ClusterMutexError)
                and error is not self._error
            ):
                yield from self._stop()
            self._is_given_up = True
            self._observe_failure(error)
            raise
        finally:
            self._has_ended = True  # before `_is_given_up` is read: see `withdraw_in_background`
            if self._inbox is not None:
                self._close_watch(self._inbox)
            if self._is_given_up and not self._is_marked:
                self._withdraw_now()
            running.pop(self, None)  # last: what is left of it is known by now

    def _stop(self) -> Steps[None]:
        """Raise the error of the closed store, or `GivenUp`; release a lock just acquired.

        At the end of the program sleep until the interpreter stops this thread.
        """
        if self.holding is not None:
            self.holding.release_in_background()
        while self._is_marked and self._error is None:
            self._inbox = self._inbox or self._make_inbox()
            yield NextEvent(self._inbox, POSITION_POLL_S)
        raise self._error or GivenUp

    def _observe_success(self, observation: Observation, holding: Holding) -> None:
        holding.observation = observation
        token = self._acquisition.holder.shown_token()
        observation.acquired(self._acquisition.uuid, token)

    def _observe_failure(self, error: BaseException | None) -> None:
        if self.observation is not None and self.holding is None:
            self.observation.gave_up(self._acquisition.uuid, error)

    def _await_turn(self) -> Steps[None]:
        """Wait until this process's waiters with older tickets have queued again.

        An outage that ends one ticket ends all of its lease: they get new ones in their old order.
        """
        limit = min(Deadline.after(REQUEUE_TURN_S), self._deadline)
        while (inbox := self._inbox) is not None and not limit.expired():
            if self.store.background.tickets.is_next(inbox):
                return
            yield NextEvent(inbox, limit.remaining())
            if self._is_given_up:
                yield from self._stop()

    def _begin_with_new_uuid(self) -> Steps[Step]:
        yield from self._withdrawing()
        self._acquisition = self._acquisition.with_new_uuid(str(uuid4()))
        return self._acquisition.begin(Now.read())

    def _inherited_error(self) -> LockNotHeld:
        name, parent = self._acquisition.name, self._acquisition.pid
        return LockNotHeld(
            f"The process {parent} waits for the lock {name!r}; its fork's child must acquire the "
            "lock by a call of its own.",
            name=name,
        )

    def _unanswered(self, error: StoreUnavailable) -> Step | None:
        """Return the next step after a request without an answer; None: the time is up.

        If the store has answered an earlier request, retry until the deadline. If it has not, and
        every member refuses connections (`error.refused`), raise the error at once. Otherwise retry
        until the deadline, for `ONE_ANSWER_S` at least, then raise. Without a deadline, raise after
        `STORE_TIMEOUT_S`, unless the store says that it is busy.
        """
        begun_at = self._begun.monotonic
        if self._has_answer:
            if self._deadline.expired():
                return None
        elif error.refused:
            raise error
        elif self._deadline == math.inf:
            if not error.busy and monotonic() >= begun_at + timeouts.STORE_TIMEOUT_S:
                raise error
        elif monotonic() >= max(begun_at + timeouts.ONE_ANSWER_S, self._deadline):
            raise error
        return self._acquisition.again(Now.read())

    def _wait_for_space(self, error: StoreFull, inbox: Inbox) -> Steps[Step | None]:
        """Pause, then return the refused request again; None: the time is up.

        A waiter keeps its place while the store is full: holders can still release their locks.
        """
        if not self._is_store_full:
            self._is_store_full = True
            text = "Still waiting for the lock %r, though the store is full: %s"
            log.warning(text, self._acquisition.name, error, extra=naming(self._acquisition))
        until = min(Deadline.after(scheduler.RETRY_S), self._deadline)
        yield NextEvent(inbox, until.remaining())  # the request's outcome shows the change, too
        return None if self._deadline.expired() else self._acquisition.again(Now.read())

    def _wait(self, wait: Wait) -> Steps[Step | None]:
        """Wait for the target's next event; return the next step, None: the time is up."""
        if self._report is None:
            self._report = WaitReport(self._acquisition.name, self._begun.monotonic)
            self._warn_of_own_lock()
        if not ending.can_watch():
            self._inbox = inbox = self._inbox or self._make_inbox()
            yield NextEvent(inbox, min(Deadline.after(ENDING_POLL_S), self._deadline).remaining())
            return None if self._deadline.expired() else self._acquisition.poll(Now.read())
        inbox = self._open_watch(wait.target, 0 if wait.from_now else wait.revision)
        if self._is_given_up:  # read after the inbox exists, see `withdraw_in_background`
            yield from self._stop()
        until = min(Deadline.after(POSITION_POLL_S), self._deadline)
        while True:
            event = yield from self._next_event(inbox, until, self._report)
            # An older event is included in the store's last answer.
            if event is None or event.gap or event.revision >= wait.revision:
                break
        if event is not None and event.gap:
            self._watched = None  # `_open_watch` opens a new watch
        elif event is not None and event.started:
            # The watch began after the store's last answer and may have missed an event. So the
            # state machine reads the position again, as after a timeout.
            event = None
        if event is None and self._deadline.expired():
            return None
        return self._acquisition.woken(event, Now.read())

    def _next_event(
        self, inbox: Inbox, until: Deadline, report: WaitReport
    ) -> Steps[WatchEvent | None]:
        """Return the next event in the inbox; None: `until` passed, or the rival ended."""
        while True:
            longest = RIVAL_POLL_S if self._acquisition.rival else math.inf
            timeout = min(until.remaining(), report.due_at.remaining(), longest)
            event: WatchEvent | None = yield NextEvent(inbox, timeout)
            if event is not None:
                return event
            if until.expired() or self._acquisition.rival_gone():
                return None
            if report.due_at.expired():
                yield from report.log_holder(self._acquisition.uuid, until)

    def _open_watch(self, target: WatchTarget, revision: int) -> Inbox:
        """Watch the target from `revision` on (0: from the current one); return the events' inbox.

        In a store with a queue, a background thread renews the lease of the ticket from now on.
        """
        if self._inbox is not None:
            if self._watched == target:
                return self._inbox
            self._close_watch(self._inbox)
        self._watched = target
        self._inbox = inbox = self._make_inbox()
        if self.store.can.queue:
            self.store.background.tickets.join(
                inbox, self._acquisition.name, self._acquisition.ticket_revision
            )
        self._watch = self.store.watch(target, revision, inbox.put)
        return inbox

    def _close_watch(self, inbox: Inbox) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.store.background.tickets.leave(inbox)

    def _warn_of_own_lock(self) -> None:
        """Warn if the caller's own thread or task holds the lock: a deadlock."""
        waiter = self._acquisition
        for held in list(held_by_process.values()):
            if held.store is not self.store or held.acquisition.name != waiter.name:
                continue
            if held.acquisition.holder.actor == waiter.holder.actor:
                log.warning(
                    "Waiting for the lock %r, which this thread or task itself acquired at %s. "
                    "A lock is not reentrant: this waits in vain unless another thread or task "
                    "releases it.",
                    waiter.name,
                    ending.line_of(held.acquisition.holder, held.line),
                    extra=naming(waiter),
                )

    def _withdrawing(self) -> Steps[None]:
        withdraw = self._acquisition.start_withdrawal()
        if withdraw is None:
            return
        try:
            limit = self._deadline.within(WITHDRAW_ANSWER_S, WITHDRAW_ANSWER_S)
            yield withdraw, limit
        except ClusterMutexError as error:
            text = "Withdrawing from %r continues in the background: %s"
            log.debug(text, withdraw.name, error, extra=naming(withdraw))
            self.store.background.clean_up(withdraw)

    def mark(self, error: Exception | None) -> None:
        """See `ending.Part`."""
        # This thread sets the flags, then reads the inbox; `end` then reads the acquisition. The
        # thread in `steps` writes each of them, then reads the flags.
        self._error, self._is_marked, self.is_open = error, True, False
        self._is_given_up = self._acquisition.delivery.is_given_up = True
        if (inbox := self._inbox) is not None:
            inbox.put(WatchEvent(0, gap=True))

    def end(self) -> None:
        """See `ending.Part`."""
        if self.holding is not None:  # it has succeeded: a lock that the program holds
            return
        withdraw = self._acquisition.start_withdrawal(at_end=True)
        if withdraw is not None:
            self.store.background.clean_up(withdraw)
        self.store.background.acquisitions.pop(self, None)  # the withdrawal is a part of its own

    def withdraw_in_background(self) -> None:
        """Withdraw; returns at once. Called by the scheduler's thread or an event loop."""
        # This thread sets `_is_given_up`, then reads the acquisition, the inbox and `_has_ended`.
        # The thread in `steps` writes each of them, then reads `_is_given_up`. So at least one of
        # the two threads sees the other's write.
        self._is_given_up = self.is_open = True
        self._acquisition.delivery.is_given_up = True
        if (inbox := self._inbox) is not None:
            inbox.put(WatchEvent(0, gap=True))  # wakes the driver
        if not self._has_ended:
            # The answer probably arrives soon, and then no tombstone is needed.
            scheduler.shared.after(LATE_ANSWER_S, self._withdraw_if_running)
        elif self.holding is not None:
            self._withdraw_now()
        # Else `steps` ended without the lock, and has withdrawn.

    clean_up = withdraw_in_background  # for `scheduler.CleanUp`

    def _withdraw_if_running(self) -> None:
        """Withdraw now; `steps` withdraws again when it ends."""
        if not self._has_ended:
            self._withdraw_now()

    def _withdraw_now(self) -> None:
        # With the flag set, the store begins no further try. So set it before the withdrawal.
        self._acquisition.delivery.is_given_up = True
        if self.holding is not None:
            self.holding.release_in_background()
        elif (withdraw := self._acquisition.start_withdrawal()) is not None:
            self.store.background.clean_up(withdraw)
