"""Tells one URL what it is owed: under its claim, in order, one message at a time.

Who tells is agreed in the note (`note`). Those first in rank claim first, the others a little
later: ranks keep two from claiming at once, and do no more. A claim is free when it was given up;
when its owner's heartbeat is gone, as seen by one that is not blind; or when it stood unchanged
for longer than a try can last.

Where no claim can be had, because the store does not answer, is full, or grants the rights of
yesterday, it is told without one: by the first in rank after `NO_CLAIM_S`, by each further one a
`TAKEOVER_S` later. What was told so is noted when the note can be written again.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.stores.service_protocol import ServiceStore
from unlocker.notifications.events import MAX_LINES, Event, Message, message_of, portion
from unlocker.notifications.note import (
    MAX_PAUSE_S,
    REFUSED,
    TOLD,
    UNANSWERED,
    NotificationNote,
    UrlState,
)
from unlocker.notifications.recipients import Recipient

log = logging.getLogger(__name__)

MIN_PAUSE_S = 5.0
"""Seconds between two messages to a URL: each pause is twice the one before, while more comes, up
to `note.MAX_PAUSE_S`; after one that is full the next one follows sooner, so that a rush of a
hundred locks a minute is told as it comes."""
NEXT_RANK_S = 2.0
"""Seconds for which each leaves the note, and a claim, to the one before it in rank."""
HANG_S = 90.0
"""Seconds after which a claim that stands unchanged is free: longer than `recipients.TRY_S`."""
NO_CLAIM_S = 10.0
TAKEOVER_S = 60.0
MIN_RETRY_S, MAX_RETRY_S = 10.0, 120.0
"""Seconds between two tries of this unlocker with a URL that does not work."""
_TIMEOUT_S = 3.0
"""Seconds for a change of the note, or a look at it."""

_Result = TypeVar("_Result")


class Agreement:
    """The note in the store, as it was last read, and what changes it; for several threads."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self.note = NotificationNote()
        """Nobody changes this one."""
        self.failing = False
        """Whether the last change that was wanted could not be written."""

    def look(self, older_than: float) -> None:
        """Read the note if what is known of it is so many seconds old; errors: as the store's."""
        with self._lock:
            if monotonic() - self._looked_at >= older_than:
                self._looked_at = monotonic()
                self.note = NotificationNote(self._store.read_note(self._deadline()).value)

    def change(self, edit: Callable[[NotificationNote], _Result]) -> _Result:
        """Have the note changed by `edit`, which is called with each state that others leave.

        Raises:
            ClusterMutexError: it can't be written; it may have been.
        """
        deadline, written = self._deadline(), False
        try:
            with self._lock:
                while not written:
                    seen = self._store.read_note(deadline)
                    note = NotificationNote(seen.value)
                    before, result, value = note.value(), edit(note), note.value()
                    written = value == before or self._store.write_note(value, seen, deadline)
                    if deadline.expired() and not written:
                        raise StoreUnavailable("Other unlockers write the shared note.")
                self._looked_at, self.note = monotonic(), note
        except ClusterMutexError as error:
            if not self.failing:
                log.warning(
                    "The note in which unlockers agree on sent notifications can't be "
                    "written: until it can, each unlocker may send its own. %s (If it was "
                    "refused: let `clustermutex setup-auth` of this version grant it.)",
                    error,
                    extra={"event": "notify-note-failed"},
                )
            self.failing = True
            raise
        if value != before:
            self.failing = False
        return result

    def _deadline(self) -> Deadline:
        return Deadline.after(_TIMEOUT_S + self._store.poll)


class Peers(Protocol):
    """What a teller wants to know of its unlocker and of the others."""

    identity: str
    where: str
    poll: float
    count: Callable[[str, int], None]

    def is_alone(self) -> bool:
        """Tell whether no other unlocker tells people."""

    def rank(self) -> int:
        """Return how many unlockers come before this one."""

    def is_alive(self, unlocker: str) -> bool:
        """Tell whether an unlocker may live, as far as known; one that is blind knows nothing."""

    def unnoted(self) -> Sequence[Event]:
        """Return what was to be noted and could not be."""


class Teller:
    """Tells one URL; for one thread."""

    def __init__(self, recipient: Recipient, agreement: Agreement, peers: Peers) -> None:
        self._recipient = recipient
        self.url = recipient.name
        self._agreement = agreement
        self._peers = peers
        self._outcomes: list[tuple[UrlState, str, float]] = []
        """How tries went that the note does not have yet: no more than these are told twice."""
        self._owed_since: float | None = None
        self._token: str | None = None
        self._changed_at = self._rested_at = float("-inf")
        self._retry_s, self._not_before = 0.0, float("-inf")
        self.failing_since: float | None = None
        """Since when it has been owed something and tries of this unlocker have failed."""

    def step(self, *, ending: bool = False) -> None:
        """Tell it the next message, if there is one and it is time; at the end only if nobody else
        can."""
        if ending and not self._peers.is_alone():
            return
        now, rank, poll = monotonic(), self._peers.rank(), self._peers.poll
        state = self._agreement.note.urls.get(self.url, UrlState())
        if state.token != self._token:
            # Who has just begun can't know how long ago a try was that it finds: it need not rest,
            # or people would be told nothing by processes that live for less than a pause.
            self._rested_at = now if self._token is not None else float("-inf")
            self._token, self._changed_at = state.token, now
        told = {name for tried, how, _ in self._outcomes if how == TOLD for name in tried.names}
        owed = [e for e in self._agreement.note.owed(self.url) if e.name not in told]
        unnoted = [e for e in self._peers.unnoted() if self.url not in e.told and e.stands()]
        if not (owed or unnoted or state.more or self._outcomes):
            self._owed_since = self.failing_since = None
            return
        since = self._owed_since = self._owed_since or now
        if now < max(since + rank * (NEXT_RANK_S + poll), self._not_before) and not ending:
            return
        with suppress(ClusterMutexError):
            self._settle()
            if self._peers.is_alive(self._peers.identity):  # else others can't see that it is
                # What was begun and not ended is told at once, if nobody is at it.
                rested = state.names or now >= self._rested_at + state.pause or ending
                if rested and (state.by == self._peers.identity or self._is_free(state)):
                    self._tell_claimed(state)
                owed = []  # it is told, or somebody else tells it
        left = portion([*owed, *unnoted])
        if left and (now >= since + NO_CLAIM_S + poll + rank * TAKEOVER_S or ending):
            self._tell_unclaimed(left, again=rank > 0)

    def _settle(self) -> None:
        """Have the note know how tries went; errors: as the store's."""
        while self._outcomes:
            outcome = self._outcomes[0]
            self._give_up(self._agreement.change(lambda note: note.settle(self.url, *outcome)))  # noqa: B023 - called at once
            del self._outcomes[0]

    def _tell_claimed(self, seen: UrlState) -> None:
        now, token = Now.read(), secrets.token_hex(4)
        claimed = self._agreement.change(
            lambda note: note.claim(self.url, self._peers.identity, token, self._is_free, now.wall)
        )
        if claimed is None:
            return
        state, events, again = claimed
        message = message_of(events, state.more, self._peers.where, now.wall, again=again)
        how = self._deliver(message, len(events))
        calm = now.monotonic - self._changed_at > MAX_PAUSE_S + MIN_PAUSE_S
        full = sum(bool(event.line) for event in events) >= MAX_LINES
        longer = min(MAX_PAUSE_S, max(MIN_PAUSE_S, 2 * seen.pause))
        pause = MIN_PAUSE_S if calm or full else longer
        # Who failed waits by itself; another one, which may reach the URL, need not.
        self._outcomes.append((state, how, pause if how == TOLD else 0.0))
        with suppress(ClusterMutexError):  # then before the next one
            self._settle()

    def _is_free(self, state: UrlState) -> bool:
        """Tell whether nobody tells this URL now, as far as can be known."""
        stood_s = monotonic() - self._changed_at if state.token == self._token else 0.0
        alive = bool(state.by) and self._peers.is_alive(state.by)
        return not alive or stood_s > HANG_S + 4 * self._peers.poll

    def _tell_unclaimed(self, left: Sequence[Event], *, again: bool) -> None:
        """Tell what is owed, and what could not be noted; others may tell it, too, and those before
        this one in rank most likely have.

        What is not answered then counts as told: others tell it as well, and nobody could count.
        """
        now = Now.read()
        message = message_of(left, {}, self._peers.where, now.wall, again=again)
        how = self._deliver(message, len(left))
        if how != REFUSED:
            for event in left:
                if not event.owed:  # as all that is not noted
                    event.told.append(self.url)
            # One of them may just have been noted, by us or by another.
            tried = UrlState(names=[event.name for event in left])
            self._outcomes.append((tried, TOLD, 0.0))
            self._give_up(len(left) if how == UNANSWERED else 0)
        self._not_before = max(self._not_before, monotonic() + MAX_PAUSE_S)

    def _deliver(self, message: Message, number: int) -> str:
        how = self._recipient.deliver(message)
        self._retry_s = (
            0.0 if how == TOLD else min(MAX_RETRY_S, max(MIN_RETRY_S, 2 * self._retry_s))
        )
        self._not_before = monotonic() + self._retry_s
        self.failing_since = None if how == TOLD else self.failing_since or monotonic()
        self._peers.count(TOLD if how == TOLD else "failed", number)
        return how

    def _give_up(self, number: int) -> None:
        if number:
            self._peers.count(UNANSWERED, number)
            log.warning(
                "%s took a message and never answered: %d events are not sent again.",
                self.url,
                number,
                extra={"event": "notify-unanswered"},
            )
