"""The waiters of one process ask in turn: one at a time, in the order of their arrival."""

from __future__ import annotations

from functools import partial

import pytest

from lockclient.stores.protocol import WatchEvent
from lockclient.stores.valkey.wire.turns import Waiter, Waiters
from tests.support.fake_clock import FakeClock


class Queue:
    """A, B and C wait, in that order; who was told of releases is noted."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[str] = []
        self.waiters = Waiters(self.clock)
        for uuid in "ABC":
            waiter = Waiter("released", partial(self._tell, uuid), uuid, self.waiters.remove)
            self.waiters.queue.append(waiter)

    def _tell(self, uuid: str, _event: WatchEvent) -> None:
        self.told.append(uuid)

    def hint(self) -> None:
        self.waiters.hints += 1
        self.again()

    def again(self, later: float = 0.0) -> float | None:
        self.clock.now += later
        return self.waiters.tell_first(self.waiters.hints)

    def ask(self, uuid: str, holder: str | None = None) -> bool:
        """Ask once, and be told that somebody has it, or (the uuid itself) that it is had."""
        if not self.waiters.may_ask(uuid):
            return False
        heard = self.waiters.asking(uuid)
        self.waiters.asked(uuid, heard, taken=holder == uuid, holder=holder)
        return True


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_who_has_it_makes_room_for_the_next(queue: Queue) -> None:
    for uuid in "ABC":
        queue.hint()
        assert queue.ask(uuid, uuid)
    assert queue.told == ["A", "B", "C"]
    assert queue.waiters.everybody() == []
    assert queue.again() is None
    assert queue.ask("D")
    assert queue.ask("E"), "nobody waits: everybody asks"


def test_what_the_first_alone_was_told_answers_the_others_for_a_moment(queue: Queue) -> None:
    """So that a hint that was lost, or a first one that sleeps, costs a moment alone."""
    assert queue.ask("A", "X")
    assert not any(queue.ask(uuid) for uuid in ("B", "C", "new"))
    assert queue.waiters.holder == "X"
    queue.clock.now += 10.0
    assert queue.ask("C", "X")
    assert not queue.ask("B")


def test_the_first_is_told_again_until_it_is_known_who_has_the_lock(queue: Queue) -> None:
    queue.hint()
    assert queue.ask("A")  # the votes were split
    assert queue.again(1.0) is not None
    assert queue.ask("A", "X")
    assert queue.again() is None
    assert queue.told == ["A", "A"]


def test_who_sleeps_goes_to_the_end(queue: Queue) -> None:
    queue.hint()
    queue.again(1.0)
    assert queue.told == ["A", "B"]
    assert [waiter.uuid for waiter in queue.waiters.queue] == ["B", "C", "A"]


def test_who_was_told_and_waits_no_more_passes_it_on(queue: Queue) -> None:
    queue.hint()
    queue.waiters.queue[0].close()
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
