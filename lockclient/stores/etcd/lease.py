"""Leases: tickets expire with their process, records after their retention, heartbeats soon."""

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
from lockclient.threads.reentry import briefly


class Lease:
    """One lease, granted at first need and again when it was lost.

    Args:
        channels: how to reach etcd.
        ttl: seconds for which it is granted.
        reuse: seconds of its time that must be left for it to be used without renewal.
        renewed: whether one with less time left is renewed, because of what is bound to it, and
            not left to its end beside a new one.
    """

    def __init__(
        self, channels: Channels, ttl: float, reuse: float, *, renewed: bool = False
    ) -> None:
        self._channels = channels
        self._ttl = ttl
        self._reuse = reuse
        self._renewed = renewed
        self._lock = threading.Lock()
        self.id = 0
        self._lost = False  # and nobody has been told
        # On our clock and from before the request was sent: never later than etcd's own view.
        self.usable_until = -math.inf
        """Before this monotonic time `get` costs no request."""

    def get(self, deadline: Deadline) -> int:
        """Return the lease's id, of a new one if there is none with enough time left.

        Raises:
            WireError: etcd refuses it.
            StoreUnavailable: etcd did not answer by the deadline.
        """
        # Without a lock: behind it everyone would wait for the time limits of everyone else.
        if monotonic() > self.usable_until and not (self._renewed and self._renew(deadline)):
            sent_at = monotonic()
            grant = wire.LeaseGrant(ttl=math.ceil(self._ttl))
            answer = self._channels.call(GRANT, grant, deadline)
            with briefly(self._lock):
                # Several may have asked at once. Then the first one stands, because tickets may be
                # bound to it, and the others end by themselves.
                if monotonic() > self.usable_until:
                    self.id, self.usable_until = answer.id, sent_at + answer.ttl - self._reuse
        return self.id

    def keep(self, deadline: Deadline) -> bool:
        """Renew it; False if it was never granted, or if one was lost since this was last asked.

        Also if there is a new one by now: what was bound to the one before is gone.
        """
        kept = self._renew(deadline)  # if it raises, the caller asks again
        lost, self._lost = self._lost, False
        return kept and not lost

    def _renew(self, deadline: Deadline) -> bool:
        number = self.id
        if not number:
            return False
        sent_at = monotonic()
        try:
            answer = self._channels.call(KEEP_ALIVE, wire.LeaseKeepAlive(id=number), deadline)
        except StoreUnavailable:
            if monotonic() >= self.usable_until + self._reuse:  # the next `get` asks for a new one
                self.forget(number)
            raise
        if answer.ttl <= 0:
            self.forget(number)
            return False
        self.usable_until = sent_at + answer.ttl - self._reuse
        return True

    def forget(self, number: int) -> None:
        """Take note that etcd does not know this lease any more."""
        if self.id == number:
            self.id, self.usable_until = 0, -math.inf
            self._lost = True

    def revoke(self, deadline: Deadline) -> None:
        """Give it back, and with it every key that is bound to it."""
        number = self.id
        self.forget(number)
        if number:
            try:
                self._channels.call(REVOKE, wire.LeaseRevoke(id=number), deadline)
            except WireError as error:
                if error.fault is not ErrorKind.NO_LEASE:
                    raise
