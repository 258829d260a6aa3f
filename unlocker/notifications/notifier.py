"""Notifies people of what happens to locks: notes it in the store, and has each URL told.

Every unlocker notices what happens, by the same rules. What it noticed it gathers for some seconds,
and then notes what no other one has noted before (`note`), owed to all URLs. A thread for each URL
tells it what it is owed (`teller`), so that one that is slow or away delays neither a sweep nor
another URL. With nobody to tell there is neither thread nor note.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import monotonic
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.escaping import shown_name
from unlocker.notifications.events import BRAKE, IS_BLIND, SEES, Event, alert_name
from unlocker.notifications.note import MAX_OVER, TICK_S, NotificationNote
from unlocker.notifications.recipients import Recipient
from unlocker.notifications.teller import NEXT_RANK_S, Agreement, Teller

log = logging.getLogger(__name__)

GATHER_S = 5.0
"""Seconds in which what comes after something goes into the same note, and message."""
STEP_INTERVAL_S = 0.5
LOOK_INTERVAL_S, IDLE_LOOK_INTERVAL_S = 2.0, 10.0
"""Seconds between two looks at the note while somebody is owed something, and else."""
LOG_INTERVAL_S = 60.0
BRAKE_OFF_S = 120.0
"""Seconds without a brake after which it is told when it is on again."""
_SHUTDOWN_TIMEOUT_S = 1.0
"""Seconds that the last note and message may take when the service ends."""
BLIND_AFTER_S = 30.0
"""Seconds without being able to work, those in which it could counted back by half of them."""
FAILING_AFTER_S = 600.0
"""Seconds for which a recipient must have failed before that is announced."""
_MAX_FAILING_ANNOUNCED = 5
"""Names of these: of an announcement nobody reads more than 1,000 bytes."""
_MAX_STEP_S = 10.0
"""Seconds between two looks that count at most."""


class BlindnessDetector:
    """Notices that this unlocker was not ready for a while, and that it is again.

    That it is blind each tells itself, since it may be cut off from all others, or all of them from
    the store: then one tells of an outage that all see, if it is short, and each if it lasts.
    """

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._observed_at: float | None = None
        self._blind_for = 0.0  # comes and goes: 20 s without and 20 s with are not well
        self._blind: Event | None = None

    def observe(self, why: str | None, now: float) -> Event | None:
        """Take in why it can't work, or None if it can; return what is to be told of that."""
        # One that was stopped has not looked meanwhile, and may well see in a moment.
        passed = 0.0 if self._observed_at is None else min(now - self._observed_at, _MAX_STEP_S)
        self._observed_at = now
        blind_for = self._blind_for + (passed if why else -passed / 2)
        self._blind_for = min(BLIND_AFTER_S, max(0.0, blind_for))
        if self._blind_for >= BLIND_AFTER_S and self._blind is None and why:
            self._blind = self._event(IS_BLIND, f"{self._identity} can't do its work: {why}", now)
            self._blind.stands = lambda: self._blind is not None
            return self._blind
        if self._blind_for == 0.0 and self._blind is not None:
            told, self._blind = self._blind.noted or self._blind.told, None
            if told:
                return self._event(SEES, f"{self._identity} is working again.", now)
        return None

    def _event(self, kind: str, line: str, now: float) -> Event:
        return Event(f"{self._identity}.{kind}.{now:.0f}", kind, line, time.time(), noticed=now)


class Notifier:
    """Tells people; with no recipients it does nothing at all.

    Args:
        recipients: whom.
        where: the store, for the titles.
    """

    def __init__(self, recipients: Sequence[Recipient] = (), where: str = "") -> None:
        self._recipients = recipients
        self.where = where
        self._lock = threading.Lock()
        self._pending: list[Event] = []
        self._said_at = float("-inf")
        self.count: Callable[[str, int], None] = lambda _result, _number: None
        self._ending, self._last_noted = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._senders: list[Teller] = []

    def start(
        self,
        identity: str,
        store: ServiceStore,
        table: Table,
        trouble: Callable[[], str | None],
        is_rate_limited: Callable[[], bool],
        count: Callable[[str, int], None],
    ) -> None:
        """Begin; what is handed in is asked twice a second, in threads of its own.

        Args:
            identity: what this unlocker's heartbeat is called.
            store: has the note.
            table: has the locks, and the other unlockers.
            trouble: says why the unlocker can't do its work; None if it can.
            is_rate_limited: tells whether locks that are due are kept back.
            count: counts events by what became of them.
        """
        if not self._recipients:
            return
        self.identity, self.poll, self.count = identity, store.poll, count
        self._table, self._trouble, self._is_rate_limited = table, trouble, is_rate_limited
        self._agreement = Agreement(store)
        self._blindness = BlindnessDetector(identity)
        self._was_limited, self._blind = False, True
        self._configure_at = self._retry_at = float("-inf")
        self._tick = -1
        self._ended_since: dict[str, float] = {}
        self._senders = [Teller(recipient, self._agreement, self) for recipient in self._recipients]
        runs = [(self._step, self._ending, self._last_noted)]
        runs += [(teller.step, self._last_noted, threading.Event()) for teller in self._senders]
        self._threads = [
            threading.Thread(target=self._run, args=run, name="notify", daemon=True) for run in runs
        ]
        for thread in self._threads:
            thread.start()

    def notify(self, event: Event) -> None:
        """Have something told, without waiting."""
        if not self._recipients:
            return
        with self._lock:
            if len(self._pending) >= MAX_OVER:  # first what all were told without a note
                number = len(self._recipients)
                self._pending = [e for e in self._pending if len(e.told) < number]
            if kept := len(self._pending) < MAX_OVER:
                self._pending.append(event)
        if not kept:
            self._drop(1, "are not sent to anyone")

    def heartbeat_fields(self, revision: int) -> dict[str, object]:
        """Return what this unlocker's heartbeat is to say: up to which revision all is noted, and
        which recipients fail.

        Unlockers of former versions leave out what an older one says so of.
        """
        if not self._recipients:
            return {}
        with self._lock:
            left = [event.revision - 1 for event in self._pending if event.revision]
        failing = self.failing()[:_MAX_FAILING_ANNOUNCED]
        return {"told": min([revision, *left]), **({"failing": failing} if failing else {})}

    def failing(self) -> list[str]:
        """Return the names of recipients that have failed for `FAILING_AFTER_S`."""
        latest = monotonic() - FAILING_AFTER_S
        since = ((teller.url, teller.failing_since) for teller in self._senders)
        return [name for name, at in since if at is not None and at <= latest]

    def stop(self) -> None:
        """End, when the last event was noted, and told if nobody else can, or had its time."""
        self._ending.set()
        until = monotonic() + _SHUTDOWN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    # ------------------------------------------------------------ for the tellers

    def is_alone(self) -> bool:
        """See `Peers.is_alone`."""
        return not {*self._tellers()} - {self.identity}

    def rank(self) -> int:
        """See `Peers.rank`: by age, as each says itself, so that all come to the same order."""
        tellers = self._tellers()
        return tellers.index(self.identity) if self.identity in tellers else len(tellers)

    def is_alive(self, unlocker: str) -> bool:
        """See `Peers.is_alive`."""
        blind = self._blind and unlocker != self.identity
        return blind or unlocker in self._table.unlockers()

    def unnoted(self) -> Sequence[Event]:
        """See `Peers.unnoted`."""
        due = monotonic() - GATHER_S
        with self._lock:
            pending = self._pending if self._agreement.failing else []
            return [event for event in pending if event.noticed <= due]

    def _tellers(self) -> list[str]:
        """Return the unlockers that tell people, the oldest first."""
        found: list[tuple[float, str]] = []
        for name, value in self._table.unlockers().items():
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                if "told" in (said := json.loads(value)):
                    found.append((float(said.get("started_at", 0.0)), name))
        return [name for _, name in sorted(found)]

    # ------------------------------------------------------------ threads

    @staticmethod
    def _run(step: Callable[..., None], until: threading.Event, done: threading.Event) -> None:
        ending = False
        while not ending:
            ending = until.wait(STEP_INTERVAL_S)
            try:
                step(ending=ending)
            except ClusterMutexError:
                pass  # the store's; it is tried again, and `Agreement` has logged it
            except Exception:
                log.exception("Notifications could not be processed.")
        done.set()

    def _step(self, *, ending: bool) -> None:
        now, why, limited = monotonic(), self._trouble(), self._is_rate_limited()
        self._blind = why is not None
        if event := self._blindness.observe(why, now):
            self.notify(event)
        if limited and not self._was_limited:
            name = f"{self.identity}.{BRAKE}.{now:.0f}"
            line = (
                "More locks are due than may be removed in a minute: the others are kept for now."
            )
            revision = self._table.revision
            self.notify(Event(name, BRAKE, line, time.time(), revision, BRAKE, noticed=now))
        self._was_limited = limited
        owed = any(event.owed for event in self._agreement.note.events) or self._pending
        with suppress(ClusterMutexError):
            self._agreement.look(LOOK_INTERVAL_S if owed else IDLE_LOOK_INTERVAL_S)
        self._note(now, ending=ending)

    def _note(self, now: float, *, ending: bool) -> None:
        """Note what was gathered and what has ended, if there is any and it is time.

        Whoever comes later in rank finds as a rule that it is noted.
        """
        turn = GATHER_S + self.rank() * (NEXT_RANK_S + self.poll)
        with self._lock:
            pending = [*self._pending]
        ended = self._ended(now, turn)
        due = pending and (ending or now >= min(event.noticed for event in pending) + turn)
        if not (ended or due or now >= self._configure_at) or now < self._retry_at:
            return
        self._retry_at = now + LOOK_INTERVAL_S  # should it fail
        # What does not stand any more is left out, unless somebody was told.
        events = [event for event in pending if event.told or event.stands()]

        def edit(note: NotificationNote) -> int:
            # A tick that stood since we saw it, half an hour ago or longer, is over: another one's
            # would have been seen.
            ticks = now >= self._configure_at and note.tick == self._tick
            names = [recipient.name for recipient in self._recipients]
            note.configure(names, time.time(), ticks=ticks)
            return note.add(events) + note.end(ended, time.time())

        if dropped := self._agreement.change(edit):
            self._drop(dropped, "are only counted in messages")
        tick, self._retry_at = self._agreement.note.tick, now
        if tick != self._tick or now >= self._configure_at:
            self._tick, self._configure_at = tick, now + TICK_S
        for event in events:
            event.noted = True
        done = {*pending}
        with self._lock:
            self._pending = [event for event in self._pending if event not in done]

    def _drop(self, number: int, what: str) -> None:
        """Count events that are not told one by one, and say so at times."""
        self.count("dropped", number)
        if (now := monotonic()) >= self._said_at + LOG_INTERVAL_S:
            self._said_at = now
            log.warning(
                "Too many events to be kept (%d): some %s.",
                number,
                what,
                extra={"event": "notify-dropped"},
            )

    def _ended(self, now: float, turn: float) -> dict[str, str]:
        """Return the names of what stands in the note and has ended, and what is said of it.

        By a table that is not blind, and has come to what was known when it was noted: else a lock
        that it has not seen yet would seem to be gone. And not at once: who tells of a removal
        says so, and is to be first.
        """
        since, found = self._ended_since, dict[str, str]()
        self._ended_since = {}
        for event in self._agreement.note.events if not self._blind else ():
            if event.lock and (line := self._end_of(event)) is not None:
                began = self._ended_since[event.name] = since.get(event.name, now)
                if now - began >= (BRAKE_OFF_S if event.kind == BRAKE else turn + 2 * self.poll):
                    found[event.name] = line
        return found

    def _end_of(self, event: Event) -> str | None:
        """Return what is said of an end; None: it stands, or nobody knows."""
        if event.kind == BRAKE:
            return None if self._was_limited else ""
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
