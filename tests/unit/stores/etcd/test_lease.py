"""The tickets' lease: granted anew when its end has passed without an answer to a renewal."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.rpc_methods import GRANT


class _NoRenewal:
    """Grants leases that end at once, and answers no renewal."""

    granted = 0

    def call(self, method: object, *_: object) -> Any:
        if method is not GRANT:
            raise StoreUnavailable("no answer")
        self.granted += 1
        return wire.LeaseGrantAnswer(id=self.granted, ttl=0)


def test_an_ended_lease_whose_renewal_stays_unanswered_is_granted_anew() -> None:
    """Otherwise each waiter asks for the renewal of a lease that is gone, and none can queue."""
    lease = Lease(cast("Channels", _NoRenewal()), 10, 5, renewed=True)
    assert lease.get(Deadline.after(1)) == 1
    with pytest.raises(StoreUnavailable):
        lease.keep(Deadline.after(1))
    assert not lease.keep(Deadline.after(1)), "the waiters are told that their tickets are lost"
    assert lease.get(Deadline.after(1)) == 2
