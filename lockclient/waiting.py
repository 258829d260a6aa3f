"""How an acquisition is carried through, whoever drives it: ask, listen, wait for one's turn.

A waiter has an ear on the lock's holder, or on the ticket ahead.

etcd serves a watch that begins at a revision of the past from a list that it looks through every
100 ms, and any write anywhere makes a revision the past. So the ear on the holder is opened
without one, where it can be before the store is asked how things stand: what happens after that
is told at once. If it turns out to have been opened too late to hear everything since the store
was asked, the store is asked again. Who stands further back can wait for those 100 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lockclient import driving
from lockclient.driving import Ask, Hear, Inbox, Steps
from lockclient.engine import LOOK_INTERVAL, Acquired, Acquisition, Busy, Step, UsedUp, Wait
from lockclient.errors import StoreUnavailable
from lockclient.store import Event, Look, MutexStore, Subscription, TakeOrQueue, Target
from lockclient.timing import Deadline, Now

RIVAL_INTERVAL = 1.0
"""Seconds after which it is looked whether a process of the same identity still lives."""


class GivenUp(Exception):
    """Nobody waits for this acquisition any more."""


class Ear:
    """Listens to one target for one waiter, whose ticket is kept alive meanwhile."""

    def __init__(self, store: MutexStore, target: Target, inbox: Inbox) -> None:
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

    def hear(self, wait: Wait, deadline: Deadline, acquisition: Acquisition) -> Steps[Event | None]:
        """Return the next event that is news to a waiter; None: look, or the deadline has come."""
        look = Deadline.after(LOOK_INTERVAL)
        while True:
            longest = RIVAL_INTERVAL if acquisition.has_rival else math.inf
            event: Event | None = yield Hear(
                self.inbox, min(look.remaining(), deadline.remaining(), longest)
            )
            if event is None:
                if look.expired() or deadline.expired() or acquisition.rival_gone():
                    return None
                continue
            if event.missed:
                self.deaf = True
                return event
            if event.revision < wait.revision:
                continue  # the store was asked later than that
            # Begun after the store was asked: in between it was not listening.
            if event.started:
                return Event(event.revision, missed=True)
            return event


class Pursuit:
    """One acquisition on its way to the lock.

    Args:
        store: where the lock lives.
        acquisition: its engine.
        inbox: makes an inbox of the driver's kind.
    """

    def __init__(
        self, store: MutexStore, acquisition: Acquisition, inbox: Callable[[], Inbox]
    ) -> None:
        self._store = store
        self._acquisition = acquisition
        self._inbox = inbox
        self._ear: Ear | None = None
        self._given_up = False

    def give_up(self) -> None:
        """End the steps soon, from any thread: nobody waits for them any more."""
        # First the word, then the look for who is to hear it: the steps do it the other way round.
        self._given_up = True
        sending, ear = self._acquisition.sending, self._ear
        if sending is not None:
            sending.given_up = True
        if ear is not None:
            ear.inbox.put(Event(0, missed=True))

    def steps(self, step: Step, deadline: Deadline) -> Steps[Step | None]:
        """Do what the engine says to its end: `Acquired`, `Busy`, `UsedUp`, None for too late.

        However short the time is, there is time for one answer: a lock that is free is had.

        Raises:
            StoreUnavailable: the store did not answer by the deadline, or was never there.
            StoreError: it refuses.
            GivenUp: see `give_up`.
        """
        acquisition = self._acquisition
        answered = False
        # A store that was never there is an error even to who would wait for ever; one that goes
        # away while we wait is a pause.
        first = deadline.at_least(driving.ONE_ANSWER)
        if first.at == math.inf:
            first = Deadline.after(driving.PATIENCE)
        try:
            while not isinstance(step, Acquired | Busy | UsedUp):
                if isinstance(step, Wait):
                    ear = self._listen(step.target, step.revision)
                    self._go_on()
                    event = yield from ear.hear(step, deadline, acquisition)
                    if event is None and deadline.expired():
                        return None
                    step = acquisition.woken(event, Now.read())
                    continue
                if isinstance(step, Look) and step.left_at is not None:
                    # Likely the head of the line from now on: listen first, then look.
                    self._listen(Target(acquisition.name), 0)
                if isinstance(step, TakeOrQueue) and answered and deadline.expired():
                    return None  # no ticket only to be taken back
                self._go_on()
                assert acquisition.sending is not None
                # Not longer than a while in one go: the stamps in the request grow old.
                limit = deadline.at_least(driving.ONE_ANSWER).sooner(driving.PATIENCE)
                try:
                    outcome = yield Ask(acquisition.sending, limit)
                except StoreUnavailable:
                    if answered and deadline.expired():
                        return None  # the caller's time was up: that says nothing about the store
                    if not answered and first.expired():
                        raise
                    step = acquisition.again(Now.read())
                    continue
                answered = True
                step = acquisition.answered(outcome, Now.read())
        finally:
            if self._ear is not None:
                self._ear.close()
        return step

    def _go_on(self) -> None:
        if self._given_up:
            raise GivenUp

    def _listen(self, target: Target, revision: int) -> Ear:
        """Return an ear on the target: the one from before, or else a new one in its place."""
        before = self._ear
        if before is not None:
            if before.target == target and not before.deaf:
                return before
            before.close()
        self._ear = ear = Ear(self._store, target, self._inbox())
        ear.open(0 if target.ticket is None else revision)
        return ear
