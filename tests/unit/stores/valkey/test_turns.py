"""The waiters of one process ask in turn: one at a time, in the order of their arrival."""

from __future__ import annotations

from functools import partial

import pytest

from lockclient.stores.protocol import WatchEvent
from lockclient.stores.valkey.wire import turns
from lockclient.stores.valkey.wire.turns import Waiter, Waiters
from tests.support.fake_clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(turns, "monotonic", clock)
    return clock


class Queue:
    """A, B and C wait, in that order; who was told of releases is noted."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.waiters = Waiters()
        self.all = {
            uuid: Waiter("released", partial(self._tell, uuid), uuid, self.waiters.remove)
            for uuid in "ABC"
        }
        self.waiters.queue.extend(self.all.values())

    def _tell(self, uuid: str, _event: WatchEvent) -> None:
        self.told.append(uuid)

    def hint(self) -> None:
        self.waiters.hints += 1
        self.again()

    def again(self) -> float | None:
        return self.waiters.tell_first(self.waiters.hints)

    def ask(self, uuid: str, holder: str | None = None) -> bool:
        """Ask once, and be told that somebody has it, or (the uuid itself) that it is had."""
        if not self.waiters.may_ask(uuid):
            return False
        heard = self.waiters.asking(uuid)
        self.waiters.asked(uuid, heard, taken=holder == uuid, holder=holder)
        return True


@pytest.fixture
def queue(clock: FakeClock) -> Queue:
    return Queue()


def test_the_first_alone_asks_and_the_others_are_told_what_it_was_told(queue: Queue) -> None:
    assert queue.ask("A", "X")
    assert not any(queue.ask(uuid) for uuid in ("B", "C", "new"))
    assert queue.waiters.holder == "X"


def test_who_has_it_makes_room_for_the_next(queue: Queue) -> None:
    for uuid in "ABC":
        queue.hint()
        assert queue.ask(uuid, uuid)
    assert queue.told == ["A", "B", "C"]
    assert queue.waiters.everybody() == []


def test_what_one_was_told_grows_old(queue: Queue, clock: FakeClock) -> None:
    """So that a hint that was lost, or a first one that sleeps, costs a moment alone."""
    assert queue.ask("A", "X")
    clock.now += 10.0
    assert queue.ask("C", "X")
    assert not queue.ask("B")


def test_the_first_is_told_again_until_it_is_known_who_has_the_lock(
    queue: Queue, clock: FakeClock
) -> None:
    queue.hint()
    assert queue.ask("A")  # the votes were split
    clock.now += 1.0
    assert queue.again() is not None
    assert queue.ask("A", "X")
    assert queue.again() is None
    assert queue.told == ["A", "A"]


def test_who_sleeps_goes_to_the_end(queue: Queue, clock: FakeClock) -> None:
    queue.hint()
    clock.now += 1.0
    queue.again()
    assert queue.told == ["A", "B"]
    assert [waiter.uuid for waiter in queue.waiters.queue] == ["B", "C", "A"]


def test_who_was_told_and_waits_no_more_passes_it_on(queue: Queue) -> None:
    queue.hint()
    queue.waiters.remove(queue.all["A"])
    assert queue.told == ["A", "B"]


def test_what_is_released_while_one_asks_is_told_as_soon_as_it_has_its_answer(
    queue: Queue,
) -> None:
    """That answer may be of before."""
    heard = queue.waiters.asking("A")
    queue.hint()
    assert queue.told == []
    queue.waiters.asked("A", heard, taken=False, holder="X")
    assert queue.told == ["A"]


def test_without_anybody_who_waits_everybody_asks() -> None:
    waiters = Waiters()
    assert waiters.may_ask("A")
    assert waiters.may_ask("B")
    assert waiters.tell_first(0) is None
