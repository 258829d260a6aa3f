"""The lease that tickets are bound to: granted when needed, renewed, and missed when it is lost."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.etcd import lease
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.rpc_methods import GRANT, KEEP_ALIVE, Method

NEVER = Deadline.after(None)


class Server:
    """Grants and renews leases, and a clock to move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.known: set[int] = set()
        self.last = 0

    def monotonic(self) -> float:
        return self.now

    def call(self, method: Method, request: Any, _: Deadline) -> Any:
        if method is GRANT:
            self.asked.append("grant")
            self.last += 1
            self.known.add(self.last)
            return wire.LeaseGrantAnswer(id=self.last, ttl=request.ttl)
        assert method is KEEP_ALIVE
        self.asked.append("renew")
        ttl = 10 if request.id in self.known else 0
        return wire.LeaseKeepAliveAnswer(id=request.id, ttl=ttl)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(lease, "monotonic", made.monotonic)
    return made


def line(server: Server) -> Lease:
    return Lease(cast(Channels, server), 10, 5, renewed=True)


def test_it_is_granted_once(server: Server) -> None:
    """And used as it is while at least half of its time is left."""
    lease = line(server)
    assert not lease.usable()
    assert lease.get(NEVER) == 1
    server.now += 5
    assert lease.usable()
    assert lease.get(NEVER) == 1
    assert server.asked == ["grant"]


def test_keeping_it_makes_it_last(server: Server) -> None:
    """Its time counts from before the request, so never longer than etcd sees it."""
    lease = line(server)
    lease.get(NEVER)
    server.now += 9
    assert not lease.usable()
    assert lease.keep(NEVER) is True
    assert lease.usable()
    assert lease.get(NEVER) == 1
    assert server.asked == ["grant", "renew"]


def test_one_that_grew_old_is_replaced(server: Server) -> None:
    """The records of an hour share one; renewed, it would make them live on and on."""
    lease = Lease(cast(Channels, server), 10, 5)
    lease.get(NEVER)
    server.now += 5.1
    assert lease.get(NEVER) == 2
    assert server.asked == ["grant", "grant"]


def test_one_that_is_gone_is_missed_once(server: Server) -> None:
    """Whoever keeps it is told, and goes on with the new one."""
    lease = line(server)
    lease.get(NEVER)
    server.known.clear()
    assert lease.keep(NEVER) is False
    assert lease.get(NEVER) == 2
    assert lease.keep(NEVER) is True


def test_a_request_that_finds_it_gone_says_so(server: Server) -> None:
    """By its number: an answer about an old one must not take away the new one."""
    lease = line(server)
    lease.forget(lease.get(NEVER))
    assert lease.get(NEVER) == 2
    lease.forget(1)
    assert lease.get(NEVER) == 2
    assert lease.keep(NEVER) is False
    assert lease.keep(NEVER) is True


def test_there_is_nothing_to_keep_at_first(server: Server) -> None:
    """No request for a lease that nobody needed yet."""
    assert line(server).keep(NEVER) is False
    assert server.asked == []


def test_of_two_that_are_granted_at_once_the_first_stands(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets may be bound to the first one; the other ends by itself."""
    lease, really = line(server), server.call

    def call(method: Method, request: Any, deadline: Deadline) -> Any:
        answer = really(method, request, deadline)
        if server.last == 1:  # another thread asks meanwhile, and has its answer sooner
            assert lease.get(NEVER) == 2
        return answer

    monkeypatch.setattr(server, "call", call)
    assert lease.get(NEVER) == 2
    assert server.asked == ["grant", "grant"]


def test_one_with_little_time_left_is_renewed_and_not_replaced(server: Server) -> None:
    """Else the tickets that are bound to it would end untold."""
    lease = line(server)
    lease.get(NEVER)
    server.now += 6
    assert lease.get(NEVER) == 1
    assert server.asked == ["grant", "renew"]
    server.known.clear()
    server.now += 6
    assert lease.get(NEVER) == 2
    assert lease.keep(NEVER) is False, "what was bound to the first one is gone"
    assert lease.keep(NEVER) is True
