"""Thread interleavings in the Valkey store that no test with servers can time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, Stamps
from lockclient.stores.outcomes import Done
from lockclient.stores.request_types import Delivery, Push
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import DELETE, Command, Reply
from lockclient.stores.valkey.voting.push import push_plan
from lockclient.stores.valkey.voting.retry_queue import RetryQueue
from lockclient.stores.valkey.voting.rounds import OwnLock, Rounds
from lockclient.stores.valkey.voting.take import Replaceable, Taking
from lockclient.stores.valkey.wire.server import Sent
from tests.contract.asking import holder

REFUSED = VoteFailure("connection refused")


class Servers(SimpleNamespace):
    """Servers, whose answers a test gives."""

    def __init__(self, answer: Callable[[Any], Any], number: int = 1) -> None:
        super().__init__(closed=False, all=range(number), endpoints=["one"] * number, round_s=0.0)
        self.location, self.keys = ValkeyLocation(("one:1",)), KeyNames("test")
        self.answer = answer

    def ask(self, commands: Any, *_rest: Any, **_more: Any) -> Any:
        return self.answer(commands)

    def reachable(self, _i: int) -> bool:
        return True


def result(**what: Any) -> Any:
    return SimpleNamespace(**({"sent": {}, "answers": {}, "failures": {}} | what))


def test_an_equal_command_during_the_first_is_sent_too() -> None:
    command, sent = Command(DELETE, ("key",), ()), list[Any]()

    def answer(commands: Any) -> Any:
        sent.append(commands)
        if len(sent) == 1:
            queue.add((0,), command)
        return result()

    queue = RetryQueue(Servers(answer))  # type: ignore[arg-type]
    with closing(queue):
        queue.add((0,), command)
        queue.drain(5)
    assert sent == [{0: command}] * 2


def test_a_withdrawal_between_the_steps_of_a_take_leaves_the_clean_up_to_the_take() -> None:
    delivery, queued = Delivery(), list[Any]()

    class Withdrawn(dict[int, Sent]):
        def items(self) -> Any:
            delivery.memory.sent = None  # as another thread does after its own majority
            return super().items()

    def answer(commands: Any) -> Any:
        request = Sent(commands.get(0))
        if not delivery.is_given_up:  # the take
            delivery.is_given_up = True
            return result(sent=Withdrawn({0: request}), failures={0: REFUSED})
        return result()

    servers = Servers(answer)
    retry_queue = SimpleNamespace(add_when_answered=lambda *what: queued.append(what))
    taking = Taking(Rounds(servers, retry_queue), holder("a"), Replaceable("", ""), delivery)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        taking.run(Deadline.after(5))
    assert [(i, len(sent)) for i, sent, *_ in queued] == [(0, 1)]
    assert delivery.memory.sent is None


def test_a_release_while_votes_are_restored_withdraws_them() -> None:
    delivery, queued = Delivery(), list[Any]()
    delivery.memory = OwnLock()
    delivery.memory.sent = {}

    def answer(commands: Any) -> Any:
        if set(commands) == {0, 1}:  # reads the confirmed fields
            delivery.memory.sent = None  # as a release in another thread does
            fields = [b"uuid", b"a", b"push", str(number).encode()]
            return result(answers={0: Reply("read", [fields])})
        return result(sent={2: Sent(commands[2])})  # the vote to restore

    retry_queue = SimpleNamespace(add=lambda servers, drop: queued.append((set(servers), drop)))
    rounds = Rounds(Servers(answer, 3), retry_queue)  # type: ignore[arg-type]
    plan = push_plan(rounds, Push("x", "a", Stamps(1.0, None), 0, delivery=delivery))
    number = delivery.memory.unconfirmed_push
    pushed = Reply("pushed", [str(number).encode()])
    free = Reply("not_holder", [b"", b"", 1000])
    assert isinstance(plan.read({0: pushed, 1: pushed, 2: free}, False), Done)
    assert queued == [({2}, rounds.drop("x", "a", "all", tombstone=True))]
