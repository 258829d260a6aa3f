"""All hosts that hold locks or wait for some, the one with the most urgent lock first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from lockclient.model.holder import OK
from lockclient.overview.listed_locks import Listed
from lockclient.overview.lock_status import LockStatus
from mutexdash.data.list_parameters import Page, Query
from mutexdash.data.waits import Waits


class HostRow(NamedTuple):
    """A host, with the number of its locks, of those that are not OK, and of its waiters.

    `worst` is the status of its most urgent lock; None: it holds none.
    """

    hostname: str
    held: int
    unhealthy: int
    waiting: int
    worst: LockStatus | None


def select_hosts(locks: Iterable[Listed], waits: Waits, query: Query) -> Page:
    """Return a page of the hosts whose names have each word; `locks` has the most urgent first."""
    held, unhealthy, worst = Counter[str](), Counter[str](), dict[str, LockStatus]()
    for lock in locks:
        if (hostname := lock.holder.hostname) is not None:
            held[hostname] += 1
            unhealthy[hostname] += lock.status.verdict != OK
            worst.setdefault(hostname, lock.status)
    waiting = Counter(wait.ticket.hostname for wait in waits.waits if wait.ticket.hostname)
    words = query.text.casefold().split()
    found = [
        HostRow(
            hostname, held[hostname], unhealthy[hostname], waiting[hostname], worst.get(hostname)
        )
        for hostname in dict.fromkeys((*worst, *waiting))
        if all(word in hostname.casefold() for word in words)
    ]
    return query.page_of(found)
