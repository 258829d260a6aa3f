"""A table is stale if and only if the watch does not bring known writes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import pytest

from lockclient.overview import silent_watch
from lockclient.overview.live_table import Table
from lockclient.overview.silent_watch import LATE, READ_AFTER, READ_AGAIN_AFTER, READINGS, Freshness
from lockclient.stores.service_store import ServiceStore


@dataclass
class Case:
    """A table and its store as `Freshness` sees them, and a clock to move."""

    poll = 0.0
    now: float = 1000.0
    revision: int = 10
    followed: int = 0
    reading: bool = False
    known_at: float = -math.inf
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fresh = Freshness(cast("Table", self), cast("ServiceStore", self))

    def reopen_watch(self) -> None:
        self.done.append("reopened")

    def loading(self) -> bool:
        return self.reading

    def resync(self) -> None:
        self.done.append("read")
        self.revision += 100

    def shown(self, revision: int) -> None:
        self.revision = self.followed = revision

    def look(self, seconds: float, *, beats: bool = True) -> None:
        """Look once a second, with a heartbeat that etcd confirms every third second."""
        for second in range(int(seconds)):
            self.now += 1
            if beats and second % 3 == 0:
                self.fresh.expect(self.revision + 1, self.now)
            self.fresh.escalate()


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(silent_watch, "monotonic", lambda: found.now if found else 1000.0)
    found: Case | None = None
    found = Case()
    return found


def test_an_announcement_seen_in_time_is_proof(case: Case) -> None:
    for _ in range(5):
        case.now += 3
        case.fresh.expect(case.revision + 1, case.now)
        assert not case.fresh.stale()
        case.now += LATE
        case.shown(case.revision + 1)
        assert case.fresh.verified_at() == case.now - LATE
        case.fresh.escalate()
    assert case.done == []


def test_an_unseen_confirmed_announcement_makes_the_table_stale(
    case: Case,
) -> None:
    case.fresh.expect(10, case.now)
    case.now += 3
    case.fresh.expect(11, case.now)
    case.now += LATE + 0.01
    assert case.fresh.stale()
    assert case.now - case.fresh.verified_at() < 5.1
    case.shown(11)
    assert not case.fresh.stale()


def test_a_refused_or_unanswered_announcement_proves_nothing(case: Case) -> None:
    case.look(3600, beats=False)
    assert not case.fresh.stale()
    assert case.done == []
    assert case.now - case.fresh.verified_at() >= 3600


def test_a_silent_watch_is_reopened_then_everything_is_read(case: Case) -> None:
    case.look(3 + LATE)
    assert case.done == ["reopened"]
    case.look(READ_AFTER)
    assert case.done == ["reopened", "reopened", "read"]
    assert case.fresh.stale(), "read anew, but the watch has shown nothing yet"
    proven_at = case.fresh.verified_at()
    case.look(READ_AGAIN_AFTER * READINGS - 5)
    assert case.done == ["reopened", *(["reopened", "read"] * READINGS)]
    assert not case.fresh.failed()
    case.look(20)
    assert case.fresh.failed()
    assert case.fresh.verified_at() == proven_at
    case.shown(case.revision + 50)
    assert not case.fresh.failed()
    assert not case.fresh.stale()


def test_no_confirmed_write_no_hopelessness(case: Case) -> None:
    """The store went away after the first reading: what was seen is not to be forgotten."""
    case.look(LATE + READ_AFTER + 3)
    assert "read" in case.done
    case.look(3600, beats=False)
    assert not case.fresh.failed()


def test_a_running_read_is_not_interrupted(case: Case) -> None:
    case.reading = True
    case.look(3600)
    assert case.done == []
    assert case.fresh.stale()
    assert not case.fresh.failed()


def test_the_watch_is_left_alone_while_the_store_confirms_nothing(case: Case) -> None:
    case.fresh.expect(11, case.now)
    case.now += READ_AFTER
    case.look(3600, beats=False)
    assert case.done == []
    assert case.fresh.stale()


def test_a_restored_store_with_lower_revisions_is_not_waited_for(case: Case) -> None:
    case.fresh.expect(1_000_000, case.now)
    case.now += 60
    case.fresh.expect(7, case.now)
    assert not case.fresh.stale()
