"""Leases of etcd: tickets, announcements, tombstones and removal records expire by them."""

from __future__ import annotations

import math
import threading

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.store_lifecycle import closed
from lockclient.stores.etcd.errors import ErrorKind
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import WireError
from lockclient.stores.etcd.wire.rpc_methods import GRANT, KEEP_ALIVE, REVOKE
from lockclient.threads import ending
from lockclient.threads.reentrancy import briefly

_NONE = (0, -math.inf)


class Lease:
    """One lease, granted at first need and again after a loss.

    Args:
        channels: how to reach etcd.
        ttl: seconds for which it is granted.
        min_left: `get` uses a lease that has at least these seconds left.
        renewed: True: `get` extends a lease with less time left, and asks for a new one only if
            etcd does not know it any more: after an outage etcd gives each lease its full time
            again. False: it asks for a new one, and the old one expires.
    """

    def __init__(
        self, channels: Channels, *, ttl: float, min_left: float, renewed: bool = False
    ) -> None:
        self._channels = channels
        self._ttl = ttl
        self._min_left = min_left
        self._renewed = renewed
        self._lock = threading.Lock()
        # Its id and the monotonic time until which `get` costs no request: counted from before the
        # request, so never later than by etcd's clock. Replaced at once, so no reader mixes two.
        self.granted = _NONE
        self._is_lost = False  # not reported by `extend` yet
        self._has_ended = False

    def usable(self) -> int:
        """Return its id if `get` costs no request, else 0."""
        number, until = self.granted
        return number if monotonic() <= until else 0

    def get(self, deadline: Deadline) -> int:
        """Return the id of the lease, a new one if none has enough time left.

        Raises:
            WireError: etcd refuses it.
            StoreUnavailable: etcd did not answer by the deadline.
            StoreClosed: it was ended.
        """
        # Without a lock, behind which callers would wait for the deadlines of others.
        if number := self.usable():
            return number
        number, _ = self.granted
        # A stream needs a thread. Without one a waiter polls: that binds its ticket to a new lease.
        if self._renewed and ending.can_watch() and self._keep_alive(number, deadline):
            return number
        if self._has_ended:
            raise closed(self._channels.location)
        sent_at = monotonic()
        answer = self._channels.call(GRANT, wire.LeaseGrant(ttl=math.ceil(self._ttl)), deadline)
        # Another thread sets the flag in `end`, then reads the id in `revoke`. This thread writes
        # the id, then reads the flag. So one of the two revokes it.
        # The first of several answers counts, because tickets may be bound to its lease; the other
        # leases expire.
        granted = self._replace((0, number), answer.id, sent_at + answer.ttl)
        if self._has_ended:
            self.revoke(deadline)
            raise closed(self._channels.location)
        return granted

    def extend(self, deadline: Deadline) -> bool:
        """Extend it; return False without a lease, or if one was lost since the last call.

        Keys that were bound to a lost lease are gone, even if there is a new lease by now.
        """
        is_alive = self._keep_alive(self.granted[0], deadline)  # raises: the caller tries again
        was_lost, self._is_lost = self._is_lost, False
        return is_alive and not was_lost

    def _keep_alive(self, number: int, deadline: Deadline) -> bool:
        if not number:
            return False
        sent_at = monotonic()
        answer = self._channels.call(KEEP_ALIVE, wire.LeaseKeepAlive(id=number), deadline)
        if answer.ttl <= 0:
            self.forget(number)
            return False
        self._replace((number,), number, sent_at + answer.ttl)
        return True

    def _replace(self, old: tuple[int, ...], new: int, expires_at: float) -> int:
        """Note what etcd granted, unless the lease is another one by now; return its id."""
        with briefly(self._lock):
            if self.granted[0] in old:
                self.granted = new, expires_at - self._min_left
            return self.granted[0]

    def forget(self, number: int) -> None:
        """Note that etcd does not know this lease any more."""
        if self.granted[0] == number:
            self.granted, self._is_lost = _NONE, True

    def end(self) -> None:
        """Grant no more of it."""
        self._has_ended = True

    def revoke(self, deadline: Deadline) -> None:
        """End it, which deletes every key that is bound to it."""
        number, _ = self.granted
        self.forget(number)
        if number:
            try:
                self._channels.call(REVOKE, wire.LeaseRevoke(id=number), deadline)
            except WireError as error:
                if error.fault is not ErrorKind.NO_LEASE:
                    raise
