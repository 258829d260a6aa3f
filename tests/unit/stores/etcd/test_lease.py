"""The ticket lease: granted anew after its end; waiters are notified of each loss."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.rpc_methods import GRANT


class _Etcd:
    """Grants leases of this TTL, and answers all renewals, but not the first one."""

    granted = renewals = 0

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl

    def call(self, method: object, *_: object) -> Any:
        if method is GRANT:
            self.granted += 1
            return wire.LeaseGrantAnswer(id=self.granted, ttl=self.ttl)
        self.renewals += 1
        if self.renewals == 1:
            raise StoreUnavailable("no answer")
        return wire.LeaseKeepAliveAnswer(ttl=self.ttl)


@pytest.mark.parametrize("ttl", [0, 10], ids=["ended", "lost"])
def test_waiters_hear_of_the_end_of_a_lease_though_the_next_renewal_failed(ttl: int) -> None:
    """They have no ticket any more; and of a lease that is gone no waiter asks for a renewal."""
    lease = Lease(cast("Channels", _Etcd(ttl)), ttl=10, min_left=5, renewed=True)
    assert lease.get(Deadline.after(1)) == 1
    if ttl:
        lease.forget(1)
        assert lease.get(Deadline.after(1)) == 2
    with pytest.raises(StoreUnavailable):
        lease.extend(Deadline.after(1))
    assert not lease.extend(Deadline.after(1))
    assert lease.get(Deadline.after(1)) == 2
    assert lease.extend(Deadline.after(1)) == bool(ttl)
