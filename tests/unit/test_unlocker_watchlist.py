"""What is to happen with each lock next, and that finding out costs little."""

from __future__ import annotations

import pytest

from lockclient.record import Holder
from lockclient.table import Row, Transition
from lockclient.timing import Now
from unlocker.policy import ClockCheck
from unlocker.watchlist import Watchlist

WALL = 1_800_000_000.0


def row(
    name: str = "a",
    *,
    seen_at: float = 0.0,
    uuid: str | None = "u",
    alert: float | None = 30.0,
    unlock: float | None = 60.0,
    reason: str = "",
    found: bool = False,
    signed: bool = True,
) -> Row:
    """Return a lock that was pushed as it was seen, its stamps that many seconds later."""
    sign = WALL + seen_at if signed else None
    holder = Holder(
        name,
        uuid,
        "host",
        reason=reason,
        locked_at=sign,
        alive_at=sign,
        alert_at=None if alert is None else WALL + seen_at + alert,
        auto_unlock_at=None if unlock is None else WALL + seen_at + unlock,
    )
    return Row(holder, stamp_revision=1, seen_at=seen_at, found=found)


def put(watchlist: Watchlist, after: Row | None, name: str = "a") -> None:
    """Tell of a lock's new row; None: it is gone."""
    watchlist.update([Transition(name, None, after, live=True)])


def names(watchlist: Watchlist, now: float) -> tuple[list[str], list[str]]:
    """Go on in time and return the names of alerts, and of locks that are due."""
    progress = watchlist.advance(now)
    return (
        [item.row.holder.name for item in progress.alerts],
        [item.row.holder.name for item in progress.due],
    )


@pytest.fixture
def watchlist() -> Watchlist:
    return Watchlist(grace=10)


def test_a_silent_lock_goes_past_its_alert_once_and_is_due_once(watchlist: Watchlist) -> None:
    put(watchlist, row())
    assert names(watchlist, 29) == ([], [])
    assert names(watchlist, 31) == (["a"], [])
    assert names(watchlist, 59) == ([], [])
    assert names(watchlist, 61) == ([], ["a"])
    assert names(watchlist, 1000) == ([], [])


def test_a_push_moves_both_moments_back(watchlist: Watchlist) -> None:
    put(watchlist, row())
    put(watchlist, row(seen_at=29))
    assert names(watchlist, 58) == ([], [])
    assert names(watchlist, 60) == (["a"], [])
    assert names(watchlist, 88) == ([], [])
    assert names(watchlist, 90) == ([], ["a"])


def test_a_push_may_also_shorten_the_time(watchlist: Watchlist) -> None:
    put(watchlist, row())
    put(watchlist, row(alert=1, unlock=2))
    assert names(watchlist, 3) == (["a"], ["a"])
    assert names(watchlist, 1000) == ([], [])


def test_after_a_push_the_alert_comes_again(watchlist: Watchlist) -> None:
    put(watchlist, row())
    assert names(watchlist, 31) == (["a"], [])
    put(watchlist, row(seen_at=32))
    assert watchlist.counts()["alert"] == 0
    assert names(watchlist, 63) == (["a"], [])


def test_a_write_that_is_no_push_repeats_no_alert(watchlist: Watchlist) -> None:
    put(watchlist, row())
    assert names(watchlist, 31) == (["a"], [])
    put(watchlist, row(reason="because"))
    assert names(watchlist, 32) == ([], [])
    assert watchlist.counts()["alert"] == 1
    assert names(watchlist, 61) == ([], ["a"])


def test_a_new_holder_has_an_alert_of_its_own(watchlist: Watchlist) -> None:
    put(watchlist, row())
    assert names(watchlist, 31) == (["a"], [])
    put(watchlist, row(uuid="other"))
    assert names(watchlist, 31) == (["a"], [])


def test_a_lock_that_is_gone_is_forgotten(watchlist: Watchlist) -> None:
    put(watchlist, row())
    names(watchlist, 31)
    put(watchlist, None)
    assert names(watchlist, 1000) == ([], [])
    assert sum(watchlist.counts().values()) == 0
    assert watchlist.past_alert(10) == []


def test_what_was_handed_out_is_current_until_the_lock_changes(watchlist: Watchlist) -> None:
    put(watchlist, row())
    [item] = watchlist.advance(61).due
    assert watchlist.current(item)
    put(watchlist, row(seen_at=61))
    assert not watchlist.current(item)


def test_a_lock_that_is_due_and_changes_without_a_push_is_handed_out_again(
    watchlist: Watchlist,
) -> None:
    put(watchlist, row())
    names(watchlist, 61)
    put(watchlist, row(reason="because"))
    assert names(watchlist, 62) == ([], ["a"])


def test_the_alert_comes_first_even_if_its_stamp_is_later(watchlist: Watchlist) -> None:
    put(watchlist, row(alert=90))
    assert names(watchlist, 61) == (["a"], ["a"])


def test_a_lock_without_auto_unlock_is_alerted_on_and_never_due(watchlist: Watchlist) -> None:
    put(watchlist, row(unlock=None))
    assert names(watchlist, 31) == (["a"], [])
    assert names(watchlist, 1e12) == ([], [])


def test_broken_locks_are_counted_and_nothing_else(watchlist: Watchlist) -> None:
    put(watchlist, row(alert=None))
    assert names(watchlist, 1e12) == ([], [])
    assert watchlist.counts() == {"ok": 0, "alert": 0, "overdue": 0, "broken": 1}


def test_what_cannot_be_decided_waits_for_a_clock_check(watchlist: Watchlist) -> None:
    put(watchlist, row(found=True))
    assert watchlist.undecided() == 1
    assert names(watchlist, 1000) == ([], [])
    watchlist.reconsider(ClockCheck(Now(1000, WALL + 1000), 0.0))
    assert watchlist.undecided() == 0
    assert names(watchlist, 1000) == (["a"], ["a"])


def test_what_a_check_cannot_decide_waits_for_the_next(watchlist: Watchlist) -> None:
    put(watchlist, row(found=True, signed=False))
    watchlist.reconsider(ClockCheck(Now(10, WALL + 10), None))
    assert watchlist.undecided() == 1
    watchlist.reconsider(ClockCheck(Now(20, WALL + 20), 0.0))
    assert watchlist.undecided() == 0
    assert names(watchlist, 31) == (["a"], [])


def test_it_says_whether_a_clock_check_is_of_use(watchlist: Watchlist) -> None:
    assert not watchlist.waiting()
    put(watchlist, row(seen_at=50, signed=False))
    assert watchlist.waiting()
    watchlist.reconsider(ClockCheck(Now(40, WALL + 40), 0.0))  # from before the lock was seen
    assert watchlist.waiting()
    watchlist.reconsider(ClockCheck(Now(60, WALL + 60), None))  # undecided, but asked
    assert not watchlist.waiting()
    put(watchlist, row(seen_at=70))
    assert not watchlist.waiting()


def test_a_lock_judged_once_is_not_judged_again_by_a_later_check(watchlist: Watchlist) -> None:
    """A wall clock put forward by an hour removes nothing, not even if the members' is as well."""
    put(watchlist, row(found=True))
    watchlist.reconsider(ClockCheck(Now(1, WALL + 1), 0.0))
    watchlist.reconsider(ClockCheck(Now(2, WALL + 3602), 0.0))
    assert names(watchlist, 29) == ([], [])
    assert names(watchlist, 59) == (["a"], [])
    assert names(watchlist, 61) == ([], ["a"])


def test_states_are_counted(watchlist: Watchlist) -> None:
    for name, after in {
        "fine": row("fine", seen_at=50),
        "silent": row("silent", seen_at=10),
        "dead": row("dead"),
        "broken": row("broken", uuid=None),
    }.items():
        put(watchlist, after, name)
    names(watchlist, 61)
    assert watchlist.counts() == {"ok": 1, "alert": 1, "overdue": 1, "broken": 1}


def test_the_longest_past_their_alert_are_listed_first(watchlist: Watchlist) -> None:
    for number in range(5):
        put(watchlist, row(f"{number}", seen_at=-number), f"{number}")
    names(watchlist, 40)
    assert [holder.name for holder in watchlist.past_alert(3)] == ["4", "3", "2"]


def test_pushes_leave_nothing_behind(watchlist: Watchlist) -> None:
    """500 pushes a second for 15 minutes: one entry a lock, not one a push."""
    for second in range(900):
        put(watchlist, row(seen_at=second, alert=1800, unlock=3600))
    assert len(watchlist._heap) == 1


def test_locks_that_come_and_go_leave_nothing_behind(watchlist: Watchlist) -> None:
    for number in range(10_000):
        put(watchlist, row(f"{number}"), f"{number}")
        put(watchlist, None, f"{number}")
    assert len(watchlist._heap) < 2000
    assert len(watchlist._entries) < 2000


def test_clearing_what_was_left_behind_loses_no_lock(watchlist: Watchlist) -> None:
    put(watchlist, row("kept"), "kept")
    for number in range(10_000):
        put(watchlist, row(f"{number}"), f"{number}")
        put(watchlist, None, f"{number}")
    assert names(watchlist, 31) == (["kept"], [])
