"""A push and a removal at the same moment: exactly one wins, and both processes agree which."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from lockclient import Settings, open_store
from lockclient.model.clocks import Deadline, Runtime
from lockclient.model.removal import Removal
from lockclient.stores.outcomes import Done, NotHolder, Outcome
from lockclient.stores.request_types import Push, Remove, Request
from lockclient.stores.service_store import ServiceStore
from tests.support.locks import at_once, has, read, take
from tests.support.memory_store import MemoryStore
from tests.support.processes import Figure, wait_until
from tests.support.records import taker
from tests.support.soak import soaking
from unlocker.unlocker import Unlocker


@pytest.mark.promise(number=2)
@pytest.mark.parametrize("rounds", [60, *soaking(300)])
def test_the_two_transactions_never_both_win(
    rounds: int, settings: Settings, store: ServiceStore, figure: Figure
) -> None:
    """Without the holder's own caution, which gives up before its time is over."""
    won: Counter[str] = Counter()
    other = open_store(settings)
    runtime = Runtime(300, 900)
    for round_number in range(rounds):
        name = f"both-{round_number}"
        holder = taker(name, runtime, uuid="mine")
        _, token = take(store, holder)
        removal = Removal(holder, time.time(), "a test", "auto-unlock", "at the edge")
        push = Push(name, "mine", runtime.stamps(time.time()), token)
        remove = Remove(removal, (token, token))
        outcomes = at_once({"push": (store, push), "removal": (other, remove)})
        seen = read(store, name, "mine")
        if isinstance(outcomes["push"], Done):
            assert isinstance(outcomes["removal"], NotHolder)
            assert seen.holder is not None
            assert seen.removal is None
            won["push"] += 1
        else:
            assert isinstance(outcomes["removal"], Done)
            assert isinstance(outcomes["push"], NotHolder)
            assert outcomes["push"].removal is not None, "the loser learns why"
            assert seen.holder is None
            won["removal"] += 1
    other.close()
    figure(f"{rounds} races of the bare transactions: {dict(won)}")
    assert won["push"]
    assert won["removal"]


class PushedInTime(MemoryStore):
    """A holder pushes a moment before the unlocker's removal arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        if not isinstance(request, Remove):
            return super().ask(request, deadline)
        self.push(request.removal.holder.name)
        self.outcomes.append(super().ask(request, deadline))
        return self.outcomes[-1]


@pytest.mark.promise(number=2)
def test_a_push_before_the_removal_wins() -> None:
    store = PushedInTime()
    store.take("x", held_for=0, alert=0.1, unlock=0.3)
    unlocker = Unlocker(store, max_removals=None)
    unlocker.start()
    wait_until(lambda: store.outcomes, what="the removal")
    assert isinstance(store.outcomes[0], NotHolder)
    assert has(store, "x")
    unlocker.stop()
