"""One poll of a lock serves all waiters of a process, which take it in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from lockclient.errors import StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.stores.common.lock_poll import LockPolls
from lockclient.stores.mutex_store import Subscription, WatchEvent, WatchTarget
from lockclient.stores.outcomes import Outcome, Position, Refused, Taken
from lockclient.stores.request_types import GetPosition, Request, Take
from lockclient.threads.pool import WorkerPool
from tests.support.processes import wait_until

FREE = WatchEvent(0)


class Queue:
    """A, B and C wait, in that order; `told` are those that were notified that it is free.

    Attributes:
        holder: the answer to each poll; an exception is raised.
        polls: the requests.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self.told: list[str] = []
        self.holder: str | Exception | None = "X"
        self.polls: list[Request] = []
        self.hear: Callable[[str, float], None] = lambda _news, _pause: None
        self.lock_polls = LockPolls(self._ask, pool, pool)
        self.lock_polls.listen = self._listen
        self.waiting = {uuid: self.watch(uuid, partial(self._tell, uuid)) for uuid in "ABC"}

    def _ask(self, request: Request, _deadline: Deadline) -> Outcome:
        self.polls.append(request)
        if isinstance(self.holder, Exception):
            raise self.holder
        return Position(False, None, self.holder, 7)

    def _listen(self, _name: str, hear: Callable[[str, float], None]) -> Subscription:
        self.hear = hear
        return self

    def close(self) -> None:
        """End the subscription to hints."""

    def _tell(self, uuid: str, event: WatchEvent) -> None:
        assert event == FREE
        self.told.append(uuid)

    def watch(self, uuid: str, notify: Callable[[WatchEvent], None]) -> Subscription:
        return self.lock_polls.watch(WatchTarget("x", waiter=uuid), notify)

    def hint(self) -> None:
        self.hear("message", 0.0)

    def take(
        self, uuid: str, outcome: Outcome | None = None, *, meanwhile: Callable[[], object] = int
    ) -> bool:
        """Have an acquisition send its take, if it may; return whether it did."""
        sent = []

        def send() -> Outcome:
            sent.append(uuid)
            meanwhile()
            return outcome or Refused(None, 0)

        if (poll := self.lock_polls.polls.get("x")) is None:
            send()
        else:
            poll.take(Take(Holder("x", uuid=uuid)), send)
        return bool(sent)


@pytest.fixture
def queue() -> Iterator[Queue]:
    pool = WorkerPool("look", 2)
    queue = Queue(pool)
    yield queue
    for waiting in queue.waiting.values():
        waiting.close()
    pool.close()


def test_one_poll_serves_all_waiters(queue: Queue) -> None:
    seen: list[WatchEvent] = []
    watch = queue.lock_polls.watch(WatchTarget("x"), seen.append)
    wait_until(lambda: WatchEvent(7, "X") in seen, what="the holder's poll")
    assert queue.polls[-1] == GetPosition("x", "", 0)
    queue.holder = None
    wait_until(lambda: queue.told and seen[-1] == WatchEvent(7, None), what="the loss")
    wait_until(lambda: queue.take(queue.told[-1], Taken(1)), what="the waiter of the last event")
    polls, notified = len(queue.polls), len(seen)
    watch.close()
    queue.holder = "A"
    wait_until(lambda: len(queue.polls) > polls + 1, what="the next poll")
    assert len(seen) == notified
    assert any(queue.polls[-1] == GetPosition("x", uuid, 0) for uuid in "ABC")


def test_the_first_waiter_takes_the_lock(queue: Queue) -> None:
    def release() -> None:
        queue.hint()
        assert queue.told == []

    assert queue.take("A", Refused("X", 0), meanwhile=release)
    for uuid in "ABC":
        queue.hint()
        assert queue.take(uuid, Taken(1))
        queue.waiting[uuid].close()
    assert queue.told == ["A", "B", "C"]
    queue.hint()
    assert queue.take("D")
    assert queue.take("E"), "nobody waits: everybody asks"


def test_one_refusal_serves_all_waiters(queue: Queue) -> None:
    def are_refused() -> bool:
        assert queue.take("A", Refused("X", 0))
        return not any(queue.take(uuid) for uuid in ("B", "C", "new"))

    wait_until(are_refused, what="three takes within a second of the first one's")
    wait_until(lambda: queue.take("C", Refused("X", 0)), what="the end of the moment")


def test_polling_goes_on_until_an_answer_names_a_holder(queue: Queue) -> None:
    queue.holder = None
    queue.hint()
    queue.take("A")  # the votes were split
    wait_until(lambda: len(queue.told) > 1, what="the second try")
    queue.holder = "X"
    polls = len(queue.polls)
    wait_until(lambda: len(queue.polls) > polls + 1, what="an answer that names a holder")
    told = len(queue.told)
    wait_until(lambda: len(queue.polls) > polls + 2, what="another poll")
    assert len(queue.told) == told


@pytest.mark.parametrize("leaves", [False, True])
def test_a_sleeping_or_leaving_waiter_passes_its_turn_on(queue: Queue, leaves: bool) -> None:
    queue.holder = None
    queue.hint()
    if leaves:
        queue.waiting["A"].close()
    wait_until(lambda: len(queue.told) > 4, what="five turns")
    assert queue.told[:5] == ["A", "B", "C", *("BC" if leaves else "AB")]


def test_waiters_ask_for_themselves_when_a_poll_is_refused() -> None:
    pool = WorkerPool("look", 2)
    queue, seen = Queue(pool), list[WatchEvent]()
    for waiting in queue.waiting.values():
        waiting.close()
    waiting = queue.watch("D", seen.append)
    queue.holder = StoreClosed("closed")
    wait_until(lambda: WatchEvent(0, gap=True) in seen, what="the gap")
    waiting.close()
    pool.close()
