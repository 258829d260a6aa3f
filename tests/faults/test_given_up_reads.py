"""Clients that do not wait for an answer, or are gone before it comes, and the etcd that reads.

etcd before 3.4.23 and 3.5.7 ends when a read-only transaction's client does so at the wrong moment
(etcd-io/etcd #14110). That of the `embedded` extra is such a one; on newer ones this shows nothing.
"""

from __future__ import annotations

from lockclient import StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import TXN
from lockclient.stores.requests import GetPosition, Read, Request

REQUESTS: tuple[Request, ...] = (Read("x", waiters=True), GetPosition("x", "me", 10**9))


def test_etcd_lives_on(own_etcd: Etcd, own_store: EtcdStore) -> None:
    line = f"{own_store.location.root}/queue/x/"
    for hundred in range(30):  # a line so long that reading it takes longer than some deadlines
        puts = [wire.Put(key=f"{line}{hundred}-{n}".encode()) for n in range(100)]
        txn = wire.Txn(success=[wire.Operation(put=put) for put in puts])
        own_store._channels.call(TXN, txn, Deadline.after(30))
    given_up = 0
    for turn in range(300):
        try:
            own_store.ask(REQUESTS[turn % 2], Deadline.after(0.0002 * (turn % 50)))
        except StoreUnavailable:
            given_up += 1
    assert given_up > 10
    assert own_etcd.process is not None
    assert own_etcd.process.poll() is None
    assert own_store.ask(Read("x"), Deadline.after(30))
