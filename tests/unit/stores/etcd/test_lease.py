"""The lease that tickets are bound to: granted when needed, renewed, and missed when it is lost."""

from __future__ import annotations

from collections.abc import Callable
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


STORIES: dict[str, list[str | float]] = {
    # In turn: seconds that pass, what the lease is asked and answers, and all that was sent.
    "it is granted once, and used while half of its time is left": [
        *("usable False", "get 1", 5, "usable True", "get 1", "sent grant"),
    ],
    "keeping it makes it last, from before the request on": [
        *("get 1", 9, "usable False", "keep True", "usable True", "get 1", "sent grant renew"),
    ],
    "one that is gone is missed once": ["get 1", "lose", "keep False", "get 2", "keep True"],
    "a request that finds it gone says so, by its number": [
        # An answer about an old one must not take away the new one.
        *("get 1", "forget 1", "get 2", "forget 1", "get 2", "keep False", "keep True"),
    ],
    "there is nothing to keep at first": ["keep False", "sent "],
    "one with little time left is renewed and not replaced": [
        # Else the tickets that are bound to it would end untold.
        *("get 1", 6, "get 1", "sent grant renew", "lose", 6, "get 2", "keep False", "keep True"),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_whoever_keeps_it_is_told(server: Server, story: list[str | float]) -> None:
    lease = line(server)
    ways: dict[str, Callable[[], object]] = {
        "usable": lease.usable,
        "get": lambda: lease.get(NEVER),
        "keep": lambda: lease.keep(NEVER),
        "sent": lambda: " ".join(server.asked),
    }
    for step in story:
        if not isinstance(step, str):
            server.now += step
        elif step == "lose":
            server.known.clear()
        elif step == "forget 1":
            lease.forget(1)
        else:
            word, _, answer = step.partition(" ")
            assert str(ways[word]()) == answer, step


def test_one_that_grew_old_is_replaced(server: Server) -> None:
    """The records of an hour share one; renewed, it would make them live on and on."""
    lease = Lease(cast(Channels, server), 10, 5)
    lease.get(NEVER)
    server.now += 5.1
    assert lease.get(NEVER) == 2
    assert server.asked == ["grant", "grant"]


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
