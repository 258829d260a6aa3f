"""Notifies people of what happens to locks: adds it to the note in the store, and sends it.

Every unlocker notices what happens, by the same rules. It gathers events for some seconds, then
adds those that no other unlocker has added (`note`), owed to all recipients. One thread for each
recipient sends what that is owed (`sender`), so that a recipient that hangs delays neither a sweep
nor another recipient. Without recipients there is neither thread nor note.
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
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.escaping import shown_name
from unlocker.notifications.event_messages import (
    CONDITIONS,
    IS_BLIND,
    RATE_LIMITED,
    SEES,
    UNCLAIMED,
    Event,
    alert_name,
    condition_events,
)
from unlocker.notifications.note import MAX_OVER, NotificationNote
from unlocker.notifications.recipients import Recipient
from unlocker.notifications.sender import Sender, SharedNote

log = logging.getLogger(__name__)

GATHER_S = 5.0
"""Seconds in which later events go into the same note, and message, as the first."""
NEXT_RANK_S = 2.0
"""Seconds for which each unlocker leaves the adding of events to the next older one."""
STEP_INTERVAL_S = 0.5
READ_INTERVAL_S, IDLE_READ_INTERVAL_S = 2.0, 10.0
"""Seconds between two readings of the note while something is owed, and else."""
LOG_INTERVAL_S = 60.0
RATE_LIMIT_OFF_S = 120.0
"""Seconds without an engaged rate limit, or unclaimed lock, until the next one is notified."""
SCAN_INTERVAL_S = 10.0
"""Seconds between two scans of all locks for `CONDITIONS`."""
STUCK_S = 90.0
"""Seconds without a step after which a thread counts as stuck."""
FORGET_S = 86400.0
"""Seconds without an unlocker that announces a recipient after which the note forgets it."""
_SHUTDOWN_TIMEOUT_S = 1.0
"""Seconds for the last note and message when the service ends."""
BLIND_AFTER_S = 30.0
"""Seconds not ready, minus half of those ready, before that is notified."""
FAILING_AFTER_S = 600.0
"""Seconds for which a recipient must have failed before that is announced."""
_MAX_FAILING_ANNOUNCED = 5
_MAX_STEP_S = 10.0
"""Seconds between two steps that count at most."""


class BlindnessDetector:
    """Notices that this unlocker was not ready for a while, and that it is again.

    Each unlocker notifies of its own blindness: it may be cut off from all others.
    """

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._observed_at: float | None = None
        self._blind_for = 0.0  # 20 s without and 20 s with the store are not well
        self._blind: Event | None = None

    def observe(self, why: str | None, now: float) -> Event | None:
        """Return an event if blindness begins or ends; `why`: it can't work now, None: it can."""
        # A process that was stopped may be able to work in a moment.
        passed = 0.0 if self._observed_at is None else min(now - self._observed_at, _MAX_STEP_S)
        self._observed_at = now
        blind_for = self._blind_for + (passed if why else -passed / 2)
        self._blind_for = min(BLIND_AFTER_S, max(0.0, blind_for))
        if self._blind_for >= BLIND_AFTER_S and self._blind is None and why:
            self._blind = self._event(IS_BLIND, f"{self._identity} can't do its work: {why}", now)
            self._blind.stands = lambda: self._blind is not None
            return self._blind
        if self._blind_for == 0.0 and self._blind is not None:
            was_sent, self._blind = self._blind.noted or self._blind.told, None
            if was_sent:
                return self._event(SEES, f"{self._identity} is working again.", now)
        return None

    def _event(self, kind: str, line: str, now: float) -> Event:
        return Event(f"{self._identity}.{kind}.{now:.0f}", kind, line, time.time(), noticed=now)


class Notifier:
    """Notifies recipients; without any it does nothing.

    Args:
        recipients: of all notifications.
        where: the store, for the titles.
    """

    def __init__(self, recipients: Sequence[Recipient] = (), where: str = "") -> None:
        self._recipients = recipients
        self.where = where
        self._lock = threading.Lock()
        self._pending: list[Event] = []
        self._logged_at = float("-inf")
        self.count: Callable[[str, int], None] = lambda _result, _number: None
        self._ending, self._last_noted = threading.Event(), threading.Event()
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
        """Start the threads, which call the arguments twice a second.

        Args:
            identity: this unlocker's, as in its announcement.
            store: has the note.
            table: has the locks, and the other unlockers.
            trouble: returns why the unlocker can't do its work; None if it can.
            is_rate_limited: returns whether removals are held back.
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
        self._was_limited, self._blind = False, True
        self._retry_at = float("-inf")
        self._ended_since: dict[str, float] = {}
        self._announced_at: dict[str, float] = {}
        self._stepped_at = monotonic()
        senders = [Sender(recipient, self._shared, self) for recipient in self._recipients]
        self._senders = {sender.url: sender for sender in senders}
        runs = [(self._step, self._ending, self._last_noted)]
        runs += [(sender.step, self._last_noted, threading.Event()) for sender in senders]
        self._threads = [
            threading.Thread(target=self._run, args=run, name="notify", daemon=True) for run in runs
        ]
        for thread in self._threads:
            thread.start()

    def notify(self, event: Event) -> None:
        """Have an event sent, without waiting."""
        if not self._recipients:
            return
        with self._lock:
            if len(self._pending) >= MAX_OVER:  # drop those that all recipients got
                number = len(self._recipients)
                self._pending = [e for e in self._pending if len(e.told) < number]
            if kept := len(self._pending) < MAX_OVER:
                self._pending.append(event)
        if not kept:
            self._drop(1, "are not sent to anyone")

    def announcement_fields(self) -> dict[str, object]:
        """Return the fields of this unlocker's announcement: the recipients that it can send to,
        and whether each works; the names of those that have failed for `FAILING_AFTER_S`."""
        if not self._senders:
            return {}
        latest = monotonic() - STUCK_S
        senders = self._senders.values() if self._stepped_at >= latest else ()
        works = {sender.url: sender.works for sender in senders if sender.stepped_at >= latest}
        failing = self.failing()[:_MAX_FAILING_ANNOUNCED]
        return {"recipients": works, **({"failing": failing} if failing else {})}

    def failing(self) -> list[str]:
        """Return the names of recipients that have failed for `FAILING_AFTER_S`."""
        latest = monotonic() - FAILING_AFTER_S
        since = ((sender.url, sender.failing_since) for sender in self._senders.values())
        return [name for name, at in since if at is not None and at <= latest]

    def stop(self) -> None:
        """End when the last event was noted, and sent if no other unlocker can; or at a timeout."""
        self._ending.set()
        until = monotonic() + _SHUTDOWN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    # ------------------------------------------------------------ for the senders

    def announced(self, url: str) -> Sequence[tuple[str, bool]]:
        """See `Peers.announced`."""
        found = [(name, recipients.get(url)) for name, recipients in self._notifiers()]
        own = self._senders[url].works  # its announcement may be seconds old
        return [
            (name, own if name == self.identity else works)
            for name, works in found
            if isinstance(works, bool)
        ]

    def unnoted(self) -> Sequence[Event]:
        """See `Peers.unnoted`."""
        due = monotonic() - GATHER_S
        with self._lock:
            pending = self._pending if self._shared.outage.is_on else []
            return [event for event in pending if event.noticed <= due]

    def _notifiers(self) -> list[tuple[str, dict[str, object]]]:
        """Return the living unlockers with recipients, the oldest first, and those recipients."""
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
                pass  # the store's; it is tried again, and `SharedNote` has logged it
            except Exception:
                log.exception("Notifications could not be processed.")
        done.set()

    def _step(self, *, ending: bool) -> None:
        now, why, limited = monotonic(), self._trouble(), self._is_rate_limited()
        self._blind = why is not None
        if event := self._blindness.observe(why, now):
            self.notify(event)
        if limited and not self._was_limited:
            line = (
                "More locks are due than may be removed in a minute: the others are kept for now."
            )
            event = Event(RATE_LIMITED, RATE_LIMITED, line, time.time(), self._table.revision)
            event.lock, event.noticed = RATE_LIMITED, now
            self.notify(event)
        self._was_limited = limited
        if not self._blind and now >= self._scanned_at + SCAN_INTERVAL_S:
            self._scan(now)
        is_busy = self._pending or any(event.owed for event in self._shared.note.events)
        with suppress(ClusterMutexError):
            self._shared.refresh(READ_INTERVAL_S if is_busy else IDLE_READ_INTERVAL_S)
        self._note(now, ending=ending)
        self._stepped_at = monotonic()

    def _scan(self, now: float) -> None:
        """Notify of the conditions of locks that the last scan did not find."""
        revision, before = self._table.revision, self._conditions
        holders = [row.holder for row in self._table.rows().values()]
        found = [*condition_events(holders, self._unclaimed(), time.time())]
        self._conditions = {event.name for event in found}
        self._scanned_at, self._scanned_revision = now, revision
        for event in found:
            if event.name not in before:
                event.revision, event.noticed = revision, now
                event.stands = partial(self._has_condition, event.name)
                self.notify(event)

    def _has_condition(self, name: str) -> bool:
        return name in self._conditions

    def _note(self, now: float, *, ending: bool) -> None:
        """Note the gathered events and what has ended, if there is any and it is time.

        A younger unlocker does so later, and as a rule finds it noted.
        """
        notifiers = self._notifiers()
        names = [name for name, _ in notifiers]
        rank = names.index(self.identity) if self.identity in names else len(names)
        turn = GATHER_S + rank * (NEXT_RANK_S + self._poll)
        with self._lock:
            pending = [*self._pending]
        ended = self._ended(now, turn)
        for url in (*self._senders, *(url for _, found in notifiers for url in found)):
            self._announced_at[url] = now
        noted = self._shared.note.urls
        unused = [url for url in noted if now - self._announced_at.setdefault(url, now) > FORGET_S]
        is_due = pending and (ending or now >= min(event.noticed for event in pending) + turn)
        is_new = not noted.keys() >= self._senders.keys()
        if now < self._retry_at or not (ended or is_due or is_new or unused):
            return
        self._retry_at = now + READ_INTERVAL_S  # should it fail
        # An event that has ended is left out, unless a recipient was told.
        events = [event for event in pending if event.told or event.stands()]

        def edit(note: NotificationNote) -> int:
            note.configure(self._senders.keys(), unused, time.time())
            return note.add(events) + note.end(ended, time.time())

        if dropped := self._shared.change(edit):
            self._drop(dropped, "are only counted in messages")
        self._retry_at = now
        for event in events:
            event.noted = True
        done = {*pending}
        with self._lock:
            self._pending = [event for event in self._pending if event not in done]

    def _drop(self, number: int, what: str) -> None:
        """Count events that are not sent one by one; log that at most once a minute."""
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
        """Return the names of standing events in the note that have ended, each with the line for
        recipients.

        A blind unlocker, or one that has not caught up with the event's revision, does not know.
        An end is noted later than a removal, whose message includes the end.
        """
        since, found = self._ended_since, dict[str, str]()
        self._ended_since = {}
        for event in self._shared.note.events if not self._blind else ():
            if event.lock and (line := self._end_of(event)) is not None:
                is_unsteady = event.kind in (RATE_LIMITED, UNCLAIMED)
                wait_s = RATE_LIMIT_OFF_S if is_unsteady else turn + 2 * self._poll
                began = self._ended_since[event.name] = since.get(event.name, now)
                if now - began >= wait_s:
                    found[event.name] = line
        return found

    def _end_of(self, event: Event) -> str | None:
        """Return the line about the end of an event; None: it stands, or that is unknown."""
        if event.kind == RATE_LIMITED:
            return None if self._was_limited else ""
        if event.kind in CONDITIONS:
            if event.name in self._conditions or self._scanned_revision < event.revision:
                return None
            return f"Lock '{shown_name(event.lock)}' is no longer {CONDITIONS[event.kind]}."
        if self._table.revision < event.revision:
            return None
        row, why = self._table.row(event.lock), "it is no longer held"
        if row is not None:
            alert = alert_name(row.holder)
            if alert == event.name:
                return None
            same = alert.partition(".")[0] == event.holder
            why = "its holder sent a heartbeat" if same else "somebody else holds it by now"
        return f"Lock '{shown_name(event.lock)}' is no longer past its alert: {why}."
