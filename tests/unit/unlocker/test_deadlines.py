"""What is to happen with each lock next, and that finding out costs little."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lockclient.model.clocks import Now
from lockclient.model.holder import Holder
from lockclient.model.silence import ClockCheck
from lockclient.overview.rows import Row, Transition
from unlocker.deadlines import CARRIED_OVER_AFTER_S, Deadlines

WALL = 1_800_000_000.0


def row(
    name: str = "a",
    *,
    seen_at: float = 0.0,
    uuid: str | None = "u",
    alert: float | None = 30.0,
    unlock: float | None = 60.0,
    found: bool = False,
    **facts: Any,
) -> Row:
    """Return a lock that was pushed as it was seen, its stamps that many seconds later."""
    holder = Holder(
        *(name, uuid, "host"),
        alert_at=None if alert is None else WALL + seen_at + alert,
        auto_unlock_at=None if unlock is None else WALL + seen_at + unlock,
        expected_runtime=alert,
        auto_unlock_after=unlock,
    )
    return Row(replace(holder, **facts), seen_at=seen_at, found=found)


ENDING: dict[str, Any] = {
    "expected_runtime": None,
    "auto_unlock_after": None,
    "first_distance": 50.0,
    "auto_unlock_at": WALL + 80,
}
"""Four keys, and its stamps 50 s apart."""
FOUR_KEYS: dict[str, Any] = {"unlock": None, "expected_runtime": None}


def put(watchlist: Deadlines, after: Row | None, name: str = "a") -> None:
    """Tell of a lock's new row; None: it is gone."""
    watchlist.update([Transition(name, None, after, live=True)])


def names(watchlist: Deadlines, now: float) -> tuple[list[str], list[str]]:
    """Go on in time and return the names of alerts, and of locks that are due."""
    progress = watchlist.pop_due(now)
    return (
        [item.row.holder.name for item in progress.alerts],
        [item.row.holder.name for item in progress.due],
    )


@pytest.fixture
def watchlist() -> Deadlines:
    return Deadlines()


A = ["a"]
STORIES: dict[str, list[Row | tuple[float, list[str], list[str]]]] = {
    # What is told of the lock in turn, and who is past its alert, and due, at which moment.
    "a silent lock goes past its alert once and is due once": [
        *(row(), (29, [], []), (31, A, []), (59, [], []), (61, [], A), (1000, [], [])),
    ],
    "a push moves both moments back": [
        *(row(), row(seen_at=29), (58, [], []), (60, A, []), (88, [], []), (90, [], A)),
    ],
    "a push may also shorten the time": [
        *(row(), row(alert=1, unlock=2), (3, A, A), (1000, [], [])),
    ],
    "after a push the alert comes again": [row(), (31, A, []), row(seen_at=32), (63, A, [])],
    "a write that is no push repeats no alert": [
        *(row(), (31, A, []), row(hostname="elsewhere"), (32, [], []), (61, [], A)),
    ],
    "a lock that a restore put back to an earlier heartbeat repeats no alert": [
        *(row(seen_at=9, stamp_revisions=(7, 7)), (40, A, [])),
        *(row(seen_at=0, found=True, stamp_revisions=(5, 5)), (41, [], []), (61, [], A)),
    ],
    "a new holder has an alert of its own": [row(), (31, A, []), row(uuid="other"), (31, A, [])],
    "a lock that is due and changes without a push is handed out again": [
        *(row(), (61, A, A), row(hostname="elsewhere"), (62, [], A)),
    ],
    "the alert comes first even if its stamp is later": [row(alert=90), (61, A, A)],
    "a lock without auto-unlock is alerted on and never due": [
        *(row(unlock=None), (31, A, []), (1e12, [], [])),
    ],
    "a broken lock has no moment": [row(alert=None), (1e12, [], [])],
    "the next push decides what was undecided": [
        *(row(alert_at=WALL + 500), row(seen_at=100), (131, A, []), (161, [], A)),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_is_to_happen_next(watchlist: Deadlines, story: list[Any]) -> None:
    for step in story:
        if isinstance(step, Row):
            put(watchlist, step)
        else:
            now, alerts, due = step
            assert names(watchlist, now) == (alerts, due)


def test_a_lock_that_is_gone_is_forgotten(watchlist: Deadlines) -> None:
    put(watchlist, row())
    names(watchlist, 31)
    put(watchlist, None)
    assert names(watchlist, 1000) == ([], [])
    assert sum(watchlist.counts().values()) == 0
    assert watchlist.past_alert(10).listed == []


def test_what_was_handed_out_is_current_until_the_lock_changes(watchlist: Deadlines) -> None:
    put(watchlist, row())
    [item] = watchlist.pop_due(61).due
    assert watchlist.is_current(item)
    put(watchlist, row(seen_at=61))
    assert not watchlist.is_current(item)


def test_those_that_only_wait_because_counting_began_anew_are_counted(watchlist: Deadlines) -> None:
    for name, after in {
        "seen": row("seen"),
        "found": row("found", found=True),
        "never": row("never", found=True, unlock=None),
        "undecided": row("undecided", found=True, needs=("warp",)),
        "found later": row("found later", found=True, seen_at=50),
        "found, and then pushed": row("found, and then pushed", found=True),
    }.items():
        put(watchlist, after, name)
    pushed = "found, and then pushed"
    put(watchlist, row(pushed, seen_at=10), pushed)
    assert watchlist.carried_over(WALL + 60 + CARRIED_OVER_AFTER_S) == 0
    assert watchlist.carried_over(WALL + 61 + CARRIED_OVER_AFTER_S) == 1
    assert watchlist.carried_over(WALL + 1e6) == 2
    watchlist.pop_due(61)
    assert watchlist.carried_over(WALL + 1e6) == 1, "one is to be removed now"
    put(watchlist, None, "found later")
    assert watchlist.carried_over(WALL + 1e6) == 0


def test_what_a_check_cannot_decide_waits_for_the_next(watchlist: Deadlines) -> None:
    put(watchlist, row(found=True, **ENDING))
    watchlist.reconsider(ClockCheck(Now(10, WALL + 10), None))
    assert names(watchlist, 49) == ([], [])
    watchlist.reconsider(ClockCheck(Now(20, WALL + 20), 0.0))
    assert names(watchlist, 49) == (["a"], [])
    assert names(watchlist, 1e12) == ([], ["a"])


@pytest.mark.parametrize("offset", [None, 3600.0], ids=["nobody told", "an hour off"])
def test_without_a_clock_to_trust_silence_calls_people_and_removes_nothing(
    watchlist: Deadlines, offset: float | None
) -> None:
    """Once it was silent for its distance, 50 s, and our own clock has passed its alert."""
    put(watchlist, row(found=True, **ENDING))
    watchlist.reconsider(ClockCheck(Now(10, WALL + 10), offset))
    assert names(watchlist, 49) == ([], [])
    assert names(watchlist, 51) == (["a"], [])
    watchlist.reconsider(ClockCheck(Now(60, WALL + 60), offset))
    assert names(watchlist, 1e12) == ([], [])


def test_an_alert_that_a_clock_decided_is_not_put_off_by_a_check_that_fails(
    watchlist: Deadlines,
) -> None:
    put(watchlist, row(found=True, **ENDING))
    watchlist.reconsider(ClockCheck(Now(10, WALL + 10), 0.0))
    watchlist.reconsider(ClockCheck(Now(20, WALL + 20), None))
    assert names(watchlist, 31) == (["a"], [])


def test_a_clock_that_was_set_right_decides_anew(watchlist: Deadlines) -> None:
    """An hour behind, it would put the alert off by that."""
    put(watchlist, row(found=True, **ENDING))
    watchlist.reconsider(ClockCheck(Now(10, WALL - 3600), None))
    assert names(watchlist, 51) == ([], [])
    watchlist.reconsider(ClockCheck(Now(52, WALL + 52), None))
    assert names(watchlist, 53) == (["a"], [])


def test_it_says_whether_a_clock_check_is_of_use(watchlist: Deadlines) -> None:
    assert not watchlist.needs_clock_check()
    put(watchlist, row(seen_at=50, **FOUR_KEYS))
    assert watchlist.needs_clock_check()
    watchlist.reconsider(ClockCheck(Now(40, WALL + 40), 0.0))  # from before the lock was seen
    assert watchlist.needs_clock_check()
    watchlist.reconsider(ClockCheck(Now(60, WALL + 60), None))  # it could not tell, but was asked
    assert not watchlist.needs_clock_check()
    put(watchlist, row(seen_at=70))
    assert not watchlist.needs_clock_check()


@pytest.mark.parametrize(
    "facts",
    [
        {"auto_unlock_at": WALL + 5},
        {"auto_unlock_at": WALL + 1e6},
        {"auto_unlock_at": None},
        {"auto_unlock_after": None},
        {"needs": ("warp",)},
    ],
    ids=lambda facts: ", ".join(facts),
)
def test_what_the_lock_leaves_undecided_is_rung_and_counted_and_no_clock_is_asked_again(
    watchlist: Deadlines, facts: dict[str, Any]
) -> None:
    put(watchlist, row(**facts))
    undecided = {"ok": 0, "alert": 0, "overdue": 0, "undecided": 1, "broken": 0}
    assert watchlist.counts() == undecided
    watchlist.reconsider(ClockCheck(Now(10, WALL + 10), 0.0))
    assert names(watchlist, 29) == ([], [])
    [item] = watchlist.pop_due(31).alerts
    assert watchlist.past_alert(10).listed == [item]
    assert names(watchlist, 1e12) == ([], [])
    assert watchlist.counts() == undecided
    assert not watchlist.needs_clock_check()
    watchlist.reconsider(ClockCheck(Now(40, WALL + 3640), 0.0))
    assert watchlist.is_current(item)


def test_a_lock_judged_once_is_not_judged_again_by_a_later_check(watchlist: Deadlines) -> None:
    """A wall clock put forward by an hour rings nothing, not even if the members' is as well."""
    put(watchlist, row(found=True))
    watchlist.reconsider(ClockCheck(Now(1, WALL + 1), 0.0))
    watchlist.reconsider(ClockCheck(Now(2, WALL + 3602), 0.0))
    assert names(watchlist, 29) == ([], [])
    assert names(watchlist, 59) == (["a"], [])
    assert names(watchlist, 61) == ([], ["a"])


def test_what_is_overdue_is_not_hidden_behind_what_has_been_silent_for_longer(
    watchlist: Deadlines,
) -> None:
    """The most urgent is listed: what can't be removed, what is due, what nobody else frees."""
    for name, after in {
        "goes by itself": row("goes by itself", seen_at=-20, unlock=1e6),
        "never removed": row("never removed", seen_at=-15, unlock=None),
        "undecided": row("undecided", seen_at=-10, needs=("warp",)),
        "withheld": row("withheld", seen_at=-5),
        "can't be removed": row("can't be removed"),
    }.items():
        put(watchlist, after, name)
    watchlist.reconsider(ClockCheck(Now(0, WALL), 0.0))
    names(watchlist, 1000)
    order = ["can't be removed", "withheld", "never removed", "undecided", "goes by itself"]
    for number in range(6):
        found = watchlist.past_alert(number, {"can't be removed"})
        assert [item.row.holder.name for item in found.listed] == order[:number]
        states = Counter(item.state for item in watchlist.past_alert(5).listed[number:])
        assert found.unlisted == {"alert": 0, "overdue": 0, "undecided": 0} | states


def test_pushes_leave_nothing_behind(watchlist: Deadlines) -> None:
    """500 pushes a second for 15 minutes: one entry a lock, not one a push."""
    for second in range(900):
        put(watchlist, row(seen_at=second, alert=1800, unlock=3600))
    assert len(watchlist._heap) == 1


def test_locks_that_come_and_go_leave_nothing_behind(watchlist: Deadlines) -> None:
    for number in range(10_000):
        put(watchlist, row(f"{number}", found=True), f"{number}")
        put(watchlist, None, f"{number}")
    assert len(watchlist._heap) < 2000
    assert len(watchlist._entries) < 2000
    assert len(watchlist._stamps) < 2000


def test_clearing_what_was_left_behind_loses_no_lock(watchlist: Deadlines) -> None:
    put(watchlist, row("kept"), "kept")
    for number in range(10_000):
        put(watchlist, row(f"{number}"), f"{number}")
        put(watchlist, None, f"{number}")
    assert names(watchlist, 31) == (["kept"], [])


def test_something_comes_due_only_where_the_lock_was_not_pushed(watchlist: Deadlines) -> None:
    """To ask changes nothing; what has come due is handed out all the same."""
    put(watchlist, row("a"))
    put(watchlist, row("b"))
    assert not watchlist.comes_due(29)
    put(watchlist, row("a", seen_at=20.0))
    put(watchlist, None, "b")
    assert not watchlist.comes_due(49)
    assert watchlist.comes_due(51)
    assert watchlist.comes_due(51)
    assert names(watchlist, 51) == (["a"], [])
    assert not watchlist.comes_due(79)
    assert watchlist.comes_due(81)
    assert names(watchlist, 81) == ([], ["a"])
    assert not watchlist.comes_due(1000)
