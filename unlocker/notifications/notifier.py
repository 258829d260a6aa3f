"""Notifies people of what is wrong: one thread gathers the truth, one for each recipient sends.

Alertmanager works by the same shape: no list of events, but what is true now, less what was sent.
So a hanging recipient delays neither a sweep nor another recipient. Without recipients the unlocker
has no such threads, and writes no documents.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from lockclient.errors import ClusterMutexError
from lockclient.model.announcement import announced
from lockclient.model.clocks import Deadline, monotonic
from lockclient.overview.live_table import Table
from lockclient.stores.service_store import ServiceStore
from unlocker.deadlines import Deadlines
from unlocker.notifications.apprise_recipients import Recipient
from unlocker.notifications.conditions import BLIND, CLOCK
from unlocker.notifications.message import Writer
from unlocker.notifications.sender import STUCK_S, Pace, Sender
from unlocker.notifications.truth import Observations, Truth

log = logging.getLogger(__name__)

STEP_INTERVAL_S = 0.5
"""Seconds that a thread waits between two steps."""
GATHER_SHARE = 20
"""The thread that gathers the truth sleeps so many times as long as it has worked."""
CUT_OFF_S = 20.0
"""Seconds without an accepted heartbeat after which an unlocker is cut off: its announcement is
gone, and others may send. A polled store gets two poll intervals more."""
FAILING_AFTER_S = 600.0
"""Seconds that a recipient must have failed before this unlocker announces that it fails."""
FORGET_S = 86400.0
"""Seconds after which the document of a recipient is deleted that no running unlocker announces."""
CLEAN_UP_INTERVAL_S = 3600.0
_CLEAN_UP_TIMEOUT_S = 60.0
_SHUTDOWN_TIMEOUT_S = 1.0
"""Seconds that `stop` waits for the senders' last messages."""
_MAX_ANNOUNCED = 5
_OLD_NOTE = "note"
"""The document of earlier unlockers, which kept a list of events."""


class Notifier:
    """Notifies recipients; does nothing if there are none.

    Args:
        recipients: each gets all notifications.
        writer: writes the messages.
        pace: how often people are notified.
    """

    def __init__(
        self,
        recipients: Sequence[Recipient] = (),
        writer: Writer | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._recipients, self._writer = recipients, writer or Writer()
        self._pace = pace or Pace()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._senders: dict[str, Sender] = {}
        self._announced_at: dict[str, float] = {}
        self.truth = Truth()

    def start(
        self,
        identity: str,
        store: ServiceStore,
        table: Table,
        deadlines: Deadlines,
        trouble: Callable[[], str | None],
        own: Callable[[], Mapping[str, str]],
        heartbeat_at: Callable[[], float],
        count: Callable[[str, int], None],
    ) -> None:
        """Start the threads, which call the functions given here.

        Args:
            identity: this unlocker's name, as in its announcement.
            store: has the documents.
            table: has the locks, the removals, and the other unlockers.
            deadlines: knows what is wrong with locks.
            trouble: returns the reason why the unlocker can't do its work; None: it can.
            own: see `Observations`.
            heartbeat_at: returns when the store accepted our last heartbeat, monotonic.
            count: counts conditions and removals by outcome.
        """
        if not self._recipients:
            return
        self.identity, self.count, self._table, self._store = identity, count, table, store
        self._heartbeat_at = heartbeat_at
        self._observations = Observations(identity, table, deadlines, trouble, own)
        self._stepped_at = monotonic()
        for each in self._recipients:
            self._senders[each.name] = Sender(each, store, self, self._writer, self._pace)
        steps = [self._gather, *(sender.step for sender in self._senders.values())]
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name="notify", daemon=True)
            for step in steps
        ]
        for thread in self._threads:
            thread.start()

    def announcement_fields(self) -> dict[str, object]:
        """Return the fields that this unlocker adds to its announcement.

        `notifies`: failed attempts in a row by recipient, without those whose thread is stuck;
        `conditions`: what is wrong with the unlocker; `failing`, `damaged`: names of recipients
        that have failed for `FAILING_AFTER_S`, and whose document can't be read.
        """
        if not self._senders:
            return {}
        latest = monotonic() - STUCK_S
        senders = self._senders.values() if self._stepped_at >= latest else ()
        fields: dict[str, object] = {
            "notifies": {each.name: each.failures for each in senders if each.stepped_at >= latest}
        }
        lists = {
            "conditions": self._observations.announced,
            "failing": self.failing()[:_MAX_ANNOUNCED],
            "damaged": self.damaged()[:_MAX_ANNOUNCED],
        }
        return fields | {name: found for name, found in lists.items() if found}

    def failing(self) -> list[str]:
        """Return the names of recipients that have failed for `FAILING_AFTER_S`."""
        latest = monotonic() - FAILING_AFTER_S
        since = ((sender.name, sender.failing_since) for sender in self._senders.values())
        return [name for name, at in since if at is not None and at <= latest]

    def damaged(self) -> list[str]:
        """Return the names of recipients whose document can't be read."""
        return [sender.name for sender in self._senders.values() if sender.damage]

    def clean_up(self) -> None:
        """Delete the documents that no unlocker announces, and the note of old versions."""
        if not (self._senders and self.truth.is_ready):
            return
        now, deadline = monotonic(), Deadline.after(_CLEAN_UP_TIMEOUT_S)
        announcements = [announced(value) for value in self._table.unlockers().values()]
        recipients = {name for found in announcements for name in _keys(found.get("notifies"))}
        is_mixed = any("recipients" in found for found in announcements)
        for name in self._store.document_names(deadline):
            if name.removeprefix("sent/") in recipients or (name == _OLD_NOTE and is_mixed):
                self._announced_at[name] = now
            since = self._announced_at.setdefault(name, now)
            if (name == _OLD_NOTE and not is_mixed) or now - since > FORGET_S:
                # Also one that reads as absent: a server of Valkey's may still have it.
                seen = self._store.read_document(name, deadline)
                self._store.write_document(name, b"", seen, deadline)

    def stop(self) -> None:
        """Stop the threads; the senders make a last step, for `_SHUTDOWN_TIMEOUT_S` at most."""
        self._ending.set()
        until = monotonic() + _SHUTDOWN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    # ------------------------------------------------------------ for the senders

    def senders(self, recipient: str) -> list[str]:
        """See `Peers.senders`; `sender` has the order.

        An unlocker that is not ready does not know which others are blind. If all are, one of them
        has to say so.
        """
        found, is_ready = [], self.truth.is_ready
        for name, value in self._table.unlockers().items():
            fields = announced(value)
            notifies, wrong = fields.get("notifies"), fields.get("conditions")
            failures = notifies.get(recipient) if isinstance(notifies, dict) else None
            wrong = wrong if isinstance(wrong, dict) else {}
            if name == self.identity:  # its announcement may be seconds old
                failures, wrong = self._senders[recipient].failures, self._observations.announced
            started_at = fields.get("started_at")
            if isinstance(failures, int) and isinstance(started_at, (int, float)):
                is_blind, has_clock_trouble = is_ready and BLIND.code in wrong, CLOCK.code in wrong
                found.append((is_blind, failures, has_clock_trouble, started_at, name))
        return [name for *_, name in sorted(found)]

    def is_cut_off(self) -> bool:
        """See `Peers.is_cut_off`."""
        return monotonic() - self._heartbeat_at() > CUT_OFF_S + 2 * self._store.poll

    # ------------------------------------------------------------ threads

    def _run(self, step: Callable[..., None]) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(STEP_INTERVAL_S)
            try:
                step(ending=ending)
            except ClusterMutexError as error:
                log.debug("Notifications: %s", error)
            except Exception:
                log.exception("Notifications could not be processed.")

    def _gather(self, *, ending: bool = False) -> None:
        began = monotonic()
        self.truth = self._observations.gather(began)
        self._stepped_at = monotonic()
        if not ending:
            self._ending.wait(min(STUCK_S / 3, GATHER_SHARE * (self._stepped_at - began)))


def _keys(found: object) -> list[str]:
    return [str(name) for name in found] if isinstance(found, dict) else []
