"""Locks that nobody gets though clients wait in line: free, and not claimed by the line's head.

A hand-over takes milliseconds, and the ticket of a waiter that died goes within its lease, so this
passes by itself. It does not when the head lives and does not act: a program that is blocked, or
does not follow the protocol. Then all behind it wait in vain, and there is no holder to alert on.

A look at all lines with each sweep, counted by our own monotonic clock. It costs about 1 µs for
each lock that has a line, however long, and is made less often where that adds up. What looks would
miss, that a lock was taken and released between two of them, the table's changes tell. Only what is
unclaimed at the moment is remembered.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from lockclient.record import Ticket
from lockclient.table import Table, Transition
from lockclient.timing import monotonic
from unlocker.metrics import LISTED, shorten

NORMAL = 15.0
"""Seconds for which a lock may well be free with a line: the 10 s lease of a dead waiter's ticket,
and what etcd takes to end it."""

_SHARE = 0.02
"""The part of a processor's time that looks may take."""


@dataclass(frozen=True, slots=True)
class _Free:
    head: Ticket
    since: float


class Unclaimed(Collector):
    """What is unclaimed and since when, as a scrape shows it; several threads may use it.

    Args:
        table: whose changes are handed to `update`, in its own thread.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        # Held through a look, so that no change falls between what it reads and what it notes.
        self._lock = threading.Lock()
        self._found: dict[str, _Free] = {}
        self._loads = 0
        self._looked_at = 0.0
        self._due = -math.inf

    def update(self, changes: Iterable[Transition]) -> None:
        """Take in what the table brought: once taken, a lock is counted anew from its release."""
        with self._lock:
            if self._found:
                for change in changes:
                    if change.after is not None and change.after.held:
                        self._found.pop(change.name, None)

    def look(self, now: float) -> None:
        """Look at all lines at the monotonic moment `now`; what the table shows must be new."""
        if now < self._due:
            return
        began = time.thread_time()
        with self._lock:
            loads, heads = self._read()
            # What changed before a reading of everything was not all told. Where the head is still
            # the same, it was not served, and goes on waiting.
            unseen, self._loads = loads != self._loads, loads
            before, self._found = self._found, {}
            for name, head in heads.items():
                known = before.get(name)
                if known is None or (unseen and known.head.revision != head.revision):
                    known = _Free(head, now)
                elif known.head is not head:
                    known = _Free(head, known.since)
                self._found[name] = known
            self._looked_at = now
            self._due = now + (time.thread_time() - began) / _SHARE

    def _read(self) -> tuple[int, dict[str, Ticket]]:
        """Return what is unclaimed, and which of the table's readings that is from."""
        while True:
            loads = self._table.loads
            heads = self._table.unclaimed()
            if loads == self._table.loads:
                return loads, heads

    def forget(self) -> None:
        """Know nothing: while the store is away nobody can claim, and the table's news are old."""
        with self._lock:
            self._found = {}
            self._due = -math.inf

    # ------------------------------------------------------------ a scrape

    def describe(self) -> list[Metric]:
        """Name nothing in advance: else the registry would collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Compute the gauges from what the last look found."""
        with self._lock:
            until = self._looked_at - NORMAL
            late = [each for each in self._found.values() if each.since <= until]
        yield GaugeMetricFamily(
            "clustermutex_locks_free_with_waiters",
            f"Locks that have been free for {NORMAL:g} s and longer though clients wait for them.",
            len(late),
        )
        since = GaugeMetricFamily(
            "clustermutex_lock_free_with_waiters_timestamp_seconds",
            f"Since when such a lock has been free, the {LISTED} that have been for longest.",
            labels=["name"],
        )
        info = InfoMetricFamily(
            "clustermutex_lock_head",
            "Who is next in line for such a lock, and does not take it.",
            labels=["name", "hostname", "pid", "reason"],
        )
        offset = time.time() - monotonic()
        for each in heapq.nsmallest(LISTED, late, key=attrgetter("since")):
            head = each.head
            who = (head.hostname or "", str(head.pid or ""), head.reason or "")
            since.add_metric([head.name], each.since + offset)
            info.add_metric([head.name, *map(shorten, who)], {})
        yield from (since, info)
