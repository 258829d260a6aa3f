"""Leases: they bind tickets to a living process, removals to their retention, unlockers to life."""

from __future__ import annotations

import math
import threading
import time

from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.channels import Channels
from lockclient.etcd.failover import Refusal
from lockclient.etcd.faults import Fault
from lockclient.etcd.methods import GRANT, KEEP_ALIVE, REVOKE
from lockclient.timing import Deadline


class Lease:
    """One lease, granted at first need and again when it was lost.

    Args:
        channels: how to reach etcd.
        ttl: seconds for which it is granted.
        reuse: seconds of its time that must be left for it to be used without renewal.
    """

    def __init__(self, channels: Channels, ttl: float, reuse: float) -> None:
        self._channels = channels
        self._ttl = ttl
        self._reuse = reuse
        self._lock = threading.Lock()
        self.id = 0
        self._lost = False  # and nobody has been told
        # On our clock and from before the request was sent: never later than etcd's own view.
        self._until = -math.inf

    def usable(self) -> bool:
        """Tell whether `get` costs no request."""
        return self._until - time.monotonic() >= self._reuse

    def get(self, deadline: Deadline) -> int:
        """Return the lease's id, of a new one if there is none with enough time left.

        Raises:
            Refusal: etcd refuses it.
            StoreUnavailable: etcd did not answer by the deadline.
        """
        if not self.usable():
            # Without a lock: behind it everyone would wait for the time limits of everyone else.
            sent_at = time.monotonic()
            answer, _ = self._channels.call(GRANT, self.grant(), deadline)
            self.granted(answer, sent_at)
        return self.id

    def grant(self) -> wire.LeaseGrant:
        """Return the request for a new one, for who asks by other means."""
        return wire.LeaseGrant(ttl=math.ceil(self._ttl))

    def granted(self, answer: wire.LeaseGrantAnswer, sent_at: float) -> None:
        """Take note of a new one; `sent_at` is the monotonic time before it was asked for.

        Threads and event loops may have asked at once. Then the first one stands, because tickets
        may be bound to it, and the others end by themselves.
        """
        with self._lock:
            if not self.usable():
                self.id, self._until = answer.id, sent_at + answer.ttl

    def keep(self, deadline: Deadline) -> bool:
        """Renew it; False if it was never granted, or if one was lost since this was last asked.

        Also if there is a new one by now: what was bound to the one before is gone.
        """
        lost, self._lost = self._lost, False
        identity = self.id
        if not identity:
            return False
        sent_at = time.monotonic()
        answer, _ = self._channels.call(KEEP_ALIVE, wire.LeaseKeepAlive(id=identity), deadline)
        if answer.ttl <= 0:
            self.forget(identity)
            self._lost = False  # said now
            return False
        self._until = sent_at + answer.ttl
        return not lost

    def forget(self, identity: int) -> None:
        """Take note that etcd does not know this lease any more."""
        if self.id == identity:
            self.id, self._until = 0, -math.inf
            self._lost = True

    def revoke(self, deadline: Deadline) -> None:
        """Give it back, and with it every key that is bound to it."""
        identity = self.id
        self.forget(identity)
        if identity:
            try:
                self._channels.call(REVOKE, wire.LeaseRevoke(id=identity), deadline)
            except Refusal as refusal:
                if refusal.fault is not Fault.NO_LEASE:
                    raise
