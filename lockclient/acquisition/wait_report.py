"""Wait report: what an `acquire` that waits says in the log: who has the lock, who is ahead."""

from __future__ import annotations

import logging
import math
import os

from lockclient.model.clocks import monotonic
from lockclient.stores.protocol import NEWS, Inbox, Look, MutexStore
from lockclient.text.durations import period
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

FIRST_AFTER_S = 2.0
"""Seconds of waiting after which it is said what for."""
INTERVAL_S = 60.0


class WaitReport:
    """What one waiter says of its wait; nothing where nobody would see it.

    Args:
        store: where the lock is.
        name: of the lock.
        begun_at: when the wait began, on the monotonic clock.
    """

    def __init__(self, store: MutexStore, name: str, begun_at: float) -> None:
        self._store = store
        self._name = name
        self._begun_at = begun_at
        self._due_at = begun_at + FIRST_AFTER_S
        self._news: list[Look | None] = []
        self._told = False

    def warn_of_itself(self, line: str) -> None:
        """Warn at once that the waiter's own thread or task holds the lock.

        Args:
            line: of the program, which acquired it.
        """
        log.warning(
            "Waiting for the lock %r, which this thread or task itself acquired at %s. A lock is "
            "not reentrant: this waits in vain unless another thread or task releases it.",
            *(self._name, line),
            extra={"lock": self._name},
        )

    def due_in(self) -> float:
        """Return the seconds until there is something to do."""
        return max(0.0, self._due_at - monotonic())

    def ask_if_due(self, inbox: Inbox) -> None:
        """Have the store asked, if it is time to; `NEWS` in the inbox tells of its answer."""
        if monotonic() < self._due_at:
            return
        # The next time at the same moment as all waiters of this process, half a minute away at
        # least: one look at the lock is enough for them.
        offset = os.getpid() % INTERVAL_S
        half = monotonic() - offset + INTERVAL_S / 2
        self._due_at = math.ceil(half / INTERVAL_S) * INTERVAL_S + offset
        if not log.isEnabledFor(logging.INFO):
            return

        def tell(look: Look | None) -> None:  # in another thread
            self._news.append(look)  # first: the inbox may be of an earlier wait, and not be heard
            inbox.put(NEWS)

        self._store.background.looks.ask(self._name, tell)

    def say_news(self, uuid: str) -> None:
        """Say what is waited for, if the store has been asked; for the waiter of this uuid."""
        if self._news:
            self._told = True
            waited = period(monotonic() - self._begun_at)
            why = _why(self._news.pop(), uuid)
            self._news.clear()  # what is older
            log.info(
                *("Waiting for the lock %r for %s now%s.", self._name, waited, why),
                extra={"lock": self._name, "uuid": uuid},
            )

    def end(self, uuid: str) -> None:
        """Say that the waiter of this uuid has the lock, if it was said that it waits."""
        if self._told:
            waited = period(monotonic() - self._begun_at)
            extra = {"lock": self._name, "uuid": uuid}
            log.info("Got the lock %r after %s.", self._name, waited, extra=extra)


def _why(look: Look | None, uuid: str) -> str:
    if look is None:
        return "; the store does not say who holds it"
    place, waiting = "", len(look.places)
    if uuid in look.places:
        place = f", {ordinal(look.places[uuid])} of {waiting} in the queue"
    elif waiting:  # joined it since
        place = f", behind {waiting} in the queue"
    if look.holder is None:
        return f"{place}; it is free at the moment"
    return f"{place}; it is held by {look.holder.describe()}"


def ordinal(number: int) -> str:
    """Write `1st`, `2nd`, `3rd`, `4th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
