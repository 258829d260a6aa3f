"""Lock polls, in stores without a watch: one poll of a lock for all its subscribers in a process.

A holder is notified of each change. Waiters queue in the order of their arrival: only the first
waiter is notified that the lock is free, and only its take is sent; other takes are refused with
the last answer. (A hundred threads that each take votes from each other get no lock for minutes.)

Any thread, event loop or signal handler may subscribe and unsubscribe: each change is one operation
in C, and no caller takes a lock. A race costs one more request, or a wait of `_RETRY_S`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.mutex_store import Subscription, WatchEvent, WatchTarget
from lockclient.stores.outcomes import Outcome, Position, Refused, Taken
from lockclient.stores.request_types import GetPosition, Request, Take
from lockclient.threads import scheduler
from lockclient.threads.backoff import Backoff
from lockclient.threads.pool import Repeating, WorkerPool

POLL_INTERVAL_S: Final = 2.0
"""Seconds between two polls of a held lock, and for the answer to one."""
_FIRST_POLL_S: Final = 1.0
"""Seconds to a holder's first poll. A holder watches its lock only after 0.7 s, so an earlier
loss is noticed no later than others."""
_FRESH_S: Final = 1.0
"""Seconds for which other takes are refused with the last answer. A first waiter that sleeps, or a
lost hint, delays the others for no longer."""
_RETRY_S: Final = 0.5
"""Seconds to the next poll after the first waiter was notified, or a take was split. A waiter that
has sent no take by then goes to the end."""


class PollSubscription:
    """A holder's or, with a `uuid`, a waiter's interest in a lock."""

    def __init__(self, poll: LockPoll, notify: Callable[[WatchEvent], None], uuid: str) -> None:
        self.uuid = uuid
        self.notify = notify
        self.notified: tuple[str | None] | None = None
        """The holder in the last notification."""
        self.pauses = Backoff(first=0.2, least=1.0, most=30.0)
        self.closed = False
        self.hints: Subscription | None = None
        self._poll = poll

    def close(self) -> None:
        self.closed = True  # first: `_notify_first` reads it after it has moved a waiter
        self._poll.remove(self)
        if self.hints is not None:
            self.hints.close()


class LockPoll:
    """Polls one lock while it has subscribers.

    Args:
        name: the lock's name.
        ask: sends a request to the store.
        urgent, patient: the threads that poll if a holder is subscribed, and otherwise.
        polls: the store's polls by name; this poll removes itself with its last subscriber.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[Request, Deadline], Outcome],
        urgent: WorkerPool,
        patient: WorkerPool,
        polls: dict[str, LockPoll],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = name
        self._ask = ask
        self._polls = polls
        self._clock = clock
        self.holders: list[PollSubscription] = []
        self.waiters: list[PollSubscription] = []
        self._holder: str | None = None  # by the last answer
        self._asked_at = -math.inf
        self._asking: set[str] = set()
        self._hints = 0
        self._settled = 0  # hints that came before an answer that named a holder
        self._notified: PollSubscription | None = None  # the first one, until it sends a take
        self._notified_at = -math.inf
        self._repeating = Repeating(
            lambda run: (urgent if self.holders else patient).submit(run), self._poll
        )

    def add(self, one: PollSubscription) -> None:
        (self.waiters if one.uuid else self.holders).append(one)
        self._repeating.run_within(one.pauses.next() if one.uuid else _FIRST_POLL_S)

    def remove(self, one: PollSubscription) -> None:
        for subscribed in (self.waiters, self.holders):
            with suppress(ValueError):
                subscribed.remove(one)
        if not (self.waiters or self.holders):
            self._polls.pop(self._name, None)
        elif self._notified is one:
            self._repeating.run_within(0.0)

    # ------------------------------------------------------------ polling

    def _poll(self) -> float | None:
        """Called by the pool: poll once, and notify; return seconds to the next poll."""
        begun, hints = self._clock(), self._hints
        holders, waiters = [*self.holders], [*self.waiters]
        if not (holders or waiters):
            return None
        self._asked_at = begun
        # A holder loses its lock by the answer, so it must be certain: it is, without a uuid.
        request = GetPosition(self._name, "" if holders else waiters[0].uuid, 0)
        try:
            found = self._ask(request, Deadline.after(POLL_INTERVAL_S))
        except StoreUnavailable:
            pass  # the next poll notifies; a holder notices by itself when its time ends
        except ClusterMutexError:  # each waiter sends a take, which raises the error
            for waiter in waiters:
                waiter.notify(WatchEvent(0, gap=True))
        else:
            assert isinstance(found, Position)
            self._answered(found.holder, hints)
            for one in holders:
                if one.notified != (found.holder,) and not one.closed:
                    one.notified = (found.holder,)
                    one.notify(WatchEvent(found.revision, found.holder))
        pauses = [waiter.pauses.next() for waiter in waiters]
        if holders:
            pauses.append(max(0.0, begun + POLL_INTERVAL_S - self._clock()))
        return min(pauses)

    def _answered(self, holder: str | None, hints: int) -> None:
        """Note an answer of the store to a request before which so many hints had come."""
        self._holder = holder
        if holder is None:
            self._notify_first()
        else:
            self._settled, self._notified = max(self._settled, hints), None

    # ------------------------------------------------------------ takes

    def take(self, request: Take, send: Callable[[], Outcome]) -> Outcome:
        """Send a take, or refuse it if another waiter is first and has a fresh answer."""
        uuid, now = request.holder.uuid or "", self._clock()
        with suppress(IndexError):
            is_behind = self.waiters[0].uuid != uuid and now < self._asked_at + _FRESH_S
            # To take over from its own identity, an acquisition has to see that holder.
            if is_behind and request.holder.identity is None:
                return Refused(self._holder, 0)
        self._asked_at, hints, outcome = now, self._hints, None
        if self._notified is not None and self._notified.uuid == uuid:
            self._notified = None
        try:
            self._asking.add(uuid)
            outcome = send()
        finally:
            self._asking.discard(uuid)
            self._taken(uuid, outcome, hints)
        return outcome

    def _taken(self, uuid: str, outcome: Outcome | None, hints: int) -> None:
        if isinstance(outcome, Taken):
            self._answered(uuid, hints)
        elif hints < self._hints:  # released meanwhile: the answer may be older
            self._notify_first()
        elif isinstance(outcome, Refused) and outcome.holder is not None:
            self._answered(outcome.holder, hints)
        else:
            self._repeating.run_within(_RETRY_S)

    # ------------------------------------------------------------ hints

    def on_hint(self, news: str, pause: float) -> None:
        """Note a `message` that the lock was released, or that messages may have been missed.

        The first waiter is notified `pause` seconds after a message.
        """
        if news != "message":
            self._repeating.run_within(0.0)
            return
        self._hints += 1
        notify = partial(self._notify_of, self._hints)
        if pause > 0:
            scheduler.shared.after(pause, notify)
        else:
            notify()

    def _notify_of(self, hint: int) -> None:
        """Notify the first waiter, unless a later hint came or a later answer names a holder."""
        if hint == self._hints and self._settled < hint:
            self._notify_first()

    def _notify_first(self) -> None:
        """Notify the first waiter that the lock is free; one that does not react goes last."""
        if self._asking:  # the answer to that take notifies
            return
        with suppress(IndexError):  # there is no waiter
            first = self.waiters[0]
            if first is self._notified:
                if self._clock() < self._notified_at + _RETRY_S / 2:
                    return
                self.waiters.append(self.waiters.pop(0))
                if first.closed:
                    self.remove(first)
                first = self.waiters[0]
            self._notified, self._notified_at = first, self._clock()
            first.notify(WatchEvent(0))
            self._repeating.run_within(_RETRY_S)


Listen = Callable[[str, Callable[[str, float], None]], Subscription]


class LockPolls:
    """The polls of one store.

    Args:
        ask: sends a request to the store.
        urgent, patient: the threads that poll held locks, and locks that only waiters want.
    """

    def __init__(
        self,
        ask: Callable[[Request, Deadline], Outcome],
        urgent: WorkerPool,
        patient: WorkerPool,
    ) -> None:
        self.listen: Listen | None = None
        """Subscribes a function to the hints about a lock, where the store publishes hints."""
        self.polls: dict[str, LockPoll] = {}
        """The polls of locks with a waiter or a holder here, by name. Takes go through them."""
        self._ask = ask
        self._pools = urgent, patient

    def watch(self, target: WatchTarget, notify: Callable[[WatchEvent], None]) -> PollSubscription:
        """See `MutexStore.watch`."""
        poll = self.polls.get(target.name)
        if poll is None:
            new = LockPoll(target.name, self._ask, *self._pools, self.polls)
            poll = self.polls.setdefault(target.name, new)
        one = PollSubscription(poll, notify, target.waiter)
        poll.add(one)
        if target.waiter and self.listen is not None:
            one.hints = self.listen(target.name, poll.on_hint)
        return one
