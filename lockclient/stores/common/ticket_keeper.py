"""Keeps the tickets of waiters alive while these can act: renews their leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from lockclient.errors import ClusterMutexError, StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.protocol import TICKET_RENEWAL_S, Inbox, MutexStore, WatchEvent
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)


class WaiterGroup:
    """Waiters that can act only together, and so have one lease for their tickets."""

    def __init__(self) -> None:
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

    No caller takes a lock: a signal handler or a finalizer may call it on top of any line.
    """

    def __init__(self, store: MutexStore) -> None:
        self._store = store
        self._pool = WorkerPool("tickets", 1)
        self._inboxes: dict[Inbox, None] = {}
        self._groups: dict[Hashable, WaiterGroup] = {}  # the pool's thread's own
        self._is_renewing = False

    def join(self, inbox: Inbox) -> None:
        """Keep this waiter's ticket alive as long as it is in line."""
        # The caller adds its inbox, then reads `_is_renewing`. The thread clears that, then reads
        # the inboxes. So at least one of them sees the other.
        self._inboxes[inbox] = None
        if not self._is_renewing:
            self._pool.submit(self._begin)

    def leave(self, inbox: Inbox) -> None:
        """Forget this waiter."""
        self._inboxes.pop(inbox, None)

    def close(self) -> None:
        """Wake everyone, for good."""
        _tell(list(self._inboxes))
        self._pool.close()

    # ------------------------------------------------------------ the pool's thread

    def _begin(self) -> None:
        if not self._is_renewing:
            self._is_renewing = True
            self._pool.repeat(self._renew, TICKET_RENEWAL_S)

    def _renew(self) -> float | None:
        next_at = Deadline.after(TICKET_RENEWAL_S)
        inboxes: defaultdict[Hashable, list[Inbox]] = defaultdict(list)
        for inbox in list(self._inboxes):
            inboxes[inbox.waiter_group].append(inbox)
        # Not when the last one leaves: a waiter that is woken often leaves and joins as often, and
        # the tickets would never be renewed.
        if not inboxes:
            self._is_renewing = False
            if not self._inboxes:
                return None
            self._is_renewing = True
        self._groups = {waiters: self._groups.get(waiters, WaiterGroup()) for waiters in inboxes}
        for waiters, group in self._groups.items():
            confirmed, group.confirmed = group.confirmed, False
            try:
                inboxes[waiters][0].confirm(group.confirm)
            except RuntimeError:  # their loop is closed
                for inbox in inboxes[waiters]:
                    self.leave(inbox)
            if confirmed and not self._keep(waiters, group):
                _tell(inboxes[waiters])
        return next_at.remaining()

    def _keep(self, waiters: Hashable, group: WaiterGroup) -> bool:
        """Renew a lease; return False if it is lost."""
        try:
            kept = self._store.keep_tickets(waiters, Deadline.after(TICKET_RENEWAL_S))
        except StoreClosed:
            return True
        except ClusterMutexError as error:
            if not group.failing:  # once for an outage
                log.warning("The places in the queue could not be renewed; retrying: %s", error)
            group.failing = True
            return True
        group.failing = False
        return kept


def _tell(inboxes: list[Inbox]) -> None:
    for inbox in inboxes:
        inbox.put(WatchEvent(0, gap=True))
