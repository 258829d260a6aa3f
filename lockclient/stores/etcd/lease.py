"""Leases of etcd: tickets, announcements, tombstones and removal records expire by them."""

from __future__ import annotations

import math
import threading

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.etcd.errors import ErrorKind
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import WireError
from lockclient.stores.etcd.wire.rpc_methods import GRANT, KEEP_ALIVE, REVOKE
from lockclient.threads.reentrancy import briefly


class Lease:
    """One lease, granted at first need and again after a loss.

    Args:
        channels: how to reach etcd.
        ttl: seconds for which it is granted.
        min_left: `get` uses a lease that has at least these seconds left.
        renewed: True: `get` extends a lease with less time left; False: it asks for a new one, and
            the old one expires.
    """

    def __init__(
        self, channels: Channels, *, ttl: float, min_left: float, renewed: bool = False
    ) -> None:
        self._channels = channels
        self._ttl = ttl
        self._min_left = min_left
        self._renewed = renewed
        self._lock = threading.Lock()
        self.id = 0
        self._is_lost = False  # not reported by `extend` yet
        # By our clock, counted from before the request: never later than by etcd's.
        self.usable_until = -math.inf
        """Before this monotonic time `get` costs no request."""

    def get(self, deadline: Deadline) -> int:
        """Return the id of the lease, a new one if none has enough time left.

        Raises:
            WireError: etcd refuses it.
            StoreUnavailable: etcd did not answer by the deadline.
        """
        # Without a lock, behind which callers would wait for the deadlines of others.
        if monotonic() > self.usable_until and not (self._renewed and self._keep_alive(deadline)):
            sent_at = monotonic()
            grant = wire.LeaseGrant(ttl=math.ceil(self._ttl))
            answer = self._channels.call(GRANT, grant, deadline)
            with briefly(self._lock):
                # The first of several answers counts, because tickets may be bound to its
                # lease; the other leases expire.
                if monotonic() > self.usable_until:
                    self.id, self.usable_until = answer.id, sent_at + answer.ttl - self._min_left
        return self.id

    def extend(self, deadline: Deadline) -> bool:
        """Extend it; return False without a lease, or if one was lost since the last call.

        Keys that were bound to a lost lease are gone, even if there is a new lease by now.
        """
        is_alive = self._keep_alive(deadline)  # if it raises, the caller tries again
        was_lost, self._is_lost = self._is_lost, False
        return is_alive and not was_lost

    def _keep_alive(self, deadline: Deadline) -> bool:
        number = self.id
        if not number:
            return False
        sent_at = monotonic()
        try:
            answer = self._channels.call(KEEP_ALIVE, wire.LeaseKeepAlive(id=number), deadline)
        except StoreUnavailable:
            # The next `get` asks for a new one.
            if monotonic() >= self.usable_until + self._min_left:
                self.forget(number)
            raise
        if answer.ttl <= 0:
            self.forget(number)
            return False
        self.usable_until = sent_at + answer.ttl - self._min_left
        return True

    def forget(self, number: int) -> None:
        """Note that etcd does not know this lease any more."""
        if self.id == number:
            self.id, self.usable_until = 0, -math.inf
            self._is_lost = True

    def revoke(self, deadline: Deadline) -> None:
        """End it, which deletes every key that is bound to it."""
        number = self.id
        self.forget(number)
        if number:
            try:
                self._channels.call(REVOKE, wire.LeaseRevoke(id=number), deadline)
            except WireError as error:
                if error.fault is not ErrorKind.NO_LEASE:
                    raise
