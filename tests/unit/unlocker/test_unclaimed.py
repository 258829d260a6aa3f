"""Locks that are free though clients wait: found by their state alone, and never too early."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.model.holder import MAX_VALUE_BYTES
from lockclient.model.ticket import Ticket
from lockclient.overview.table import Table
from lockclient.service.metrics import ComputedCollector
from lockclient.stores.service_protocol import Batch, Change
from lockclient.text.escaping import plain
from tests.support.memory_store import MemoryStore
from tests.support.processes import needed, wait_until
from tests.support.records import subkeys
from unlocker.metrics.series_limit import MAX_LISTED, SeriesLimit
from unlocker.unclaimed import HEADS_INTERVAL_S, NORMAL_HANDOVER_S, UnclaimedLocks

COUNT = "clustermutex_locks_free_with_waiters"
SINCE = "clustermutex_lock_free_with_waiters_timestamp_seconds"
HEAD = "clustermutex_lock_head_info"
UNLISTED = f"{COUNT}_unlisted"
TICKET = Ticket("", "", "web-1", 4711, "main", "totals", 1.8e9)


class Board:
    """A store that somebody writes to, a table that follows it, and what is unclaimed there."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.deaf = False
        self.table = Table(self.store, on_change=lambda e: self.unclaimed.update(e))
        self.unclaimed = UnclaimedLocks(self.table, self.store, SeriesLimit())

    def scan(self, second: float) -> None:
        """Scan when all that was written is in the table, and told to who listens."""
        if not self.deaf:
            revision = self.store.write()  # when it is in, the listener is done with those before
            while self.table.revision < revision:
                time.sleep(0.0001)
        self.unclaimed.scan(second)

    def lose_watch(self) -> None:
        self.deaf = True
        self.store.lose_watches()

    def read_anew(self) -> None:
        """Let the table read everything again, as after a watch that missed something."""
        self.deaf, loads = False, self.table.loads
        self.table.resync()
        wait_until(lambda: self.table.loads > loads, what="the reading")

    def queue(self, name: str, uuid: str = "b", ticket: Ticket = TICKET) -> None:
        self.store.write(("queue", name, uuid, ticket.value().encode()))

    def leave(self, name: str, uuid: str = "b") -> None:
        self.store.write(("queue", name, uuid, None))

    def claim(self, name: str, uuid: str = "b") -> None:
        """Let the head of the line take the lock, which is free."""
        parts = subkeys(uuid=uuid).items()
        self.store.write(
            *(("locks", name, part, value) for part, value in parts), ("queue", name, uuid, None)
        )

    def page(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(ComputedCollector(self.unclaimed.gauges))
        return generate_latest(registry)

    def scrape(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return each metric's samples: labels and value."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in parse(self.page().decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def shown(self) -> dict[str, float]:
        """Return the names that are shown, and for how many seconds they have been free."""
        found = self.scrape()
        [(_, count)] = found[COUNT]
        since, head = found.get(SINCE, []), found.get(HEAD, [])
        assert count == len(since) == len(head)
        assert found[UNLISTED] == [({}, 0)]
        return {labels["name"]: time.time() - at for labels, at in since}


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    made.table.start()
    assert made.table.wait_ready(30)
    yield made
    made.table.stop()


START = 1_000.0


def looks(board: Board, *seconds: float) -> list[str]:
    """Look at these seconds of the monotonic clock; return the names shown after the last."""
    for second in seconds:
        board.scan(START + second)
        if not board.deaf:  # what the table does not follow the service does not ask about
            board.unclaimed.refresh_heads()
    return sorted(board.shown())


def test_a_lock_that_stays_free_with_a_line_is_shown_after_a_while(board: Board) -> None:
    assert board.shown() == {}
    board.queue("a")
    assert looks(board, 0, 1, NORMAL_HANDOVER_S - 0.1) == []
    assert looks(board, NORMAL_HANDOVER_S) == ["a"]
    assert looks(board, 10 * NORMAL_HANDOVER_S) == ["a"]
    board.leave("a")
    assert looks(board, 11 * NORMAL_HANDOVER_S) == []


def test_who_holds_a_lock_may_have_a_line_for_ever(board: Board) -> None:
    board.store.take("a")
    board.queue("a")
    assert looks(board, 0, 1e6) == []
    board.store.release("a")
    assert looks(board, 1e6 + 1, 1e6 + NORMAL_HANDOVER_S) == []
    assert looks(board, 1e6 + NORMAL_HANDOVER_S + 1) == ["a"]
    board.claim("a")
    assert looks(board, 1e6 + NORMAL_HANDOVER_S + 2) == []


def test_taken_and_released_in_one_batch_counts_as_taken(board: Board) -> None:
    board.queue("a")
    assert looks(board, 0, NORMAL_HANDOVER_S) == ["a"]
    first = board.store.model.revision + 1
    board.store.model.revision = second = first + 1
    taken = Change("locks", "a", "uuid", b"u", first, first)
    released = Change("locks", "a", "uuid", None, second, 0)
    (follower,) = board.store.memory.followers
    follower._notify(Batch((taken, released), second))
    assert looks(board, NORMAL_HANDOVER_S + 1) == []
    assert looks(board, 2 * NORMAL_HANDOVER_S + 1) == ["a"]


def test_a_next_head_that_does_not_claim_either_does_not_begin_anew(board: Board) -> None:
    """Each of them may be as slow as its lease: what counts is that nobody gets the lock."""
    board.queue("a", "first")
    board.queue("a", "second", Ticket("", "", "web-2", 8))
    assert looks(board, 0, NORMAL_HANDOVER_S - 1) == []
    board.leave("a", "first")
    assert looks(board, NORMAL_HANDOVER_S + 1) == ["a"]
    [(labels, _)] = board.scrape()[HEAD]
    assert labels == {"name": "a", "hostname": "web-2", "pid": "8", "reason": ""}


def test_the_head_is_who_has_stood_in_line_for_longest(board: Board) -> None:
    """Not who wrote last, and not by the alphabet; who got in line again stands at the end."""
    for uuid in ("z", "m", "a"):
        board.queue("a", uuid, Ticket("", "", uuid))
    board.queue("a", "m", Ticket("", "", "m again"))
    looks(board, 0, NORMAL_HANDOVER_S)

    def head() -> str:
        [(labels, _)] = board.scrape()[HEAD]
        return labels["hostname"]

    assert head() == "z"
    board.leave("a", "z")
    board.queue("a", "z", Ticket("", "", "z"))
    looks(board, NORMAL_HANDOVER_S + 1)
    assert head() == "m again"
    board.read_anew()
    looks(board, NORMAL_HANDOVER_S + 2)
    assert head() == "m again"


def test_a_broken_lock_is_held_and_what_a_lock_left_behind_is_not(board: Board) -> None:
    """It is held if and only if there is a `uuid`, readable or not."""
    board.queue("broken")
    board.store.write(("locks", "broken", "uuid", b""))
    board.queue("left")
    board.store.write(("locks", "left", "reason", b"of nobody"))
    assert looks(board, 0, NORMAL_HANDOVER_S) == ["left"]


def test_since_when_is_told_by_the_wall_clock_and_counted_by_the_other(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.queue("a")
    began = time.monotonic() - 2 * NORMAL_HANDOVER_S
    board.scan(began)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 1e6)
    board.scan(began + NORMAL_HANDOVER_S - 1)
    assert board.shown() == {}
    board.scan(began + 2 * NORMAL_HANDOVER_S)
    board.unclaimed.refresh_heads()
    assert board.shown() == {"a": pytest.approx(2 * NORMAL_HANDOVER_S, abs=1)}


def test_a_reading_of_everything_does_not_begin_anew(board: Board) -> None:
    board.queue("a")
    looks(board, 0, HEADS_INTERVAL_S)
    board.read_anew()
    assert looks(board, NORMAL_HANDOVER_S) == ["a"]
    board.read_anew()
    assert looks(board, NORMAL_HANDOVER_S + 1) == ["a"]


def test_what_happened_unseen_before_a_reading_counts(board: Board) -> None:
    """Free before and after, and somebody had it meanwhile: the head of before is not there."""
    board.queue("a", "first")
    board.queue("a", "second")
    board.queue("gone")
    looks(board, 0, NORMAL_HANDOVER_S)
    board.lose_watch()
    board.claim("a", "first")
    board.store.release("a")
    board.leave("gone")
    board.queue("new")
    assert looks(board, NORMAL_HANDOVER_S + 1) == ["a", "gone"]  # nobody knows better yet
    board.read_anew()
    assert looks(board, NORMAL_HANDOVER_S + 2) == []
    assert looks(board, 2 * NORMAL_HANDOVER_S + 2) == ["a", "new"]


def test_one_that_was_taken_unseen_before_a_reading_is_not_shown(board: Board) -> None:
    board.queue("a", "first")
    board.queue("a", "second")
    looks(board, 0, NORMAL_HANDOVER_S)
    board.lose_watch()
    board.claim("a", "first")
    board.read_anew()
    assert looks(board, NORMAL_HANDOVER_S + 1) == []
    board.store.release("a")
    assert looks(board, NORMAL_HANDOVER_S + 2, 2 * NORMAL_HANDOVER_S) == []


def test_while_nothing_is_known_nothing_is_shown_and_no_time_counts(board: Board) -> None:
    """With etcd away nobody can claim, and what was seen last is old."""
    board.queue("a")
    assert looks(board, 0, NORMAL_HANDOVER_S) == ["a"]
    board.unclaimed.clear()
    assert board.shown() == {}
    assert looks(board, 10 * NORMAL_HANDOVER_S, 11 * NORMAL_HANDOVER_S - 1) == []
    assert looks(board, 11 * NORMAL_HANDOVER_S) == ["a"]


def test_looks_that_take_long_are_made_less_often(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Very many lines must not keep the unlocker from its work."""
    looked: list[float] = []

    def slow() -> list[str]:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        looked.append(now)
        return []

    monkeypatch.setattr(board.table, "unclaimed", slow)
    for now in (0.0, 1.0, 2.0, 4.9, 20.0, 21.0):
        board.unclaimed.scan(START + now)
    assert looked == [0.0, 20.0]
    board.unclaimed.clear()
    board.unclaimed.scan(START + 22.0)
    assert len(looked) == 3


def test_the_longest_are_listed_and_all_are_counted(board: Board) -> None:
    more = MAX_LISTED + 20
    for number in range(more):
        board.queue(f"lock {number:03}")
        board.scan(START + number / 10)
    board.scan(START + 2 * NORMAL_HANDOVER_S)
    board.unclaimed.refresh_heads()
    found = board.scrape()
    assert found[COUNT] == [({}, more)]
    names = sorted(labels["name"] for labels, _ in found[SINCE])
    assert names == [f"lock {number:03}" for number in range(MAX_LISTED)]
    assert len(found[HEAD]) == MAX_LISTED
    assert found[UNLISTED] == [({}, 20)]


def test_what_a_ticket_says_may_be_anything(board: Board) -> None:
    hostile = 'a"b\\c\nd\x00{}🙂' + "x" * 10_000
    board.queue("long", ticket=Ticket("", "", hostile, 7, reason=hostile))
    board.queue("longer", ticket=Ticket("", "", "x" * MAX_VALUE_BYTES))
    board.store.write(("queue", "none", "b", b"\xff[1"))
    assert looks(board, 0, NORMAL_HANDOVER_S) == ["long", "longer", "none"]
    heads = {labels.pop("name"): labels for labels, _ in board.scrape()[HEAD]}
    cut = plain(hostile)[:99] + "…"
    assert heads["long"] == {"hostname": cut, "pid": "7", "reason": cut}
    assert heads["none"] == {"hostname": "", "pid": "", "reason": ""}
    assert heads["longer"] == heads["none"]
    assert board.table.line("longer").waiting == 1


def test_promtool_has_nothing_to_say(board: Board) -> None:
    board.queue("a")
    looks(board, 0, NORMAL_HANDOVER_S)
    words = [needed("promtool"), "check", "metrics"]
    done = subprocess.run(words, input=board.page(), capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
