"""Sends to one recipient what it does not know yet, one message at a time.

The sender of a recipient is the unlocker that is not blind, has the fewest failed attempts in a
row, trusts its clock, and is the oldest; in this order. So if a recipient works for none, they take
turns. An unlocker counts only while its announcement exists and lists the recipient, so neither a
dead one counts nor one whose thread for that recipient is stuck.

Two unlockers may see different announcements for some seconds. Each writes its attempt down before
it makes it, by compare-and-swap, so only one of them sends. Another one's attempt is over when its
writer does not count any more, or after `STUCK_S`.

While the document can't be written, each unlocker sends what it sees itself, marked "not
coordinated", and writes down afterwards what it sent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.service.outage import Outage
from lockclient.stores.service_store import Document, ServiceStore
from unlocker.notifications.apprise_recipients import Recipient
from unlocker.notifications.conditions import CRITICAL, KINDS
from unlocker.notifications.difference import Difference
from unlocker.notifications.message import Form, Message, Writer
from unlocker.notifications.sent_document import (
    SENT,
    UNANSWERED,
    Change,
    DamagedDocument,
    SentDocument,
)
from unlocker.notifications.truth import Truth

log = logging.getLogger(__name__)

STUCK_S = 90.0
"""Seconds after which another unlocker's attempt is over, and without a step after which an
announcement omits a thread's recipient."""
RETRY_S, MAX_RETRY_S = 10.0, 120.0
"""Seconds before the next attempt at a recipient that fails: `RETRY_S` for each failed attempt in a
row, at most `MAX_RETRY_S`."""
UNCOORDINATED_AFTER_S, UNCOORDINATED_PAUSE_S = 10.0, 300.0
"""Seconds without a write after which an unlocker sends what it sees itself, and between two such
messages."""
DAMAGED_S = 60.0
"""Seconds after which a damaged document is replaced."""
FORGIVE_S = 300.0
"""Seconds after which an unlocker's failed attempts do not count any more in the order of senders:
the one that took its turn may see less, and have nothing to send."""
FORMS_AFTER = 3
"""Refusals in a row after which attempts alternate between the forms of a message."""
REQUEST_PAUSE_S = 5.0
"""Seconds after a failed request before the next one."""
_TIMEOUT_S = 3.0
"""Seconds to read or write a document."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of notifications, in seconds.

    Attributes:
        first: from the first news to the message.
        interval: from one message to a recipient to the next.
        critical_again, again: after which what is still true is repeated, with a critical
            condition and without; infinite: never.
    """

    first: float = 10.0
    interval: float = 30.0
    critical_again: float = 4 * 3600.0
    again: float = 24 * 3600.0


class Peers(Protocol):
    """A sender's view of its unlocker and of the others."""

    identity: str
    truth: Truth
    count: Callable[[str, int], None]

    def senders(self, recipient: str) -> list[str]:
        """Return the unlockers that announce a recipient; the first one sends to it."""

    def is_cut_off(self) -> bool:
        """Return whether the store does not take our announcement."""


class Outcome(NamedTuple):
    """An attempt that was made, and how it ended."""

    number: int
    change: Change
    result: str
    is_full: bool


class Sender:
    """Sends to one recipient; for one thread.

    Attributes:
        failures: failed attempts of this unlocker in a row.
        failing_since: the monotonic time of the first of them, or None.
        damage: why the document can't be read, or "".
        stepped_at: the monotonic time of the last step.
    """

    def __init__(
        self, recipient: Recipient, store: ServiceStore, peers: Peers, writer: Writer, pace: Pace
    ) -> None:
        self.name, self._recipient = recipient.name, recipient
        self._key = f"sent/{recipient.name}"
        self._store, self._peers, self._writer, self._pace = store, peers, writer, pace
        self._outcome: Outcome | None = None
        self._alone: SentDocument | None = None
        self._alone_difference = Difference()
        self._unwritten: list[tuple[Change, Mapping[str, str]]] = []
        self._seen, self._damaged_at = Document(b"", 0), math.inf
        self._replacement = SentDocument()
        self._tried_at = self._sent_at = self._alone_at = self._request_at = -math.inf
        self.failures = 0
        self.failing_since: float | None = None
        self.stepped_at = monotonic()
        self._outage = Outage(
            log,
            f"Unlockers agree again on what {self.name} was sent.",
            event="notify-document-failed",
        )
        self._forget()

    def _forget(self) -> None:
        """Forget the document: from now on another unlocker may write it."""
        self._known: SentDocument | None = None
        self._latest: SentDocument | None = None
        self.damage = ""
        self._blocked_since = self._news_since = math.inf
        self._foreign: tuple[str, int, float] | None = None
        self._difference = Difference()
        self._reminded_at = monotonic()

    def step(self, *, ending: bool = False) -> None:
        """Send the next message, if there is one and its time has come.

        Args:
            ending: the unlocker stops, so it sends at once, and only what no other one can.
        """
        now = monotonic()
        if now >= self._tried_at + FORGIVE_S:
            self.failures = 0
        try:
            if now >= self._request_at:
                self._step(now, ending=ending)
        except ClusterMutexError as error:
            self._known = None  # the write may arrive
            self._blocked_since = min(self._blocked_since, now)
            self._request_at = now + REQUEST_PAUSE_S
            self._outage.failed(
                "What %s was sent can't be written down: until it can, each unlocker may send what "
                "it sees itself. %s (If it was refused: let `clustermutex setup-auth` of this "
                "version grant it.)",
                self.name,
                error,
            )
        self._send_alone(now)
        self.stepped_at = monotonic()

    def _step(self, now: float, *, ending: bool) -> None:
        self._settle(now)
        self._write_down(now)
        if self._unwritten:
            return  # the document does not have it yet: it would be sent again
        senders = self._peers.senders(self.name)
        if senders[:1] != [self._peers.identity]:
            self._forget()
            return
        known = self._document(now, senders)
        if known is None or (ending and len(senders) > 1):
            return
        truth = self._peers.truth
        change = self._difference.of(known, truth, now)
        if known.is_reduced or any(known.perhaps.values()):
            repeat = change.within(known.perhaps)
            known.is_reduced &= bool(repeat)  # else another text is not at fault
            change = repeat or change
        if not change and not (known.is_unknown and truth.is_ready):
            self._news_since, self.failing_since = math.inf, None
            self._remind(known, truth, now)
        elif self._is_due(known, now, ending=ending):
            self._attempt(known, truth, change)

    def _is_due(self, known: SentDocument, now: float, *, ending: bool) -> bool:
        self._news_since = min(self._news_since, now)
        number = 1 if known.is_reduced else known.failed
        return ending or (
            now >= self._news_since + self._pace.first
            and now >= self._sent_at + self._pace.interval
            and now >= self._tried_at + min(MAX_RETRY_S, RETRY_S * number)
        )

    # ------------------------------------------------------------ the document

    def _document(self, now: float, senders: Collection[str]) -> SentDocument | None:
        """Return what the recipient knows; None: that is unknown, or another attempt runs."""
        known = self._load(now)
        if known is None or not known.attempt:
            return known
        if known.writer == self._peers.identity:
            known.attempt = set()  # its write had no answer, and it was not made
            return known
        if self._foreign is None or self._foreign[:2] != (known.writer, known.number):
            self._foreign = known.writer, known.number, now
        if known.writer in senders and now < self._foreign[2] + STUCK_S:
            self._known, self._request_at = None, now + REQUEST_PAUSE_S
            return None
        known.take_over()
        return known

    def _load(self, now: float) -> SentDocument | None:
        """Read the document when this unlocker becomes the sender, and after a failed write."""
        if self._known is None and now >= self._damaged_at + DAMAGED_S:
            self._write(self._replacement)
        elif self._known is None and self._damaged_at == math.inf:
            self._read(now)
        return self._known

    def _read(self, now: float) -> None:
        self._seen = self._store.read_document(self._key, self._deadline())
        if self._seen.value == b"":  # a new recipient: it gets what is true, and no old removals
            if self._peers.truth.is_ready:
                self._write(self._blank())
            else:
                self._request_at = now + REQUEST_PAUSE_S
            return
        try:
            self._known = self._latest = SentDocument.parse(self._seen.value)
            self.damage = ""
        except DamagedDocument as error:
            self._damaged_at, self.damage = now, str(error)
            self._replacement = self._blank(is_unknown=True)  # removals from now on are news
            log.error(
                "What %s was sent is unknown: the document can't be read: %s. It is replaced in "
                "%.0f s, and the recipient gets what is wrong then.",
                self.name,
                error,
                DAMAGED_S,
                extra={"event": "notify-document-damaged"},
            )

    def _blank(self, *, is_unknown: bool = False) -> SentDocument:
        # Of a document that was there until now, the removals are still known.
        known = self._latest.removals if self._latest else self._peers.truth.removals
        return SentDocument(removals=dict.fromkeys(known), is_unknown=is_unknown)

    def _write(self, known: SentDocument) -> bool:
        """Write the document; False: another unlocker has written it, so it must be read again."""
        self._known, self._damaged_at = None, math.inf
        value = known.value()
        written = self._store.write_document(self._key, value, self._seen, self._deadline())
        if written is None:
            return False
        self._seen, self._known, self._latest = written, known, known
        self._blocked_since, self.damage = math.inf, ""
        self._outage.succeeded()
        return True

    def _deadline(self) -> Deadline:
        return Deadline.after(_TIMEOUT_S + self._store.poll)

    # ------------------------------------------------------------ attempts

    def _attempt(self, known: SentDocument, truth: Truth, change: Change) -> None:
        form, marks = Form.FULL, []
        if known.refused >= FORMS_AFTER and not known.is_reduced:
            form = Form((known.refused - FORMS_AFTER + 1) % len(Form))
        if known.perhaps.keys() & {*change.items()}:
            marks.append("may be a repeat")
        message = self._writer.message(change, known, truth, form, marks)
        known.begin(change, message.named, self._peers.identity)
        # If this process dies before the write, nothing was sent; after it, the successor finds the
        # attempt.
        if self._write(known):
            outcome = self._deliver(message, len(change.items()))
            self._outcome = Outcome(known.number, change, outcome, form is Form.FULL)
            self._settle(monotonic())

    def _settle(self, now: float) -> None:
        """Write down the outcome of the last attempt; if that raises, the next step does it."""
        last = self._outcome
        if last is None:
            return
        if (known := self._load(now)) is not None:
            if (known.writer, known.number) == (self._peers.identity, last.number):
                given_up = known.settle(last.change, last.result, is_full=last.is_full)
                if given_up:
                    self._give_up(len(given_up.items()))
            elif last.result == SENT and last.is_full:  # another one took the attempt as over
                known.mark(last.change)
            if not self._write(known):
                return
        self._outcome = None

    def _deliver(self, message: Message, number: int) -> str:
        self.failing_since = self.failing_since or monotonic()
        outcome = self._recipient.deliver(message)
        self._tried_at = monotonic()
        if outcome in (SENT, UNANSWERED):
            self._sent_at = self._tried_at
        self.failures = 0 if outcome == SENT else self.failures + 1
        if outcome == SENT:
            self.failing_since = None
        self._peers.count(SENT if outcome == SENT else "failed", number)
        return outcome

    def _give_up(self, number: int) -> None:
        self._peers.count(UNANSWERED, number)
        log.warning(
            "%s took a message and never answered, or refuses its text: the %d conditions and "
            "removals in it count as sent.",
            self.name,
            number,
            extra={"event": "notify-unanswered"},
        )

    def _remind(self, known: SentDocument, truth: Truth, now: float) -> None:
        """Repeat what is still true: so a lost message heals."""
        if not truth.is_ready:
            return
        begun = [each for found in truth.found.values() for each in found if each in known.sent]
        if not (begun or known.many):
            self._reminded_at = now
            return
        is_critical = any(KINDS[each[0]].severity == CRITICAL for each in (*begun, *known.many))
        pause = self._pace.critical_again if is_critical else self._pace.again
        if now < self._reminded_at + pause or now < self._tried_at + MAX_RETRY_S:
            return
        # It says nothing new, but another unlocker may have sent an end: the write shows that.
        known.begin(Change(), {}, self._peers.identity)
        if not self._write(known):
            return
        change = Change(begun, many=known.many)
        form = Form.COUNTS if self.failures else Form.FULL
        message = self._writer.message(change, known, truth, form, ["still true"])
        if self._deliver(message, len(change.items())) in (SENT, UNANSWERED):
            self._reminded_at = now

    # ------------------------------------------------------------ without the document

    def _send_alone(self, now: float) -> None:
        """While the document can't be written, send what this unlocker sees."""
        blocked_for = now - self._blocked_since
        if blocked_for < UNCOORDINATED_AFTER_S and not self._peers.is_cut_off():
            self._alone = None
            return
        truth = self._peers.truth
        if self._alone is None:
            self._alone = deepcopy(self._latest)
        if self._alone is None:
            self._alone = self._blank()
            if self._peers.senders(self.name)[:1] not in ([], [self._peers.identity]):
                # Another unlocker has sent what was wrong before.
                self._alone.sent = {
                    each
                    for found in truth.found.values()
                    for each, condition in found.items()
                    if condition.name != self._peers.identity
                }
        change = self._alone_difference.of(self._alone, truth, now)
        pause = RETRY_S if self.failures else UNCOORDINATED_PAUSE_S
        if not change or now < self._alone_at + pause:
            return
        message = self._writer.message(change, self._alone, truth, marks=["not coordinated"])
        self._alone_at = now
        if self._deliver(message, len(change.items())) in (SENT, UNANSWERED):
            self._alone.mark(change)
            self._alone.name(message.named)
            self._unwritten.append((change, message.named))

    def _write_down(self, now: float) -> None:
        """Write down what this unlocker has sent without the document."""
        if not self._unwritten or self._peers.is_cut_off():
            return
        if (known := self._load(now)) is not None:
            for change, names in self._unwritten:
                known.mark(change)
                known.name(names)
            if self._write(known):
                self._unwritten = []
