"""Sends to one recipient the events that it is owed, in order, one message at a time.

The sender of a recipient is, in this order:

1. the unlocker whose attempt has no outcome yet;
2. the oldest unlocker whose announcement lists the recipient as working;
3. else the unlockers take turns, by the number of failed attempts in the note.

An unlocker counts only while its announcement exists and lists the recipient. So a dead unlocker
does not count, nor one whose thread for that recipient is stuck.

Two unlockers may see different announcements for some seconds and both send. Each writes its
attempt first, so that the later one's message is marked `(again)`.

While the note can't be written, because the store does not answer, is full or refuses, each
unlocker sends what it noticed itself, marked `(not coordinated)`. It adds to the note
later that it has sent this.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.service.outage import Outage
from lockclient.stores.service_store import Document, ServiceStore
from unlocker.notifications.apprise_recipients import Recipient
from unlocker.notifications.event_messages import MAX_LINES, Event, Message, message_of
from unlocker.notifications.note import (
    BUSY,
    REFUSED,
    SENT,
    UNANSWERED,
    Attempt,
    NotificationNote,
    RecipientState,
)

log = logging.getLogger(__name__)

MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 20.0
"""Seconds between two messages to a recipient. The pause doubles while messages follow closely; it
is the shortest after a message with `MAX_LINES` lines, as more events are waiting."""
RETRY_S, MAX_RETRY_S = 10.0, 120.0
"""Seconds before a retry at a recipient that works for no unlocker: `RETRY_S` times the number of
failed attempts, at most `MAX_RETRY_S`, divided by the number of unlockers that take turns."""
UNCOORDINATED_AFTER_S = 10.0
"""Seconds without a write of the note after which an unlocker sends what it noticed itself."""
_TIMEOUT_S = 3.0
"""Seconds to read or change the note."""

_Result = TypeVar("_Result")


class SharedNote:
    """The note in the store, as it was last read; several threads may use it."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self.note = NotificationNote()
        """This object is replaced, never changed."""
        self.outage = Outage(
            log,
            "Unlockers agree on sent notifications again: the note can be written.",
            event="notify-note-failed",
        )
        """On while the last change could not be written."""

    def refresh(self, older_than: float) -> None:
        """Read the note if the last reading is so many seconds old; raises as `read_document`."""
        with self._lock:
            if monotonic() - self._read_at >= older_than:
                self._read_at = monotonic()
                self.note = NotificationNote(self._read(self._deadline()).value or b"")

    def _read(self, deadline: Deadline) -> Document:
        return self._store.read_document("note", deadline)

    def change(self, edit: Callable[[NotificationNote], _Result]) -> _Result:
        """Change the note by `edit`, which is called again if another unlocker writes meanwhile.

        Raises:
            ClusterMutexError: the write failed, or its outcome is unknown.
        """
        deadline, written = self._deadline(), False
        try:
            with self._lock:
                while not written:
                    seen = self._read(deadline)
                    note = NotificationNote(seen.value or b"")
                    before, result, value = note.value(), edit(note), note.value()
                    written = value == before or self._store.write_document(
                        "note", value, seen, deadline
                    )
                    if deadline.expired() and not written:
                        raise StoreUnavailable("Other unlockers write the shared note.")
                self._read_at, self.note = monotonic(), note
        except ClusterMutexError as error:
            self.outage.failed(
                "The note in which unlockers agree on sent notifications can't be written: until "
                "it can, each unlocker may send its own. %s (If it was refused: let "
                "`clustermutex setup-auth` of this version grant it.)",
                error,
            )
            raise
        if value != before:
            self.outage.succeeded()
        return result

    def _deadline(self) -> Deadline:
        return Deadline.after(_TIMEOUT_S + self._store.poll)


class Peers(Protocol):
    """A sender's view of its unlocker and of the others."""

    identity: str
    where: str
    count: Callable[[str, int], None]

    def announced(self, name: str) -> Sequence[tuple[str, bool]]:
        """Return the living unlockers that announce a recipient, the oldest first, and whether it
        works for them."""

    def uncoordinated(self) -> Sequence[Event]:
        """Return the events that could not be noted."""


def sender_of(state: RecipientState, announced: Sequence[tuple[str, bool]]) -> str:
    """Return the unlocker that sends to a recipient now; empty: none does."""
    names = [name for name, _ in announced]
    if state.by in names:
        return state.by
    turn = names[state.failed % len(names)] if names else ""
    return next((name for name, works in announced if works), turn)


class Sender:
    """Sends to one recipient; for one thread."""

    def __init__(self, recipient: Recipient, shared: SharedNote, peers: Peers) -> None:
        self._recipient = recipient
        self.name = recipient.name
        self._shared = shared
        self._peers = peers
        self._outcome: tuple[Attempt, str] | None = None
        """The last attempt and its outcome, until the note has them."""
        self._failed, self._failed_at = 0, float("-inf")  # as last seen in the note, and when
        self._unwritten_since = float("inf")  # since when its own events can't be written
        self._sent_at, self._pause_s = float("-inf"), 0.0
        self.works = True
        """The last attempt of this unlocker worked."""
        self.failing_since: float | None = None
        """Start of the first attempt since the last that worked, also of one in flight; None: there
        is none, or nothing is owed."""
        self.stepped_at = monotonic()
        """Time of the last step that succeeded."""

    def step(self, *, ending: bool = False) -> None:
        """Send the next message, if there is one and its time has come.

        While the unlocker stops (`ending`), send only if no other unlocker could send it later.

        Raises:
            ClusterMutexError: the note can't be written.
        """
        announced = self._peers.announced(self.name)
        is_alone = {name for name, _ in announced} <= {self._peers.identity}
        if not ending or is_alone:
            self._step(monotonic(), len(announced), ending=ending)
        self.stepped_at = monotonic()

    def _step(self, now: float, unlockers: int, *, ending: bool) -> None:
        state = self._shared.note.recipients.get(self.name, RecipientState())
        if state.failed != self._failed:
            self._failed, self._failed_at = state.failed, now
        unwritten = [
            event
            for event in self._peers.uncoordinated()
            if self.name not in event.sent_to and event.is_current()
        ]
        is_owed = bool(self._shared.note.owed(self.name) or state.more)
        self._unwritten_since = min(self._unwritten_since, now) if unwritten else float("inf")
        if not (unwritten or is_owed or self._outcome):
            self.failing_since = None
        elif not ending and now < self._sent_at + self._pause_s:
            pass  # too soon after the last message
        elif unwritten and (ending or now >= self._unwritten_since + UNCOORDINATED_AFTER_S):
            self._send_uncoordinated(unwritten)
        else:
            self._settle()
            retry_s = min(MAX_RETRY_S, RETRY_S * state.failed) / max(1, unlockers)
            is_time = ending or self.works or now >= self._failed_at + retry_s
            if is_owed and is_time and self._is_sender(state):
                self._send_owed()

    def _is_sender(self, state: RecipientState) -> bool:
        return sender_of(state, self._peers.announced(self.name)) == self._peers.identity

    def _send_owed(self) -> None:
        now = Now.read()
        attempt = self._shared.change(
            lambda note: note.attempt(self.name, self._peers.identity, self._is_sender, now.wall)
        )
        if attempt is None:
            return
        mark = "again" if attempt.again else ""
        message = message_of(attempt.events, attempt.more, self._peers.where, now.wall, mark)
        self._outcome = (attempt, self._deliver(message, attempt.events))
        with suppress(ClusterMutexError):  # if this fails, the next step does it
            self._settle()

    def _settle(self) -> None:
        """Write the outcome of the last attempt; raises as `SharedNote.change`."""
        if self._outcome is None:
            return
        attempt, outcome = self._outcome
        given_up = self._shared.change(
            lambda note: note.settle(self.name, self._peers.identity, attempt, outcome)
        )
        self._outcome = None
        if given_up:
            self._give_up(given_up)

    def _send_uncoordinated(self, events: Sequence[Event]) -> None:
        """Send events that could not be noted; one that has no answer is not sent again."""
        now = Now.read()
        message = message_of(events, {}, self._peers.where, now.wall, "not coordinated")
        outcome = self._deliver(message, events)
        if outcome != REFUSED:
            for event in events:
                event.sent_to.append(self.name)
        if outcome == UNANSWERED:
            self._give_up(len(events))
        self._pause_s = MAX_PAUSE_S

    def _deliver(self, message: Message, events: Sequence[Event]) -> str:
        is_calm = monotonic() > self._sent_at + MAX_PAUSE_S + MIN_PAUSE_S
        is_full = sum(bool(event.line) for event in events) >= MAX_LINES
        self.failing_since = self.failing_since or monotonic()
        outcome = self._recipient.deliver(message)
        outcome = REFUSED if outcome == BUSY else outcome
        self._sent_at, self.works = monotonic(), outcome == SENT
        longer = min(MAX_PAUSE_S, max(MIN_PAUSE_S, 2 * self._pause_s))
        self._pause_s = MIN_PAUSE_S if is_calm or is_full or not self.works else longer
        self.failing_since = None if self.works else self.failing_since
        self._peers.count(SENT if self.works else "failed", len(events))
        return outcome

    def _give_up(self, number: int) -> None:
        self._peers.count(UNANSWERED, number)
        log.warning(
            "%s took a message and never answered: %d events are not sent again.",
            self.name,
            number,
            extra={"event": "notify-unanswered"},
        )
