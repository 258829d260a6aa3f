"""The age of the data that the dashboard shows.

The dashboard may not write. So every 1.5 s it reads the newest announcement of all unlockers
(linearizable), which write one every three seconds: the watch must bring it, too
(`lockclient.overview.silent_watch`). The answer also proves that the store is reachable.

Without an unlocker nothing is written regularly, and a silent watch looks like a quiet store. So
the stream is then reopened every 30 s, which misses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.overview.live_table import Table
from lockclient.overview.silent_watch import Freshness
from lockclient.service.supervision import LIMIT, Loop
from lockclient.stores.service_store import ServiceStore
from lockclient.text.durations import duration

_POLL_INTERVAL_S, _REQUEST_TIMEOUT_S = 1.5, 2.0
OLD_S = 5.0
"""Seconds without a proof after which data are old, if the store has a watch."""
_RENEW_INTERVAL_S = 30.0
"""Seconds without a new announcement after which the stream is reopened."""


class Probe(Loop):
    """Measures how old the table's data are, by reading announcements from its store."""

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._store = store
        self._freshness = Freshness(table, store)
        self.old = OLD_S + 2 * store.poll
        """Seconds without a proof after which pages say that they are out of date."""
        self._newest = 0
        self._renewed_at = monotonic()
        super().__init__("reading of the newest announcement", _POLL_INTERVAL_S, self._poll)

    def age(self) -> float:
        """Return the seconds since the table was last proven to show all writes."""
        return monotonic() - self._freshness.verified_at()

    def silent(self) -> bool:
        """Return whether the store answers, but its watch does not bring what was written."""
        return not self._store.poll and self._freshness.stale()

    def remarks(self) -> Sequence[str]:
        return self._store.warnings_for_display()

    def trouble(self, limit: float = LIMIT) -> str | None:
        """Return a sentence if this thread hangs, or if reopening and reading did not help."""
        if self._freshness.failed():
            return (
                f"For {duration(self.age())} the watch has not shown changes, even after "
                "reopening it and reading everything again."
            )
        return super().trouble(limit)

    def _poll(self) -> None:
        with suppress(ClusterMutexError):  # without an answer `age()` grows
            self._ask()
        self._freshness.escalate()

    def _ask(self) -> None:
        asked_at = monotonic()
        newest = self._store.newest_announcement(Deadline.after(_REQUEST_TIMEOUT_S))
        # Without a connected watch, an announcement that the table has proves nothing.
        if self._table.connected() or newest > self._table.revision:
            self._freshness.expect(newest, asked_at)
        if newest != self._newest:
            self._newest, self._renewed_at = newest, asked_at
        elif asked_at - self._renewed_at > _RENEW_INTERVAL_S:
            self._renewed_at = asked_at
            self._store.reopen_watch()
