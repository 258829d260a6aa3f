"""Staleness: how old is what the dashboard shows? It may not write, and reads what unlockers write.

Every two seconds etcd is asked (linearizable) for the newest heartbeat of all unlockers, which
write one every three: it must have come by the watch, or come soon
(`lockclient.overview.freshness`). That there is an answer proves besides that etcd is there, which
a connection to a frozen one does not.

Where no unlocker runs there is nothing to expect, so that a watch which has fallen silent can't be
told from a quiet store. So the stream is opened anew now and then, which misses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.overview.freshness import Freshness
from lockclient.overview.table import Table
from lockclient.service.supervision import LIMIT, Loop
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.durations import duration

_POLL_INTERVAL_S, _REQUEST_TIMEOUT_S = 1.5, 2.0
OLD_S = 5.0
"""The least of `Probe.old`: of a store that is looked at the picture is as old as the last look."""
_RENEW_INTERVAL_S = 30.0
"""Seconds without anything new to expect after which the stream is opened anew."""


class Probe(Loop):
    """Knows how old the table's picture is, by asking what is in the store.

    Args:
        table: the picture.
        store: whose watch it follows.
    """

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._store = store
        self._freshness = Freshness(table, store)
        self.old = OLD_S + 2 * store.poll
        """Seconds without a proof after which nobody is told that all is well."""
        self._newest = 0
        self._renewed_at = monotonic()
        super().__init__("question after the newest heartbeat", _POLL_INTERVAL_S, self._poll)

    def age(self) -> float:
        """Return for how many seconds it has not been proven that the picture shows all."""
        return monotonic() - self._freshness.verified_at()

    def silent(self) -> bool:
        """Tell whether etcd answers, and what it says does not come by the watch.

        A store that is looked at is away, or its last look shows all there was.
        """
        return not self._store.poll and self._freshness.stale()

    def remarks(self) -> Sequence[str]:
        """See `ServiceStore.warnings_for_display`."""
        return self._store.warnings_for_display()

    def trouble(self, limit: float = LIMIT) -> str | None:
        """Say in a sentence that nobody asks any more, or that nothing helps, if so."""
        if self._freshness.failed():
            return (
                f"For {duration(self.age())} the watch has not shown changes, even after "
                "reopening it and reading everything again."
            )
        return super().trouble(limit)

    def _poll(self) -> None:
        with suppress(ClusterMutexError):  # unanswered is not proven, and that shows
            self._ask()
        self._freshness.escalate()

    def _ask(self) -> None:
        asked_at = monotonic()
        newest = self._store.newest_announcement(Deadline.after(_REQUEST_TIMEOUT_S))
        # While nothing is followed, that there is nothing new to expect proves nothing.
        if self._table.connected() or newest > self._table.revision:
            self._freshness.expect(newest, asked_at)
        if newest != self._newest:
            self._newest, self._renewed_at = newest, asked_at
        elif asked_at - self._renewed_at > _RENEW_INTERVAL_S:
            self._renewed_at = asked_at
            self._store.reopen_watch()
