"""Leases of waiters' tickets: how long they last, their renewal, and the order after a loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from operator import itemgetter

from lockclient.errors import ClusterMutexError, StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.mutex_store import Inbox, MutexStore, WatchEvent
from lockclient.threads import ending
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import Repeating, WorkerPool

log = get_logger(__name__)

TICKET_TTL_S = 10
"""Seconds after the last `MutexStore.extend_tickets` at which tickets expire."""
TICKET_RENEWAL_S = TICKET_TTL_S / 4
"""Seconds between two renewals of a ticket."""

_Place = tuple[Hashable, str, int]  # waiter group, lock, revision of the ticket


class WaiterGroup:
    """The waiters of one event loop, or of all threads: their tickets have one lease."""

    def __init__(self) -> None:
        self.has_confirmed = True
        self.is_failing = False

    def confirm(self) -> None:
        """Note that the group's waiters can act."""
        self.has_confirmed = True


class TicketLeases:
    """The waiters of this process on one store, and the leases of their tickets.

    A waiter joins with its inbox, and gets a gap when its ticket is lost. Before each extension a
    group has to confirm that it can act: the tasks of a blocked event loop would get a lock that
    they can't take, and waiters behind them would wait.

    No caller takes a lock, so a signal handler or a finalizer may call `join` and `leave`.
    """

    def __init__(self, store: MutexStore) -> None:
        self._store = store
        self._pool = WorkerPool("tickets", 1)
        self._repeating = Repeating(self._pool.submit, self._extend_all)
        self._is_repeating = False
        self._inboxes: dict[Inbox, _Place] = {}
        self._requeueing: dict[Inbox, _Place] = {}
        self._groups: dict[Hashable, WaiterGroup] = {}  # used by the pool's thread alone

    def join(self, inbox: Inbox, lock: str, revision: int) -> None:
        """Keep the ticket of this revision alive until its waiter leaves."""
        # The caller adds its inbox, then reads `_is_repeating`. The thread clears that, then reads
        # the inboxes. So at least one of them sees the other.
        self._inboxes[inbox] = inbox.waiter_group, lock, revision
        if not self._is_repeating:
            self._repeating.run_within(TICKET_RENEWAL_S)  # first: an interrupt may end this call
            self._is_repeating = True

    def leave(self, inbox: Inbox) -> None:
        """Forget this waiter: its acquisition has ended, or has another ticket."""
        self._requeueing.pop(inbox, None)
        left = self._inboxes.pop(inbox, None)
        waiting = list(self._requeueing.items())
        behind = [(place[2], other) for other, place in waiting if left and place[:2] == left[:2]]
        if behind:
            _notify_of_gap([min(behind, key=itemgetter(0))[1]])

    def is_next(self, inbox: Inbox) -> bool:
        """Return whether a waiter may replace its lost ticket; else it gets a gap when it may.

        It may if no waiter has an older ticket with the same lock and lease, which is lost, too.
        """
        # The caller adds itself to `_requeueing`, then reads `_inboxes`. A waiter that leaves
        # removes itself there, then reads `_requeueing`. So at least one of them sees the other.
        place = self._requeueing[inbox] = self._inboxes[inbox]
        ours = [other for other in list(self._inboxes.values()) if other[:2] == place[:2]]
        if min(ours) == place:
            return True
        self._repeating.run_within(0)  # the head watches no ticket: only this shows it the loss
        return False

    def groups(self) -> set[Hashable]:
        """Return the event loops that have waiters, and None if threads wait."""
        return {place[0] for place in list(self._inboxes.values())}

    def close(self) -> None:
        """Renew no more."""
        self._pool.close()

    # ------------------------------------------------------------ the pool's thread

    def _extend_all(self) -> float | None:
        if not ending.can_watch():  # a renewal needs a thread: waiters poll, and get new leases
            return None
        next_at = Deadline.after(TICKET_RENEWAL_S)
        # It ends when it finds no waiter, not when the last one leaves: a waiter that is woken
        # often leaves and joins as often, and its lease would never be extended.
        self._is_repeating = False
        inboxes: defaultdict[Hashable, list[Inbox]] = defaultdict(list)
        for inbox in list(self._inboxes):
            inboxes[inbox.waiter_group].append(inbox)
        if not inboxes:
            return None
        self._is_repeating = True
        self._groups = {waiters: self._groups.get(waiters, WaiterGroup()) for waiters in inboxes}
        for waiters, group in self._groups.items():
            has_confirmed, group.has_confirmed = group.has_confirmed, False
            try:
                inboxes[waiters][0].confirm(group.confirm)
            except RuntimeError:  # their loop is closed
                for inbox in inboxes[waiters]:
                    self.leave(inbox)
            if has_confirmed and not self._extend(waiters, group):
                _notify_of_gap(inboxes[waiters])
        return next_at.remaining()

    def _extend(self, waiters: Hashable, group: WaiterGroup) -> bool:
        """Extend a lease; return False if it is lost."""
        try:
            is_alive = self._store.extend_tickets(waiters, Deadline.after(TICKET_RENEWAL_S))
        except StoreClosed:
            return True
        except ClusterMutexError as error:
            if not group.is_failing:  # once for an outage
                log.warning("The places in the queue could not be renewed; retrying: %s", error)
            group.is_failing = True
            return True
        group.is_failing = False
        return is_alive


def _notify_of_gap(inboxes: list[Inbox]) -> None:
    for inbox in inboxes:
        inbox.put(WatchEvent(0, gap=True))
