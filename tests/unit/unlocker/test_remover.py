"""How removing ends when the store does not answer, refuses, or is asked too late.

The store is a fake here: real ones answer like this once in a blue moon. What a removal does to a
real etcd is in the integration tests.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.overview.rows import Row, Transition
from lockclient.stores.outcomes import Done, NotHolder, Outcome, ReadResult
from lockclient.stores.requests import Read, Remove, Request
from lockclient.stores.service_protocol import ServiceStore
from tests.support.records import REVISION, found, written
from unlocker.deadlines import Deadlines, JudgedLock
from unlocker.metrics.counters import Metrics
from unlocker.rate_limit import RateLimit
from unlocker.remover import Remover

ME = "unlocker@here:1-abcd"


@dataclass
class FakeStore:
    """Locks by name, and what to do instead of removing one."""

    locks: dict[str, Holder] = field(default_factory=dict)
    removals: dict[str, Removal] = field(default_factory=dict)
    instead: dict[str, Callable[[Remove], Outcome]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    on_removed: Callable[[str], None] = lambda _name: None

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        assert deadline.remaining() <= 2
        if isinstance(request, Read):
            return ReadResult(self.locks.get(request.name), (), self.removals.get(request.name), 1)
        assert isinstance(request, Remove)
        name = request.removal.holder.name
        self.asked.append(name)
        return self.instead.get(name, self.remove)(request)

    def remove(self, request: Remove) -> Outcome:
        holder = request.removal.holder
        there = self.locks.get(holder.name)
        if (
            there is None
            or there.uuid != holder.uuid
            or there.stamp_revisions != request.stamp_revisions
        ):
            return NotHolder(there.uuid if there else None, self.removals.get(holder.name))
        del self.locks[holder.name]
        self.removals[holder.name] = request.removal
        self.on_removed(holder.name)
        return Done(9)


class Case:
    """A remover with locks that are due, in the store and on the list.

    Args:
        most: what the brake lets pass.
        told: the table tells at once that a lock is gone.
    """

    def __init__(self, most: int | None = 1000, *, told: bool = True) -> None:
        self.store = FakeStore()
        self.watchlist = Deadlines()
        self.metrics = Metrics("1")
        self.ending = threading.Event()
        self.brake = RateLimit(most)
        store = cast("ServiceStore", self.store)
        self.remover = Remover(store, self.watchlist, self.brake, ME, self.metrics, self.ending)
        if told:
            self.store.on_removed = self.tell

    def tell(self, name: str) -> None:
        """Tell what the table tells when a lock is gone."""
        self.watchlist.update([Transition(name, None, None, live=True)])

    def due(self, *names: str, **facts: Any) -> list[JudgedLock]:
        """Put locks into the store and on the list, and let their time pass."""
        wall, now = time.time(), time.monotonic()
        for name in names:
            holder = Holder(
                *(name, f"uuid-{name}", "host", 1),
                locked_at=wall,
                alert_at=wall + 1,
                auto_unlock_at=wall + 2,
                expected_runtime=1,
                auto_unlock_after=2,
                backtrace="here",
            )
            holder = replace(written(holder), **facts)
            self.store.locks[name] = holder
            row = Row(replace(holder, backtrace=None), now, found=False)
            self.watchlist.update([Transition(name, None, row, live=True)])
        return self.watchlist.pop_due(now + 100).due

    def results(self) -> dict[str, float]:
        """Return how often attempts ended in which way, those that never happened left out."""
        [family] = self.metrics.auto_unlocks.collect()
        counted = [sample for sample in family.samples if sample.name.endswith("_total")]
        return {sample.labels["result"]: sample.value for sample in counted if sample.value}


@pytest.fixture
def case() -> Case:
    return Case()


def unavailable(_request: Remove) -> Outcome:
    raise StoreUnavailable("no answer")


def refuse(_request: Remove) -> Outcome:
    raise StoreError("no right")


def test_a_lock_that_is_due_is_removed_with_a_record(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case.remover.run(case.due("a"))
    assert case.results() == {"removed": 1}
    removal = case.store.removals["a"]
    assert (removal.removed_by, removal.how) == (ME, "auto-unlock")
    assert removal.holder.backtrace == "here"
    assert re.fullmatch(
        r"no sign of life for [\d.]+ s; its time ran out after [\d.]+ s", removal.why
    )
    [record] = caplog.records
    assert record.__dict__["removal"] == removal


@pytest.mark.parametrize(
    "facts",
    [
        {"stamp_revisions": (6, 6)},
        {"stamp_revisions": (6, REVISION)},
        {"stamp_revisions": (REVISION, 6)},
        {"auto_unlock_after": None, "expected_runtime": None},
        {"needs": ("warp",)},
    ],
    ids=["a push", "alert_at by hand", "auto_unlock_at by hand", "about deleted", "needs more"],
)
def test_what_was_written_before_the_look_wins(case: Case, facts: dict[str, Any]) -> None:
    due = case.due("a")
    case.store.locks["a"] = replace(case.store.locks["a"], **facts)
    case.remover.run(due)
    assert case.results() == {"changed": 1}
    assert case.store.asked == []


def test_the_removal_compares_both_stamps(case: Case) -> None:
    """What a store does of it is in the contract."""
    asked: list[Remove] = []

    def note(request: Remove) -> Outcome:
        asked.append(request)
        return case.store.remove(request)

    case.store.instead["a"] = note
    case.remover.run(case.due("a", stamp_revisions=(7, 9)))
    assert [request.stamp_revisions for request in asked] == [(7, 9)]
    assert case.results() == {"removed": 1}


def test_a_push_after_the_look_wins(case: Case) -> None:
    case.store.instead["a"] = lambda _request: NotHolder("uuid-a", None)
    case.remover.run(case.due("a"))
    assert case.results() == {"changed": 1}


def test_a_lock_that_was_unlocked_first_is_gone(case: Case) -> None:
    due = case.due("a")
    del case.store.locks["a"]
    case.remover.run(due)
    assert case.results() == {"gone": 1}


def test_a_lock_that_another_holder_has_by_now_is_left_alone(case: Case) -> None:
    due = case.due("a")
    case.store.locks["a"] = replace(case.store.locks["a"], uuid="other")
    case.remover.run(due)
    assert case.results() == {"gone": 1}
    assert case.store.asked == []


def test_a_lock_whose_data_broke_meanwhile_is_left_alone(case: Case) -> None:
    due = case.due("a")
    case.store.locks["a"] = case.store.locks["a"].updated(found({"hostname": b"\xff"}))
    case.remover.run(due)
    assert case.results() == {"changed": 1}
    assert case.store.asked == []


def test_another_replica_that_got_in_first_is_no_failure(case: Case) -> None:
    removal = Removal(Holder("a", "uuid-a"), 1.0, "unlocker@there:2-ef01", "auto-unlock", "")
    case.store.instead["a"] = lambda _request: NotHolder(None, removal)
    case.remover.run(case.due("a"))
    assert case.results() == {"gone": 1}


@pytest.mark.parametrize("told", [True, False])
def test_a_removal_whose_answer_was_lost_is_counted_as_ours(
    told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the watch tells that the lock is gone before it is asked for again."""
    case = Case(told=told)

    def remove_silently(request: Remove) -> Outcome:
        case.store.remove(request)
        raise StoreUnavailable("no answer")

    case.store.instead["a"] = remove_silently
    with pytest.raises(StoreUnavailable):
        case.remover.run(case.due("a"))
    assert "Removed lock" not in caplog.text
    case.remover.run([])
    assert case.results() == {"failed": 1, "removed": 1}
    assert "Removed lock" in caplog.text


def test_a_removal_that_is_refused_is_known_by_name_until_it_works(case: Case) -> None:
    case.store.instead["a"] = refuse
    case.remover.run(case.due("a", "b"))
    assert case.remover.failing() == {"a"}
    case.store.instead.clear()
    case.remover.run([])
    assert case.remover.failing() == set()


def test_a_store_that_is_away_ends_the_run_and_the_next_one_goes_on(case: Case) -> None:
    due = case.due("a", "b", "c")
    case.store.instead["b"] = unavailable
    with pytest.raises(StoreUnavailable):
        case.remover.run(due)
    assert case.store.asked == ["a", "b"]
    case.store.instead.clear()
    case.remover.run([])
    assert case.results() == {"removed": 3, "failed": 1}


def test_a_refusal_holds_up_no_other_lock_and_is_logged_once(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case.store.instead["a"] = refuse
    case.remover.run(case.due("a", "b"))
    for _ in range(3):
        case.remover.run([])
    assert case.results() == {"removed": 1, "failed": 4}
    assert caplog.text.count("can't be removed") == 1


def test_a_lock_that_changed_while_it_waited_for_its_turn_is_not_tried(case: Case) -> None:
    case.store.instead["a"] = refuse
    case.remover.run(case.due("a"))
    case.watchlist.update([Transition("a", None, None, live=True)])
    case.remover.run([])
    assert case.store.asked == ["a"]


def test_when_the_service_ends_no_further_lock_is_begun(case: Case) -> None:
    due = case.due("a", "b")

    def remove_last(request: Remove) -> Outcome:
        case.ending.set()
        return case.store.remove(request)

    case.store.instead["a"] = remove_last
    case.remover.run(due)
    assert case.store.asked == ["a"]


def test_a_run_leaves_what_it_has_no_time_for_to_the_next(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlocker.remover._RUN_BUDGET_S", 0.0)
    case.remover.run(case.due("a"))
    assert case.store.asked == []
    monkeypatch.undo()
    case.remover.run([])
    assert case.store.asked == ["a"]


def test_the_record_of_a_lock_that_says_too_much_fits_into_a_request(case: Case) -> None:
    """Six bytes of JSON for each of the characters that it takes the most for."""
    text = "\x01" * 64_000
    facts = ("hostname", "reason", "thread", "identity", "client", "process", "backtrace")
    case.remover.run(case.due("a", **dict.fromkeys(facts, text), needs=None))
    removal = case.store.removals["a"]
    assert len(removal.value().encode()) < 512 * 1024
    assert (removal.holder.reason, removal.holder.backtrace) == (text[:4096], text[:16384])


def test_a_removal_in_doubt_that_did_not_happen_does_not_happen_when_the_lock_has_changed(
    case: Case,
) -> None:
    case.store.instead["a"] = unavailable
    with pytest.raises(StoreUnavailable):
        case.remover.run(case.due("a"))
    case.store.instead.clear()
    case.tell("a")  # another verdict about it is on the list by now, or none
    case.remover.run([])
    assert case.results() == {"failed": 1, "changed": 1}
    assert case.store.asked == ["a"]
    case.remover.run([])
    assert case.results() == {"failed": 1, "changed": 1}


class TestTheBrake:
    def names(self, number: int) -> list[str]:
        return [f"lock {place}" for place in range(number)]

    def test_what_is_beyond_it_stays_and_it_says_so_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        case = Case(most=5)
        case.remover.run(case.due(*self.names(12)))
        for _ in range(3):
            case.remover.run([])
        assert case.results() == {"removed": 5}
        assert len(case.store.asked) == 5
        assert case.brake.state(7).withheld == 7
        assert case.brake.state(7).engaged
        [line] = [
            record.getMessage() for record in caplog.records if "brake" in record.getMessage()
        ]
        assert "7 locks are due beyond the 5" in line
        assert "--max-removals off" in line

    def test_a_holder_that_comes_back_keeps_its_lock(self) -> None:
        case = Case(most=1)
        case.remover.run(case.due("a", "b", "c"))
        case.tell("b")
        case.remover.run([])
        assert case.brake.state(1).withheld == 1

    def test_it_is_off_when_told_so(self) -> None:
        """Then nothing waits for the watch to tell of each removal either."""
        case = Case(most=None, told=False)
        case.remover.run(case.due(*self.names(300)))
        assert case.results() == {"removed": 300}

    def test_an_unlocker_that_has_not_heard_of_its_last_removal_does_not_go_on(self) -> None:
        """It has not heard either of what others removed before that: see `rate_limit`."""
        case = Case(most=5, told=False)
        due = case.due("a", "b")
        threading.Timer(0.2, case.ending.set).start()  # else it waits 2 s
        case.remover.run(due)
        assert case.store.asked == ["a"]
        case.ending.clear()
        case.tell("a")
        case.remover.run([])
        assert case.store.asked == ["a", "b"]

    def test_a_request_in_doubt_counts(self) -> None:
        """It may have happened; and when it is asked again, it counts but once."""
        case = Case(most=2)
        case.store.instead["a"] = unavailable
        with pytest.raises(StoreUnavailable):
            case.remover.run(case.due("a"))
        assert not case.brake.is_full(0)
        case.store.instead.clear()
        case.remover.run(case.due("b", "c", "d"))
        assert case.store.asked == ["a", "a", "b"]
        assert case.results() == {"failed": 1, "removed": 2}


class TestWithoutABrake:
    NAMES = tuple(f"lock {number}" for number in range(40))

    def test_several_are_removed_at_a_time(self) -> None:
        """And each once: these four are under way together, or none of them ends."""
        case, together = Case(most=None), threading.Barrier(4)

        def meet(request: Remove) -> Outcome:
            together.wait(20)
            return case.store.remove(request)

        case.store.instead = dict.fromkeys(self.NAMES[:4], meet)
        case.remover.run(case.due(*self.NAMES))
        assert sorted(case.store.asked) == sorted(self.NAMES)
        assert case.store.locks == {}
        assert case.results() == {"removed": 40}

    def test_the_next_run_does_what_is_left(self) -> None:
        """The store did not answer, or the time was up."""
        case = Case(most=None)
        case.store.instead = dict.fromkeys(self.NAMES[::10], unavailable)
        with pytest.raises(StoreUnavailable):
            case.remover.run(case.due(*self.NAMES))
        case.store.instead = {}
        case.remover.run([])
        assert case.store.locks == {}
        assert case.results() == {"failed": 4, "removed": 40}
        assert len(case.store.asked) == 44

    def test_it_ends_when_it_is_told_to(self) -> None:
        case = Case(most=None)
        case.ending.set()
        case.remover.run(case.due(*self.NAMES))
        assert case.store.asked == []
