"""Locks that are free though clients wait: found by their state alone, and never too early."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_VALUE_BYTES
from lockclient.model.ticket import Ticket
from lockclient.overview.table import Table
from lockclient.service.metrics import ComputedCollector
from lockclient.stores.protocol import Subscription
from lockclient.stores.service_protocol import Batch, Change, Kind, ServiceStore, WaitQueue
from lockclient.text.escaping import plain
from tests.support.processes import wait_until
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
        self.keys: dict[tuple[Kind, str, str], tuple[bytes, int]] = {}  # value, when created
        self.revision = 1
        self.deaf = False
        self._notify: Callable[[Batch], None] = lambda _: None
        self.followed = threading.Event()
        self.table = Table(cast("ServiceStore", self), on_change=lambda e: self.unclaimed.update(e))
        self.unclaimed = UnclaimedLocks(self.table, cast("ServiceStore", self), SeriesLimit())

    # -------------------------------------------------------- the store

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        changes = [
            Change(*key, value, self.revision, created)
            for key, (value, created) in sorted(self.keys.items())
        ]
        yield Batch(tuple(changes), self.revision)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        class Watch:
            def close(self) -> None:
                pass

        self._notify = notify
        self.followed.set()
        return Watch()

    def connected(self) -> bool:
        return True

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        tickets = [
            Ticket.read(name, part, value if len(value) <= MAX_VALUE_BYTES else b"", created)
            for (kind, of, part), (value, created) in self.keys.items()
            if (kind, of) == ("queue", name)
        ]
        tickets.sort(key=lambda ticket: ticket.revision)
        return WaitQueue(len(tickets), tuple(tickets[:limit]))

    # -------------------------------------------------------- who writes to it

    def write(self, *keys: tuple[Kind, str, str, bytes | None]) -> None:
        """Put keys, or delete those of value None, in one transaction, and let it be seen."""
        self.revision += 1
        changes = []
        for kind, name, part, value in keys:
            created = self.keys.get((kind, name, part), (b"", self.revision))[1]
            if value is None:
                self.keys.pop((kind, name, part))
                created = 0
            else:
                self.keys[kind, name, part] = value, created
            changes.append(Change(kind, name, part, value, self.revision, created))
        if not self.deaf:
            self._notify(Batch(tuple(changes), self.revision))
            self.settle()

    def settle(self) -> None:
        """Wait until all that was written is in the table, and told to who listens."""
        self.revision += 1  # when this one is in, the listener is done with the one before it
        self._notify(Batch((), self.revision, started=True))
        while self.table.revision < self.revision:
            time.sleep(0.0001)

    def read_anew(self) -> None:
        """Let the table read everything again, as after a watch that missed something."""
        self.deaf, loads = False, self.table.loads
        self.table.resync()
        wait_until(lambda: self.table.loads > loads, what="the reading")
        self.settle()

    def queue(self, name: str, uuid: str = "b", value: bytes | None = None) -> None:
        self.write(("queue", name, uuid, TICKET.value().encode() if value is None else value))

    def leave(self, name: str, uuid: str = "b") -> None:
        self.write(("queue", name, uuid, None))

    def take(self, name: str, uuid: str = "a") -> None:
        facts = {"uuid": uuid.encode(), "hostname": b"h", "alert_at": b"2000000000"}
        self.write(*(("locks", name, part, value) for part, value in facts.items()))

    def release(self, name: str) -> None:
        parts = [part for kind, of, part in self.keys if (kind, of) == ("locks", name)]
        self.write(*(("locks", name, part, None) for part in parts))

    def claim(self, name: str, uuid: str = "b") -> None:
        """Let the head of the line take the lock, which is free."""
        self.write(
            ("locks", name, "uuid", uuid.encode()),
            ("locks", name, "hostname", b"h"),
            ("locks", name, "alert_at", b"2000000000"),
            ("queue", name, uuid, None),
        )

    # -------------------------------------------------------- what a scrape shows

    def scrape(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return each metric's samples: labels and value."""
        registry = CollectorRegistry()
        registry.register(ComputedCollector(self.unclaimed.gauges))
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in parse(generate_latest(registry).decode()):
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
    assert made.followed.wait(30), "a write before that is heard by nobody"
    yield made
    made.table.stop()


START = 1_000.0


def looks(board: Board, *seconds: float) -> list[str]:
    """Look at these seconds of the monotonic clock; return the names shown after the last."""
    for second in seconds:
        board.unclaimed.scan(START + second)
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
    board.take("a")
    board.queue("a")
    assert looks(board, 0, 1e6) == []
    board.release("a")
    assert looks(board, 1e6 + 1, 1e6 + NORMAL_HANDOVER_S) == []
    assert looks(board, 1e6 + NORMAL_HANDOVER_S + 1) == ["a"]
    board.claim("a")
    assert looks(board, 1e6 + NORMAL_HANDOVER_S + 2) == []


def test_a_lock_that_is_handed_on_and_on_is_never_shown(board: Board) -> None:
    """Whenever it is looked at it happens to be free, and yet everybody gets it in turn."""
    board.queue("a", "0")
    for number in range(round(3 * NORMAL_HANDOVER_S)):
        board.queue("a", f"{number + 1}")
        assert looks(board, number) == []
        board.claim("a", f"{number}")
        board.release("a")


def test_taken_and_released_in_one_batch_counts_as_taken(board: Board) -> None:
    board.queue("a")
    assert looks(board, 0, NORMAL_HANDOVER_S) == ["a"]
    first, second = board.revision + 1, board.revision + 2
    board._notify(
        Batch(
            (
                Change("locks", "a", "uuid", b"u", first, first),
                Change("locks", "a", "uuid", None, second, 0),
            ),
            second,
        )
    )
    board.revision = second
    board.settle()
    assert looks(board, NORMAL_HANDOVER_S + 1) == []
    assert looks(board, 2 * NORMAL_HANDOVER_S + 1) == ["a"]


def test_a_next_head_that_does_not_claim_either_does_not_begin_anew(board: Board) -> None:
    """Each of them may be as slow as its lease: what counts is that nobody gets the lock."""
    board.queue("a", "first")
    board.queue("a", "second", Ticket("", "", "web-2", 8).value().encode())
    assert looks(board, 0, NORMAL_HANDOVER_S - 1) == []
    board.leave("a", "first")
    assert looks(board, NORMAL_HANDOVER_S + 1) == ["a"]
    [(labels, _)] = board.scrape()[HEAD]
    assert labels == {"name": "a", "hostname": "web-2", "pid": "8", "reason": ""}


def test_the_head_is_who_has_stood_in_line_for_longest(board: Board) -> None:
    """Not who wrote last, and not by the alphabet; who got in line again stands at the end."""
    for uuid in ("z", "m", "a"):
        board.queue("a", uuid, Ticket("", "", uuid).value().encode())
    board.queue("a", "m", Ticket("", "", "m again").value().encode())
    looks(board, 0, NORMAL_HANDOVER_S)

    def head() -> str:
        [(labels, _)] = board.scrape()[HEAD]
        return labels["hostname"]

    assert head() == "z"
    board.leave("a", "z")
    board.queue("a", "z", Ticket("", "", "z").value().encode())
    looks(board, NORMAL_HANDOVER_S + 1)
    assert head() == "m again"
    board.read_anew()
    looks(board, NORMAL_HANDOVER_S + 2)
    assert head() == "m again"


def test_a_broken_lock_is_held_and_what_a_lock_left_behind_is_not(board: Board) -> None:
    """It is held if and only if there is a `uuid`, readable or not."""
    board.queue("broken")
    board.write(("locks", "broken", "uuid", b""))
    board.queue("left")
    board.write(("locks", "left", "reason", b"of nobody"))
    assert looks(board, 0, NORMAL_HANDOVER_S) == ["left"]


def test_since_when_is_told_by_the_wall_clock_and_counted_by_the_other(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.queue("a")
    began = time.monotonic() - 2 * NORMAL_HANDOVER_S
    board.unclaimed.scan(began)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 1e6)
    board.unclaimed.scan(began + NORMAL_HANDOVER_S - 1)
    assert board.shown() == {}
    board.unclaimed.scan(began + 2 * NORMAL_HANDOVER_S)
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
    board.deaf = True
    board.claim("a", "first")
    board.release("a")
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
    board.deaf = True
    board.claim("a", "first")
    board.read_anew()
    assert looks(board, NORMAL_HANDOVER_S + 1) == []
    board.release("a")
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
        board.write(("queue", f"lock {number:03}", "b", b"{}"))
        board.unclaimed.scan(START + number / 10)
    board.unclaimed.scan(START + 2 * NORMAL_HANDOVER_S)
    board.unclaimed.refresh_heads()
    found = board.scrape()
    assert found[COUNT] == [({}, more)]
    names = sorted(labels["name"] for labels, _ in found[SINCE])
    assert names == [f"lock {number:03}" for number in range(MAX_LISTED)]
    assert len(found[HEAD]) == MAX_LISTED
    assert found[UNLISTED] == [({}, 20)]


def test_what_a_ticket_says_may_be_anything(board: Board) -> None:
    hostile = 'a"b\\c\nd\x00{}🙂' + "x" * 10_000
    board.queue("long", value=Ticket("", "", hostile, 7, reason=hostile).value().encode())
    board.queue("longer", value=Ticket("", "", "x" * MAX_VALUE_BYTES).value().encode())
    board.queue("none", value=b"\xff[1")
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
    registry = CollectorRegistry()
    registry.register(ComputedCollector(board.unclaimed.gauges))
    page = generate_latest(registry)
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
