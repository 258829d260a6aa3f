"""A store that is looked at tells what a watch would tell: what the contract can't see of that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Queue

import pytest

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.polling import (
    Following,
    Key,
    KnownItem,
    Polling,
    StoreClock,
    StoredItem,
)
from lockclient.stores.protocol import Subscription
from lockclient.stores.service_protocol import Batch, Kind
from tests.support.processes import wait_until

WEEK = Deadline.after(7 * 86400)
START = 1_800_000_000.0


class Shop:
    """A source that has what the test says; its clock stands unless the test moves it."""

    def __init__(self) -> None:
        self.items: dict[tuple[Kind, str, str], StoredItem] = {}
        self.wall = START
        self.versions = 1 << 60
        self.told = 0
        self.reads: list[str] = []
        self.error: Exception | None = None
        self.takes = 0.0

    def put(self, kind: Kind, name: str, part: str = "", **values: str) -> None:
        """Write something; of a lock its subkeys."""
        self.versions -= 7  # like a bucket's, they need not grow
        said = {key: (text.encode(), self.versions) for key, text in values.items()}
        said = said or {part: (b"{}", self.versions)}
        item = StoredItem(kind, name, part, self.versions, self.wall, said)
        self.items[item.key] = item
        self.told += kind == "removed"

    def live(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        del deadline, known
        self.reads.append("live")
        time.sleep(self.takes)
        if self.error is not None:
            raise self.error
        yield [item for item in self.items.values() if item.kind != "removed"]

    def records(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        del deadline, known
        self.reads.append("records")
        yield [item for item in self.items.values() if item.kind == "removed"]

    def record_version(self) -> int:
        return self.told

    def now(self) -> float:
        return self.wall


class Told:
    """What a follower hears, batch by batch."""

    def __init__(self, polling: Polling, kinds: tuple[Kind, ...] = ("locks", "unlockers")) -> None:
        self.batches: Queue[Batch] = Queue()
        self.found = list(polling.load(kinds, WEEK))
        self.following: Following = polling.follow(self.revision + 1, self.batches.put)
        self._polling = polling

    @property
    def revision(self) -> int:
        return self.found[-1].revision

    def next(self) -> Batch:
        """Have it looked, and return what is told."""
        self._polling.look_soon()
        return self.batches.get(timeout=30)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def polling(shop: Shop) -> Iterator[Polling]:
    made = Polling(shop, "test")
    made.every = 3600.0  # it is looked when the test says so
    yield made
    made.close()


def said(batch: Batch) -> dict[tuple[str, str], bytes | None]:
    return {(change.name, change.part): change.value for change in batch.changes}


def test_revisions_are_the_store_s_time(shop: Shop, polling: Polling) -> None:
    """Those of two processes can be compared, and JSON has them whole."""
    other = Polling(shop, "other")
    first = Told(polling).revision
    shop.wall += 10
    second = next(iter(other.load(("locks",), WEEK))).revision
    shop.wall += 10
    third = Told(polling).revision
    assert first < second < third < 1 << 53


class TestRecords:
    def test_they_are_read_when_there_may_be_new_ones(self, shop: Shop, polling: Polling) -> None:
        """And not with each look: there may be ten thousand."""
        shop.put("removed", "a", "1")
        told = Told(polling, ("locks", "removed"))
        told.next()
        assert shop.reads.count("records") == 1
        shop.put("removed", "a", "2")
        (change,) = told.next().changes
        assert (change.part, change.created) == ("2", change.revision)
        told.next()
        assert shop.reads.count("records") == 2

    def test_who_does_not_ask_for_them_does_not_pay(self, shop: Shop, polling: Polling) -> None:
        told = Told(polling)
        shop.put("removed", "a", "2")
        assert told.next().changes == ()
        assert "records" not in shop.reads

    def test_another_reader_takes_nothing_away(self, shop: Shop, polling: Polling) -> None:
        """Whoever looks for what is over reads them, too."""
        told = Told(polling, ("locks", "removed"))
        shop.put("removed", "a", "1")
        assert [change for batch in polling.load(("removed",), WEEK) for change in batch.changes]
        assert told.next().changes

    def test_found_ones_are_in_the_order_of_their_writing(
        self, shop: Shop, polling: Polling
    ) -> None:
        """By the store's time: who reads for the first time knows no other one."""
        for number in (3, 1, 2):
            shop.wall = START + number
            shop.put("removed", "a", f"{number}")
        shop.wall = START + 60
        changes = [change for batch in polling.load(("removed",), WEEK) for change in batch.changes]
        ordered = sorted(changes, key=lambda change: change.created)
        assert [change.part for change in ordered] == ["1", "2", "3"]

    def test_what_was_told_is_not_new_when_all_is_read_again(
        self, shop: Shop, polling: Polling
    ) -> None:
        """Even if it was written while the look went on that found it, so after its revision."""
        told = Told(polling, ("locks", "removed"))
        shop.wall += 3600
        shop.put("removed", "a", "1")
        shop.wall -= 3600
        batch = told.next()
        wait_until(lambda: polling.seen.revision == batch.revision)
        told.following.close()
        again = [batch for batch in polling.load(("locks", "removed"), WEEK) if batch.changes]
        assert again[0].changes[0].created <= batch.revision


class TestTrouble:
    def test_without_an_answer_nothing_is_told(self, shop: Shop, polling: Polling) -> None:
        """The picture grows old, which it says; and afterwards it goes on."""
        told = Told(polling)
        shop.error = StoreUnavailable("away")
        polling.look_soon()
        wait_until(lambda: not polling.fine)
        shop.error = None
        shop.put("locks", "a", uuid="1")
        assert said(told.next()) == {("a", "uuid"): b"1"}
        assert polling.fine

    def test_a_refusal_is_told_and_another_one_goes_on(self, shop: Shop, polling: Polling) -> None:
        """From what was known: a table that is complete is not read again."""
        told = Told(polling)
        shop.error = StoreError("no right")
        batch = told.next()
        assert (batch.gap, batch.refused) == (True, "no right")
        shop.error = None
        shop.put("locks", "a", uuid="1")
        news: Queue[Batch] = Queue()
        polling.follow(told.revision + 1, news.put)
        polling.look_soon()
        assert said(news.get(timeout=30)) == {("a", "uuid"): b"1"}

    def test_what_nobody_thought_of_has_all_read_again(self, shop: Shop, polling: Polling) -> None:
        told = Told(polling)
        shop.error = RuntimeError("oh")
        batch = told.next()
        assert (batch.gap, batch.refused) == (True, "")

    def test_nobody_goes_on_from_where_nobody_was(self, polling: Polling) -> None:
        news: Queue[Batch] = Queue()
        polling.follow(7, news.put)
        assert news.get(timeout=30).gap


class TestClock:
    def test_it_is_never_ahead_of_the_store_s(self) -> None:
        """An answer tells whole seconds, a while ago: of the last ones the latest tells most."""
        real = monotonic()
        heard = [100.9, 101.2, 101.1]
        clock = StoreClock(lambda: monotonic() - real + heard[0])
        ahead = []
        while heard:
            ahead.append(clock.ahead() + real)
            heard.pop(0)
        assert [round(seconds, 1) for seconds in ahead] == [100.9, 101.2, 101.2]

    def test_before_the_first_answer_there_is_no_time(self) -> None:
        assert StoreClock(lambda: 0.0).ahead() + monotonic() == pytest.approx(0.0, abs=1.0)


class Ears:
    """Who listens for hints; one that is closed hears no more."""

    def __init__(self) -> None:
        self.open: list[Callable[[], None]] = []
        self.opened = 0

    def listen(self, notify: Callable[[], None]) -> Subscription:
        ears = self

        class Ear:
            def close(self) -> None:
                ears.open.remove(notify)

        self.opened += 1
        self.open.append(notify)
        return Ear()


def listening(shop: Shop, ears: Ears) -> tuple[Polling, Told]:
    polling = Polling(shop, "test", ears.listen)
    polling.every = 3600.0
    return polling, Told(polling)


def test_hints_quicken_looks(shop: Shop) -> None:
    """One look for however many of them, a moment later; until then nobody listens."""
    ears = Ears()
    polling, told = listening(shop, ears)
    try:
        for number in range(3):
            (ear,) = wait_until(lambda: ears.open)
            shop.put("locks", f"lock-{number}", uuid="1")
            for _ in range(100):
                ear()
            while not (batch := told.batches.get(timeout=60)).changes:
                pass  # the look of a hint that came late
            assert said(batch) == {(f"lock-{number}", "uuid"): b"1"}
        assert shop.reads.count("live") <= 1 + 2 * 3
        assert ears.opened <= 1 + 2 * 3
    finally:
        polling.close()
    wait_until(lambda: not ears.open, what="the end of the follower's ear")


def test_looks_that_take_long_are_not_quickened_much(shop: Shop) -> None:
    """Hints without end make it look for a quarter of the time, not more."""
    ears, ended = Ears(), threading.Event()
    polling, told = listening(shop, ears)
    shop.takes = 0.2

    def hint() -> None:
        while not ended.wait(0.001):
            for ear in [*ears.open]:
                ear()

    thread = threading.Thread(target=hint)
    thread.start()
    try:
        told.batches.get(timeout=60)
        began = monotonic()
        for _ in range(3):
            told.batches.get(timeout=60)
        assert monotonic() - began >= 3 * 4 * shop.takes - 0.1
    finally:
        ended.set()
        thread.join()
        polling.close()
