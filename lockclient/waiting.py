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
from lockclient.background import line_of
from lockclient.driving import Ask, Hear, Inbox, Steps
from lockclient.engine import LOOK_INTERVAL, Acquisition, Busy, Held, Step, Wait
from lockclient.errors import StoreError, StoreUnavailable
from lockclient.store import Event, Look, MutexStore, Subscription, Target
from lockclient.timing import Deadline, Now


class Ear:
    """Listens to one target for one waiter, whose tickets are kept alive meanwhile."""

    def __init__(self, store: MutexStore, target: Target, inbox: Inbox) -> None:
        self.target = target
        self.deaf = False
        """Whether it may have missed something, so that another one is needed."""
        self._store = store
        self._inbox = inbox
        self._line = line_of(store)
        self._watch: Subscription | None = None

    def open(self, revision: int) -> None:
        """Listen from a revision on; 0: from now."""
        self._line.join(self._inbox)
        self._watch = self._store.watch(self.target, revision, self._inbox.put)

    def close(self) -> None:
        """Listen no more."""
        if self._watch is not None:
            self._watch.close()
        self._line.leave(self._inbox)

    def hear(self, wait: Wait, deadline: Deadline) -> Steps[Event | None]:
        """Return the next event that is news to a waiter; None: look, or the deadline has come."""
        look = Deadline.after(LOOK_INTERVAL)
        while True:
            event: Event | None = yield Hear(
                self._inbox, min(look.remaining(), deadline.remaining())
            )
            if event is None:
                return None
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

    def steps(self, step: Step, deadline: Deadline) -> Steps[bool]:
        """Do what the engine says until the lock is held (True) or not to be had (False).

        Raises:
            StoreUnavailable: the store did not answer by the deadline, or was never there.
            StoreError: it refuses.
        """
        acquisition = self._acquisition
        answered = False
        give_up = Deadline.after(driving.PATIENCE)
        try:
            while not isinstance(step, Held | Busy):
                if isinstance(step, Wait):
                    ear = self._listen(step.target, step.revision)
                    event = yield from ear.hear(step, deadline)
                    if event is None and deadline.expired():
                        return False
                    step = acquisition.woken(event, Now.read())
                    continue
                if isinstance(step, Look) and step.left_at is not None:
                    # Likely the head of the line from now on: listen first, then look.
                    self._listen(Target(acquisition.name), 0)
                try:
                    # Not longer than a while in one go: the stamps in the request grow old.
                    outcome = yield Ask(step, deadline.sooner(driving.PATIENCE))
                except StoreError as error:
                    acquisition.unanswered(unknown=error.unknown)
                    raise
                except StoreUnavailable as error:
                    acquisition.unanswered(unknown=error.unknown)
                    if answered and deadline.expired():
                        return False  # the caller's time was up: that says nothing about the store
                    # A store that was never there is an error even to who would wait for ever; one
                    # that goes away while we wait is a pause.
                    never_there = not answered and deadline.at == math.inf and give_up.expired()
                    if deadline.expired() or never_there:
                        raise
                    step = acquisition.again(Now.read())
                    continue
                answered = True
                step = acquisition.answered(outcome, Now.read())
        finally:
            if self._ear is not None:
                self._ear.close()
        return isinstance(step, Held)

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
