"""Notifies people of events: writes the events to a note in the store, and sends messages.

Every unlocker notices events by the same rules. All unlockers share one note in the store (`note`),
which lists the recipients that each event is still owed to.

1. An unlocker gathers events for some seconds. Its first thread then adds to the note those events
   that no other unlocker has added, owed to all recipients.
2. One thread for each recipient sends to it the events that it is owed (`sender`). So a recipient
   that hangs delays neither a sweep nor another recipient.

Without recipients the unlocker has no such threads and writes no note.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from lockclient.errors import ClusterMutexError
from lockclient.model.announcement import announced
from lockclient.model.clocks import monotonic
from lockclient.overview.live_table import Table
from lockclient.stores.service_store import ServiceStore
from unlocker.notifications.apprise_recipients import Recipient
from unlocker.notifications.blindness import BlindnessDetector
from unlocker.notifications.event_messages import (
    CONDITIONS,
    RATE_LIMIT_LINE,
    RATE_LIMITED,
    UNCLAIMED,
    Event,
    alert_end_line,
    condition_end_line,
    condition_events,
)
from unlocker.notifications.note import NotificationNote
from unlocker.notifications.sender import Sender, SharedNote

log = logging.getLogger(__name__)

GATHER_S = 5.0
"""Time that the oldest unlocker gathers events before it adds them to the note together."""
NEXT_RANK_S = 2.0
"""Extra time that an unlocker waits for each older unlocker, plus the store's poll interval."""
STEP_INTERVAL_S = 0.5
"""Time that a thread waits between two steps."""
READ_INTERVAL_S, IDLE_READ_INTERVAL_S = 2.0, 10.0
"""Time that an unlocker waits before it reads the note again: while an event is pending or owed to
a recipient; while none is."""
MAX_PENDING = 4000
"""Maximum number of events that wait to be added to the note."""
LOG_INTERVAL_S = 60.0
"""Time that the notifier waits before it logs dropped events again."""
RATE_LIMIT_OFF_S = 120.0
"""Time without the rate limit, or since a lock was claimed, after which its event ends. Until then
people are not notified of it again."""
SCAN_INTERVAL_S = 10.0
"""Time between two scans of all locks for conditions: held too long, broken, free with waiters."""
STUCK_S = 90.0
"""Time without a step after which the announcement omits the thread's recipients."""
FORGET_S = 86400.0
"""Time that the note keeps a recipient that no running unlocker announces."""
_SHUTDOWN_TIMEOUT_S = 1.0
"""Time that `stop` waits for the threads, which write and send the last events."""
FAILING_AFTER_S = 600.0
"""Time that a recipient must have failed before this unlocker announces that it fails."""
_MAX_FAILING_ANNOUNCED = 5


class Notifier:
    """Notifies recipients; does nothing if there are none.

    Args:
        recipients: each gets all notifications.
        where: names the store in the titles of messages.
    """

    def __init__(self, recipients: Sequence[Recipient] = (), where: str = "") -> None:
        self._recipients = recipients
        self.where = where
        self._lock = threading.Lock()
        self._pending: list[Event] = []
        self._logged_at = float("-inf")
        self.count: Callable[[str, int], None] = lambda _result, _number: None
        self._ending, self._last_written = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._senders: dict[str, Sender] = {}

    def start(
        self,
        identity: str,
        store: ServiceStore,
        table: Table,
        trouble: Callable[[], str | None],
        is_rate_limited: Callable[[], bool],
        unclaimed: Callable[[], Iterable[str]],
        count: Callable[[str, int], None],
    ) -> None:
        """Start the threads, which call the functions given here.

        Args:
            identity: this unlocker's name, as in its announcement.
            store: has the note.
            table: has the locks, and the other unlockers.
            trouble: returns the reason why the unlocker can't do its work; None: it can.
            is_rate_limited: returns whether the rate limit makes due locks wait.
            unclaimed: returns the locks that are free though clients wait.
            count: counts events by outcome.
        """
        if not self._recipients:
            return
        self.identity, self.count, self._poll = identity, count, store.poll
        self._table, self._trouble, self._is_rate_limited = table, trouble, is_rate_limited
        self._shared = SharedNote(store)
        self._unclaimed = unclaimed
        self._scanned_at, self._scanned_revision = float("-inf"), -1
        self._conditions = set[str]()  # names of the last scan's events
        self._blindness = BlindnessDetector(identity)
        self._was_limited, self._is_ready = False, False
        self._retry_at = float("-inf")
        self._ended_since: dict[str, float] = {}
        self._announced_at: dict[str, float] = {}
        self._stepped_at = monotonic()
        senders = [Sender(recipient, self._shared, self) for recipient in self._recipients]
        self._senders = {sender.name: sender for sender in senders}
        runs = [(self._step, self._ending, self._last_written)]
        runs += [(sender.step, self._last_written, threading.Event()) for sender in senders]
        self._threads = [
            threading.Thread(target=self._run, args=run, name="notify", daemon=True) for run in runs
        ]
        for thread in self._threads:
            thread.start()

    def notify(self, event: Event) -> None:
        """Queue an event for the note and the recipients; returns at once."""
        if not self._recipients:
            return
        with self._lock:
            if len(self._pending) >= MAX_PENDING:  # forget those that all recipients have
                number = len(self._recipients)
                self._pending = [e for e in self._pending if len(e.sent_to) < number]
            if kept := len(self._pending) < MAX_PENDING:
                self._pending.append(event)
        if not kept:
            self._drop(1, "are not sent to anyone")

    def announcement_fields(self) -> dict[str, object]:
        """Return the fields that this unlocker adds to its announcement.

        `recipients`: whether each works, without those whose thread is stuck. `failing`: names of
        recipients that have failed for `FAILING_AFTER_S`, if any.
        """
        if not self._senders:
            return {}
        latest = monotonic() - STUCK_S
        senders = self._senders.values() if self._stepped_at >= latest else ()
        works = {sender.name: sender.works for sender in senders if sender.stepped_at >= latest}
        failing = self.failing()[:_MAX_FAILING_ANNOUNCED]
        return {"recipients": works, **({"failing": failing} if failing else {})}

    def failing(self) -> list[str]:
        """Return the names of recipients that have failed for `FAILING_AFTER_S`."""
        latest = monotonic() - FAILING_AFTER_S
        since = ((sender.name, sender.failing_since) for sender in self._senders.values())
        return [name for name, at in since if at is not None and at <= latest]

    def stop(self) -> None:
        """Stop the threads.

        The first thread writes the last events to the note. Then the senders make a last step.
        `stop` waits at most `_SHUTDOWN_TIMEOUT_S` for both.
        """
        self._ending.set()
        until = monotonic() + _SHUTDOWN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    # ------------------------------------------------------------ for the senders

    def announced(self, name: str) -> Sequence[tuple[str, bool]]:
        """See `Peers.announced`."""
        found = [(unlocker, recipients.get(name)) for unlocker, recipients in self._notifiers()]
        own = self._senders[name].works  # its announcement may be seconds old
        return [
            (name, own if name == self.identity else works)
            for name, works in found
            if isinstance(works, bool)
        ]

    def uncoordinated(self) -> Sequence[Event]:
        """See `Peers.uncoordinated`."""
        due = monotonic() - GATHER_S
        with self._lock:
            pending = self._pending if self._shared.outage.is_on else []
            return [event for event in pending if event.noticed <= due]

    def _notifiers(self) -> list[tuple[str, dict[str, object]]]:
        """Return the running unlockers that have recipients, and these; the oldest first."""
        found = []
        for name, value in self._table.unlockers().items():
            fields = announced(value)
            recipients, started_at = fields.get("recipients"), fields.get("started_at")
            if isinstance(recipients, dict) and isinstance(started_at, (int, float)):
                found.append((started_at, name, recipients))
        found.sort(key=lambda unlocker: unlocker[:2])
        return [(name, recipients) for _, name, recipients in found]

    # ------------------------------------------------------------ threads

    @staticmethod
    def _run(step: Callable[..., None], until: threading.Event, done: threading.Event) -> None:
        ending = False
        while not ending:
            ending = until.wait(STEP_INTERVAL_S)
            try:
                step(ending=ending)
            except ClusterMutexError:
                pass  # `SharedNote` has logged it, and the next step tries again
            except Exception:
                log.exception("Notifications could not be processed.")
        done.set()

    def _step(self, *, ending: bool) -> None:
        now, why, limited = monotonic(), self._trouble(), self._is_rate_limited()
        self._is_ready = why is None
        if event := self._blindness.observe(why, now):
            self.notify(event)
        if limited and not self._was_limited:
            event = Event(
                RATE_LIMITED, RATE_LIMITED, RATE_LIMIT_LINE, time.time(), self._table.revision
            )
            event.lock, event.noticed = RATE_LIMITED, now
            self.notify(event)
        self._was_limited = limited
        if self._is_ready and now >= self._scanned_at + SCAN_INTERVAL_S:
            self._scan(now)
        is_busy = self._pending or any(event.owed_to for event in self._shared.note.events)
        with suppress(ClusterMutexError):
            self._shared.refresh(READ_INTERVAL_S if is_busy else IDLE_READ_INTERVAL_S)
        self._write_note(now, ending=ending)
        self._stepped_at = monotonic()

    def _scan(self, now: float) -> None:
        """Scan all locks; notify people of each condition that the last scan did not find."""
        revision, before = self._table.revision, self._conditions
        holders = [row.holder for row in self._table.rows().values()]
        found = [*condition_events(holders, self._unclaimed(), time.time())]
        self._conditions = {event.name for event in found}
        self._scanned_at, self._scanned_revision = now, revision
        for event in found:
            if event.name not in before:
                event.revision, event.noticed = revision, now
                event.is_current = partial(self._has_condition, event.name)
                self.notify(event)

    def _has_condition(self, name: str) -> bool:
        return name in self._conditions

    def _write_note(self, now: float, *, ending: bool) -> None:
        """Write the gathered events, and the ends of earlier events, to the note.

        The unlocker writes the events when its turn has come. Unlockers take turns by age, the
        oldest first, so a younger unlocker usually finds that the note has the events already.
        """
        notifiers = self._notifiers()
        turn = self._turn_s([name for name, _ in notifiers])
        with self._lock:
            pending = [*self._pending]
        ended = self._ended(now, turn)
        unused = self._unused_recipients(notifiers, now)
        is_due = pending and (ending or now >= min(event.noticed for event in pending) + turn)
        has_new_recipient = not self._shared.note.recipients.keys() >= self._senders.keys()
        if now < self._retry_at or not (ended or is_due or has_new_recipient or unused):
            return
        self._retry_at = now + READ_INTERVAL_S  # if the request fails
        # The note does not get an event that has ended, unless a recipient was notified of it.
        events = [event for event in pending if event.sent_to or event.is_current()]

        def edit(note: NotificationNote) -> int:
            note.configure(self._senders.keys(), unused, time.time())
            return note.add(events) + note.end(ended, time.time())

        if dropped := self._shared.change(edit):
            self._drop(dropped, "are only counted in messages")
        self._retry_at = now
        for event in events:
            event.is_in_note = True
        done = {*pending}
        with self._lock:
            self._pending = [event for event in self._pending if event not in done]

    def _unused_recipients(
        self, notifiers: Sequence[tuple[str, dict[str, object]]], now: float
    ) -> list[str]:
        """Return the recipients of the note that no unlocker has announced for `FORGET_S`."""
        for name in (*self._senders, *(name for _, found in notifiers for name in found)):
            self._announced_at[name] = now
        names = self._shared.note.recipients
        return [name for name in names if now - self._announced_at.setdefault(name, now) > FORGET_S]

    def _turn_s(self, names: Sequence[str]) -> float:
        """Return the seconds after an event at which this unlocker writes it to the note.

        Args:
            names: the running unlockers that have recipients, the oldest first.
        """
        rank = names.index(self.identity) if self.identity in names else len(names)
        return GATHER_S + rank * (NEXT_RANK_S + self._poll)

    def _drop(self, number: int, what: str) -> None:
        """Count dropped events, and log that at most once every `LOG_INTERVAL_S`."""
        self.count("dropped", number)
        if (now := monotonic()) >= self._logged_at + LOG_INTERVAL_S:
            self._logged_at = now
            log.warning(
                "Too many events to be kept (%d): some %s.",
                number,
                what,
                extra={"event": "notify-dropped"},
            )

    def _ended(self, now: float, turn: float) -> dict[str, str]:
        """Return the names of the note's events that have ended, each with the line for recipients.

        An unlocker that is not ready, or whose table is older than the event, can't tell whether
        the event has ended. If the lock was removed, the removal's message also reports the end. So
        an unlocker waits until a removal would have been written.
        """
        since, found = self._ended_since, dict[str, str]()
        self._ended_since = {}
        for event in self._shared.note.events if self._is_ready else ():
            if event.lock and (line := self._end_of(event)) is not None:
                is_unsteady = event.kind in (RATE_LIMITED, UNCLAIMED)
                wait_s = RATE_LIMIT_OFF_S if is_unsteady else turn + 2 * self._poll
                began = self._ended_since[event.name] = since.get(event.name, now)
                if now - began >= wait_s:
                    found[event.name] = line
        return found

    def _end_of(self, event: Event) -> str | None:
        """Return the line about the end of an event; None: it has not ended, or that is unknown."""
        if event.kind == RATE_LIMITED:
            return None if self._was_limited else ""
        if event.kind in CONDITIONS:
            if event.name in self._conditions or self._scanned_revision < event.revision:
                return None
            return condition_end_line(event)
        if self._table.revision < event.revision:
            return None
        row = self._table.row(event.lock)
        return alert_end_line(event, None if row is None else row.holder)
