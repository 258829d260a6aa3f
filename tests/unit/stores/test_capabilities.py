"""What a store can't do: who asks for it is told, and who waits without a line looks for itself."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, LockTimeout, StoreError
from lockclient.acquisition.state_machine import Acquisition
from lockclient.acquisition.steps import Acquired, Pause, Step
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.stores.outcomes import Position, Refused, Taken
from lockclient.stores.protocol import Capabilities
from lockclient.stores.requests import GetPosition, Take, Unlock, Withdraw
from lockclient.threads.backoff import Backoff
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

PATIENCE = 60.0


class Plain(MemoryStore):
    """A store that has locks, and nothing besides."""

    can = Capabilities("A plain store", queue=False, watch=False, fencing=False, guard=False)


@pytest.fixture
def store() -> Plain:
    return Plain()


@pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
@pytest.mark.parametrize(
    ("what", "why"),
    [("fencing_token", "no number that only grows"), ("guard", "no transactions")],
)
def test_who_asks_for_what_is_not_there_is_told_before_anything_is_taken(
    store: Plain, kind: type[ClusterMutex], what: str, why: str
) -> None:
    with pytest.raises(StoreError, match=f"A plain store has {why}"):
        getattr(kind("x", store=store), what)
    assert store.asked == []


def test_nor_can_it_be_asked_who_waits(store: Plain) -> None:
    with pytest.raises(StoreError, match="A plain store keeps no line"):
        ClusterMutex("x", store=store).waiters()
    with pytest.raises(StoreError, match="keeps no line"):
        asyncio.run(AsyncClusterMutex("x", store=store).waiters())
    assert store.asked == []


def test_who_is_too_late_is_not_told_of_a_line(store: Plain) -> None:
    with ClusterMutex("x", store=store), pytest.raises(LockTimeout) as caught:
        ClusterMutex("x", store=store, timeout=0.1).__enter__()
    assert "in line" not in str(caught.value)
    assert "held by" in str(caught.value)


def test_who_waits_without_a_line_gets_the_lock_all_the_same(store: Plain) -> None:
    """By looking, and leaves no ticket."""
    held, waiter = ClusterMutex("x", store=store), ClusterMutex("x", store=store)
    held.acquire()
    thread = threading.Thread(target=waiter.acquire, daemon=True)
    thread.start()
    wait_until(
        lambda: any(isinstance(request, GetPosition) for request in store.asked), what="a look"
    )
    held.release()
    thread.join(PATIENCE)
    assert waiter.locked()
    waiter.release()
    assert {type(request) for request in store.asked} == {Take, GetPosition, Unlock}


def test_who_gives_up_while_it_pauses_is_gone_at_once(store: Plain) -> None:
    """A cancelled task leaves nothing, and its lock is not taken later."""

    async def main() -> None:
        task = asyncio.create_task(AsyncClusterMutex("x", store=store).acquire())
        while not any(isinstance(request, GetPosition) for request in store.asked):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ClusterMutex("x", store=store):
        asyncio.run(main())
    assert store.model.lock("x").holder is None
    assert not [request for request in store.asked if isinstance(request, Withdraw)]


class TestEngine:
    now = Now(1000.0, 2000.0)

    def began(
        self, *outcomes: Refused | Position | Taken, **facts: str
    ) -> tuple[Step, Acquisition]:
        """Return the step after these outcomes, of one who waits."""
        holder = replace(Holder("x", "me", "host", 1), **facts)  # type: ignore[arg-type]
        acquisition = Acquisition(holder, Runtime(300, 900), queue=True, line=False)
        step: Step = acquisition.begin(self.now)
        for outcome in outcomes:
            if isinstance(step, Pause):
                step = acquisition.woken(None, self.now)
            step = acquisition.answered(outcome, self.now)
        return step, acquisition

    def test_it_looks_and_takes_what_is_free(self) -> None:
        held, free = Position(False, None, "other", 7), Position(False, None, None, 8)
        refused = Refused("other", 6)
        assert isinstance(self.began(refused)[0], Pause)
        assert isinstance(self.began(refused, held, held)[0], Pause)
        assert isinstance(self.began(refused, free)[0], Take)
        assert isinstance(self.began(refused, free, refused)[0], Pause)
        assert isinstance(self.began(refused, free, Taken(9))[0], Acquired)

    def test_a_look_that_finds_its_own_uuid_leads_to_the_take_that_tells(self) -> None:
        mine = Position(False, None, "me", 7)
        assert isinstance(self.began(Refused("other", 6), mine)[0], Take)

    def test_it_leaves_nothing_behind_that_it_does_not_have(self) -> None:
        step, acquisition = self.began(Refused("other", 6))
        assert isinstance(step, Pause)
        assert acquisition.abandon() is None

    def test_the_first_look_is_soon(self) -> None:
        step, _ = self.began(Refused("other", 6))
        assert isinstance(step, Pause)
        assert step.seconds <= 0.2


def test_pauses_grow_and_are_never_in_step() -> None:
    """The first is short; then each is between the least and three times the last, to the most."""
    pauses = (Backoff(0.2, 1.0, 30.0), Backoff(0.2, 1.0, 30.0))
    runs = [[pause.next() for _ in range(40)] for pause in pauses]
    for first, *others in runs:
        assert 0 <= first <= 0.2
        assert all(1.0 <= seconds <= 30.0 for seconds in others)
        assert all(then <= 3 * now for now, then in zip([1.0, *others], others, strict=False))
    assert runs[0] != runs[1]
    assert max(map(max, runs)) > 10
