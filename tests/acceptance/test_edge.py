"""`alive()` against the unlocker at the very edge: one of the two wins, and both agree which."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from lockclient import ClusterMutex, LockLost, Settings, open_store
from lockclient.model.clocks import Runtime
from lockclient.model.removal import Removal
from lockclient.stores.outcomes import Done, NotHolder
from lockclient.stores.requests import Push, Remove
from lockclient.stores.service_protocol import ServiceStore
from tests.support.locks import at_once, read, take
from tests.support.processes import Figure, wait_until
from tests.support.records import taker
from tests.support.soak import soaking
from unlocker import unlocker as unlocker_module

THREADS = 8
AUTO_UNLOCK = 0.3


@pytest.fixture
def _eager_unlocker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An unlocker that looks every 5 ms, so that its moment is as close to the edge as can be."""
    monkeypatch.setattr(unlocker_module, "SWEEP_INTERVAL_S", 0.005)
    unlocker = unlocker_module.Unlocker(open_store(settings), max_removals=None)
    unlocker.start()
    wait_until(lambda: unlocker.is_ready() is None, what="the unlocker to be ready")
    yield
    unlocker.stop()


def _race(store: ServiceStore, name: str, chance: random.Random) -> str:
    """Push at the edge once; return who won."""
    mutex = ClusterMutex(
        name, expected_runtime=0.1, auto_unlock_after=AUTO_UNLOCK, store=store, timeout=60
    )
    assert mutex.acquire()
    taken_at, uuid = time.monotonic(), mutex.uuid
    # Now and then earlier: on a slow machine a push takes longer than the edge is wide.
    before = chance.choice((0.006, 0.006, 0.15))
    time.sleep(max(0, taken_at + AUTO_UNLOCK + chance.uniform(-before, 0.002) - time.monotonic()))
    try:
        mutex.alive(force=True)
    except LockLost as lost:
        removed = wait_until(lambda: read(store, name, uuid).removal, what="the removal")
        assert removed.how == "auto-unlock"
        with pytest.raises(LockLost):
            mutex.release()
        return "removed first" if lost.removal else "given up in time"
    # Well before the pushed stamps run out again.
    seen = read(store, name, uuid)
    if time.monotonic() - taken_at < 1.5 * AUTO_UNLOCK:
        assert seen.removal is None
        assert seen.holder is not None
        assert seen.holder.uuid == uuid
    try:
        mutex.release()
    except LockLost:  # a slow machine: its time ran out again between these lines
        assert time.monotonic() - taken_at > 1.5 * AUTO_UNLOCK
    return "pushed first"


@pytest.mark.promise(number=2)
@pytest.mark.usefixtures("_eager_unlocker")
@pytest.mark.parametrize("rounds", [10, *soaking(40)])
def test_either_the_push_wins_or_the_removal(
    rounds: int, store: ServiceStore, figure: Figure
) -> None:
    """Pushed: the lock stays. `LockLost`: the lock goes. Never both, never neither."""
    won: Counter[str] = Counter()
    errors: list[BaseException] = []

    def run(number: int) -> None:
        chance = random.Random(number)
        try:
            for _ in range(rounds):
                won[_race(store, f"edge-{number}", chance)] += 1
        except BaseException as error:  # noqa: BLE001 - it is raised in the main thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figure(f"{sum(won.values())} races at the edge: {dict(won)}")
    if errors:
        raise errors[0]
    assert sum(won.values()) == THREADS * rounds
    assert won["pushed first"]
    assert won["given up in time"] + won["removed first"]


@pytest.mark.promise(number=2)
@pytest.mark.parametrize("rounds", [60, *soaking(300)])
def test_the_two_transactions_never_both_win(
    rounds: int, settings: Settings, store: ServiceStore, figure: Figure
) -> None:
    """The same without the holder's own caution: push and removal sent at the same moment."""
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
