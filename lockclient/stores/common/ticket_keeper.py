"""Keeps the tickets of waiters alive while these can act: renews their leases."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import partial

from lockclient.errors import ClusterMutexError, StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.protocol import TICKET_RENEWAL_S, Inbox, MutexStore, WatchEvent
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)


class WaiterGroup:
    """Waiters that can act only together, and so have one lease for their tickets."""

    def __init__(self, waiters: Hashable) -> None:
        self.waiters = waiters
        self.inboxes: set[Inbox] = set()
        self.confirmed = True
        self.failing = False

    def confirm(self) -> None:
        """Note that they can act."""
        self.confirmed = True


class TicketKeeper:
    """The waiters of this process on one store: their tickets are kept alive while they can act.

    A waiter joins with its inbox; when its ticket is lost it is told to look for itself. Before
    each renewal the waiters have to show that they can act: the tasks of an event loop that is
    blocked would get a lock that they can't take, while others stand behind them.

    Its lock is held for some steps that wait for nothing. The main thread takes it as an event loop
    only (all else of it is done by deputies), and a handler that raises there is about to end the
    loop with its waiters. What a handler or a finalizer does on top of these steps comes back here
    by waiting for a lock only: a release is handed over, and to ask for `healthy` or to drop a held
    lock touches no waiter.
    """

    def __init__(self, store: MutexStore) -> None:
        self._store = store
        self._pool = WorkerPool("tickets", 1)
        self._groups: dict[Hashable, WaiterGroup] = {}
        self._lock = threading.Lock()

    def join(self, inbox: Inbox) -> None:
        """Keep this waiter's ticket alive as long as it is in line."""
        with self._lock:
            group = self._groups.get(inbox.waiter_group)
            if group is None:
                group = self._groups[inbox.waiter_group] = WaiterGroup(inbox.waiter_group)
                self._pool.repeat(partial(self._renew, group), TICKET_RENEWAL_S)
            group.inboxes.add(inbox)

    def leave(self, inbox: Inbox) -> None:
        """Forget this waiter."""
        with self._lock:
            group = self._groups.get(inbox.waiter_group)
            if group is not None:
                group.inboxes.discard(inbox)

    def close(self) -> None:
        """Wake everyone, for good."""
        with self._lock:
            for group in self._groups.values():
                self._tell(group)
        self._pool.close()

    def _renew(self, group: WaiterGroup) -> float | None:
        next_at = Deadline.after(TICKET_RENEWAL_S)
        with self._lock:
            # Not when the last one leaves: a waiter that is woken often leaves and joins as often,
            # and the tickets would never be renewed.
            if not group.inboxes:
                self._groups.pop(group.waiters, None)
                return None
            waiter = next(iter(group.inboxes))
        confirmed, group.confirmed = group.confirmed, False
        try:
            waiter.confirm(group.confirm)
        except RuntimeError:  # their loop is closed
            group.inboxes.clear()
        if confirmed:
            self._keep(group, next_at)
        return next_at.remaining()

    def _keep(self, group: WaiterGroup, deadline: Deadline) -> None:
        try:
            kept = self._store.keep_tickets(group.waiters, deadline)
        except StoreClosed:
            return
        except ClusterMutexError as error:
            if not group.failing:  # once for an outage
                log.warning("The places in the queue could not be renewed; retrying: %s", error)
            group.failing = True
            return
        group.failing = False
        if not kept:
            with self._lock:
                self._tell(group)

    def _tell(self, group: WaiterGroup) -> None:
        for inbox in group.inboxes:
            inbox.put(WatchEvent(0, gap=True))
