"""How removing ends when the store does not answer, refuses, or is asked too late.

Real stores answer like this once in a blue moon. What a removal does to a real etcd is in the
integration tests.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import SUBKEYS
from lockclient.overview.rows import Row, Transition
from lockclient.stores.outcomes import Done, Outcome
from lockclient.stores.requests import Remove, Request
from tests.support.memory_store import MemoryStore
from unlocker.deadlines import Deadlines, JudgedLock
from unlocker.metrics.counters import Metrics
from unlocker.rate_limit import RateLimit
from unlocker.remover import Remover

ME = "unlocker@here:1-abcd"


class Store(MemoryStore):
    """One that may do something else instead of removing a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.instead: dict[str, Callable[[Remove], Outcome]] = {}
        self.tried: list[str] = []
        self.on_removed: Callable[[str], None] = lambda _name: None

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        assert deadline.remaining() <= 2
        if not isinstance(request, Remove):
            return super().ask(request, deadline)
        self.tried.append(request.removal.holder.name)
        return self.instead.get(self.tried[-1], self.remove)(request)

    def remove(self, request: Remove) -> Outcome:
        outcome = super().ask(request, Deadline.after(2))
        if isinstance(outcome, Done):
            self.on_removed(request.removal.holder.name)
        return outcome

    def left(self) -> list[str]:
        return self.names("", 1000, Deadline.after(2))


class Case:
    """A remover with locks that are due, in the store and on the list.

    Args:
        most: what the brake lets pass.
        told: the table tells at once that a lock is gone.
    """

    def __init__(self, most: int | None = 1000, *, told: bool = True) -> None:
        self.store = Store()
        self.watchlist = Deadlines()
        self.metrics = Metrics("1")
        self.ending = threading.Event()
        self.brake = RateLimit(most)
        self.remover = Remover(
            self.store, self.watchlist, self.brake, ME, self.metrics, self.ending
        )
        if told:
            self.store.on_removed = self.tell

    def tell(self, name: str) -> None:
        """Tell what the table tells when a lock is gone."""
        self.watchlist.update([Transition(name, None, None, live=True)])

    def due(self, *names: str) -> list[JudgedLock]:
        """Put locks into the store and on the list, and let their time pass."""
        now = time.monotonic()
        for name in names:
            uuid = f"uuid-{name}"
            self.store.take(name, uuid=uuid, held_for=0, alert=1, unlock=2, backtrace="here")
            # Again, so that its revision is another one than the other stamp's.
            self.store.write(self.store.model.kept["locks", name, "auto_unlock_at"][:4])
            holder = self.store.model.lock(name).holder
            assert holder is not None
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
    due = case.due("a")
    case.remover.run(due)
    assert case.results() == {"removed": 1}
    [request] = [asked for asked in case.store.asked if isinstance(asked, Remove)]
    assert request.stamp_revisions == due[0].row.holder.stamp_revisions
    removal = case.store.model.removal("a", "uuid-a")
    assert removal is not None
    assert (removal.removed_by, removal.how) == (ME, "auto-unlock")
    assert removal.holder.backtrace == "here"
    assert re.fullmatch(r"no heartbeat for [\d.]+ s; its time ran out after [\d.]+ s", removal.why)
    [record] = caplog.records
    assert record.__dict__["removal"].value() == removal.value()


@pytest.mark.parametrize(
    ("written", "result"),
    [
        ({"alert_at": b"1", "auto_unlock_at": b"2"}, "changed"),
        ({"alert_at": b"1"}, "changed"),
        ({"auto_unlock_at": b"2"}, "changed"),
        ({"about": None}, "changed"),
        ({"hostname": b"\xff"}, "changed"),
        (dict.fromkeys(SUBKEYS), "gone"),
        ({"uuid": b"other"}, "gone"),
    ],
    ids=["a push", "one stamp", "the other", "undecided", "broken", "released", "another holder"],
)
def test_what_was_written_before_the_look_wins(
    case: Case, written: dict[str, bytes | None], result: str
) -> None:
    due = case.due("a")
    case.store.write(*[("locks", "a", part, value) for part, value in written.items()])
    case.remover.run(due)
    assert case.results() == {result: 1}
    assert case.store.tried == []


def test_a_push_after_the_look_wins(case: Case) -> None:
    def push_first(request: Remove) -> Outcome:
        case.store.push("a")
        return case.store.remove(request)

    case.store.instead["a"] = push_first
    case.remover.run(case.due("a"))
    assert case.results() == {"changed": 1}
    assert case.store.left() == ["a"]


def test_another_replica_that_got_in_first_is_no_failure(case: Case) -> None:
    def come_second(request: Remove) -> Outcome:
        case.store.remove(replace(request, removal=replace(request.removal, removed_by="other")))
        return case.store.remove(request)

    case.store.instead["a"] = come_second
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
    assert case.store.tried == ["a", "b"]
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
    assert case.store.tried == ["a"]


def test_when_the_service_ends_no_further_lock_is_begun(case: Case) -> None:
    due = case.due("a", "b")

    def remove_last(request: Remove) -> Outcome:
        case.ending.set()
        return case.store.remove(request)

    case.store.instead["a"] = remove_last
    case.remover.run(due)
    assert case.store.tried == ["a"]


def test_a_run_leaves_what_it_has_no_time_for_to_the_next(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlocker.remover._RUN_BUDGET_S", 0.0)
    case.remover.run(case.due("a"))
    assert case.store.tried == []
    monkeypatch.undo()
    case.remover.run([])
    assert case.store.tried == ["a"]


def test_the_record_of_a_lock_that_says_too_much_fits_into_a_request(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six bytes of JSON for each of the characters that it takes the most for."""
    text = "\x01" * 64_000
    facts = ("hostname", "reason", "thread", "identity", "client", "process", "backtrace")
    due, lock = case.due("a"), case.store.model.lock("a")
    assert lock.holder is not None
    holder = replace(lock.holder, **dict.fromkeys(facts, text))  # type: ignore[arg-type]
    monkeypatch.setattr(type(lock), "holder", holder)
    case.remover.run(due)
    removal = case.store.model.removal("a", "uuid-a")
    assert removal is not None
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
    assert case.store.tried == ["a"]
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
        assert len(case.store.tried) == 5
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
        assert case.store.tried == ["a"]
        case.ending.clear()
        case.tell("a")
        case.remover.run([])
        assert case.store.tried == ["a", "b"]

    def test_a_request_in_doubt_counts(self) -> None:
        """It may have happened; and when it is asked again, it counts but once."""
        case = Case(most=2)
        case.store.instead["a"] = unavailable
        with pytest.raises(StoreUnavailable):
            case.remover.run(case.due("a"))
        assert not case.brake.is_full(0)
        case.store.instead.clear()
        case.remover.run(case.due("b", "c", "d"))
        assert case.store.tried == ["a", "a", "b"]
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
        assert sorted(case.store.tried) == sorted(self.NAMES)
        assert case.store.left() == []
        assert case.results() == {"removed": 40}

    def test_the_next_run_does_what_is_left(self) -> None:
        """The store did not answer, or the time was up."""
        case = Case(most=None)
        case.store.instead = dict.fromkeys(self.NAMES[::10], unavailable)
        with pytest.raises(StoreUnavailable):
            case.remover.run(case.due(*self.NAMES))
        case.store.instead = {}
        case.remover.run([])
        assert case.store.left() == []
        assert case.results() == {"failed": 4, "removed": 40}
        assert len(case.store.tried) == 44

    def test_it_ends_when_it_is_told_to(self) -> None:
        case = Case(most=None)
        case.ending.set()
        case.remover.run(case.due(*self.NAMES))
        assert case.store.tried == []
