"""What `test_model` leaves out of a holder's requests; and what a watch of one lock tells.

That is what another client writes to a lock and, in stores without fencing tokens, late requests of
acquisitions that are over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.stores.outcomes import Conflict, Done, NotHolder, Refused, Taken
from lockclient.stores.protocol import WatchEvent, WatchTarget
from lockclient.stores.requests import Claim, Push, Reclaim, Remove, Request, Take, Unlock, Withdraw
from tests.contract.asking import (
    NAME,
    NEVER,
    Ask,
    holder,
    queue,
    removal,
    seen,
    take,
    taken,
)
from tests.contract.subject import Subject
from tests.support.processes import wait_until


def taken_and_written(
    subject: Subject, ask: Ask, stamp: str, value: bytes | None
) -> tuple[Holder, int]:
    """Take the lock, and have another hand write one of its stamps; return holder and token."""
    mine = holder()
    token = take(ask, mine).token
    assert subject.write is not None
    subject.write(NAME, stamp, value)
    return mine, token


class TestHolding:
    @pytest.mark.parametrize("mark", [False, True])
    def test_withdrawing_leaves_no_lock(self, ask: Ask, mark: bool) -> None:
        """Its own is gone, another one's is not touched, and the name is free afterwards."""
        mine, other = holder(), holder()
        token = take(ask, mine).token
        for _ in range(2):
            assert isinstance(ask(Withdraw(NAME, "nobody", mark)), Done)
            found = seen(ask).holder
            assert found is not None
            assert (found.uuid, found.fencing_token) == (mine.uuid, token)
            assert found.subkeys() == mine.subkeys()
        for _ in range(2):
            assert isinstance(ask(Withdraw(NAME, mine.uuid or "", mark)), Done)
            assert seen(ask).holder is None
        take(ask, other)
        assert isinstance(ask(Withdraw(NAME, mine.uuid or "", mark)), Done)
        found = seen(ask).holder
        assert found is not None
        assert found.uuid == other.uuid

    @pytest.mark.parametrize("attempt", [Take, lambda heir: Reclaim(heir, replace(heir, uuid="x"))])
    def test_a_uuid_that_was_withdrawn_or_removed_takes_nothing(
        self, ask: Ask, attempt: Callable[[Holder], Request]
    ) -> None:
        """However often and late its requests arrive."""
        withdrawn, removed = holder(), holder()
        ask(Withdraw(NAME, withdrawn.uuid or "", tombstone=True))
        assert isinstance(ask(attempt(withdrawn)), Refused)
        take(ask, removed)
        ask(Remove(removal(removed), None))
        assert isinstance(ask(attempt(removed)), Refused)
        assert seen(ask).holder is None

    def test_only_the_acquisition_that_was_looked_at_is_reclaimed(self, ask: Ask) -> None:
        """The heir of a dead holder has its lock; nothing of the dead one's facts stays."""
        dead = holder(identity="worker", thread="main", reason="old")
        dead = replace(dead, fencing_token=take(ask, dead).token)
        later = dead.fencing_token + (1 << 40)  # more than a push adds in any store
        for previous in (replace(dead, uuid="another"), replace(dead, fencing_token=later)):
            refused = ask(Reclaim(holder(identity="worker"), previous))
            assert isinstance(refused, Refused)
            assert refused.holder == dead.uuid
        heir = holder(identity="worker", pid=None, **NEVER)
        got = ask(Reclaim(heir, dead))
        assert isinstance(got, Taken)
        assert seen(ask).holder == taken(heir, got.token)
        assert ask(Reclaim(heir, dead)) == Taken(got.token, by_earlier_send=True)


class TestLatePushes:
    """Who came after whom is told by revisions: times are what somebody's clock says."""

    @pytest.mark.needs("write")
    @pytest.mark.parametrize("value", [b"9999.000", b"1.000", b"soon"])
    def test_after_another_hand_s_write_it_is_adopted_and_pushed_again(
        self, subject: Subject, ask: Ask, value: bytes
    ) -> None:
        """A later time by hand, or by another clock, silences nobody."""
        mine, token = taken_and_written(subject, ask, "alert_at", value)
        touched = seen(ask).holder
        assert touched is not None
        stamps = Stamps(250.0, 350.0)
        moved = ask(Push(NAME, mine.uuid or "", stamps, token))
        assert moved == Conflict(touched.stamp_revisions[0])
        assert seen(ask).holder == touched
        assert isinstance(moved, Conflict)
        pushed = ask(Push(NAME, mine.uuid or "", stamps, moved.revision))
        assert isinstance(pushed, Done)
        assert seen(ask).holder == taken(mine.stamped(stamps), token, pushed.revision)

    @pytest.mark.needs("write")
    @pytest.mark.parametrize(
        ("stamp", "value"), [("alert_at", None), ("auto_unlock_at", None), ("auto_unlock_at", b"9")]
    )
    def test_what_else_was_done_to_stamps_is_made_good(
        self, subject: Subject, ask: Ask, stamp: str, value: bytes | None
    ) -> None:
        """By the next push, or where every write moves the lock's version, the one after it."""
        mine, token = taken_and_written(subject, ask, stamp, value)
        assert seen(ask).holder != taken(mine, token)
        stamps = Stamps(250.0, 350.0)
        pushed = ask(Push(NAME, mine.uuid or "", stamps, token))
        if isinstance(pushed, Conflict):
            pushed = ask(Push(NAME, mine.uuid or "", stamps, pushed.revision))
        assert isinstance(pushed, Done)
        assert seen(ask).holder == taken(mine.stamped(stamps), token, pushed.revision)


class TestRemoving:
    @pytest.mark.needs("write")
    @pytest.mark.parametrize("stamp", ["alert_at", "auto_unlock_at"])
    @pytest.mark.parametrize("value", [b"9999.000", b"1.000", None])
    def test_so_does_another_hand_that_wrote_one_stamp_alone(
        self, subject: Subject, ask: Ask, stamp: str, value: bytes | None
    ) -> None:
        """A foreign client's push, a person who gives it more time, or less."""
        mine, token = taken_and_written(subject, ask, stamp, value)
        self.refused(ask, mine, (token, token))
        found = seen(ask).holder
        assert found is not None
        assert isinstance(ask(Remove(removal(mine), found.stamp_revisions)), Done)

    @pytest.mark.needs("write")
    def test_a_lock_without_an_end_can_be_compared_too(self, ask: Ask, subject: Subject) -> None:
        """A stamp that is not there has revision 0."""
        mine = holder(**NEVER)
        token = take(ask, mine).token
        assert subject.write is not None
        subject.write(NAME, "auto_unlock_at", b"9.000")
        self.refused(ask, mine, (token, 0))
        subject.write(NAME, "auto_unlock_at", None)
        found = seen(ask).holder
        assert found is not None
        assert found.stamp_revisions[1] == 0
        assert isinstance(ask(Remove(removal(mine), found.stamp_revisions)), Done)

    def refused(self, ask: Ask, mine: Holder, stamp_revisions: tuple[int, int]) -> None:
        """A remover that saw the stamps at these revisions removes nothing."""
        gone = ask(Remove(removal(mine), stamp_revisions))
        assert isinstance(gone, NotHolder)
        assert (gone.holder, gone.removal) == (mine.uuid, None)
        found = seen(ask, uuid=mine.uuid)
        assert found.holder is not None
        assert found.removal is None


@pytest.mark.needs("watch")
class TestWatching:
    def test_nothing_is_missed_from_the_revision_on(self, subject: Subject, ask: Ask) -> None:
        """What happened between the look and the watch is told, too, in order."""
        mine, other = holder(), holder()
        start = take(ask, mine).token
        done = ask(Unlock(NAME, mine.uuid or ""))
        assert isinstance(done, Done)
        events: list[WatchEvent] = []
        watch = subject.store.watch(WatchTarget(NAME), start + 1, events.append)
        wait_until(lambda: events, what="the unlock before the watch")
        assert events == [WatchEvent(done.revision)]
        token = take(ask, other).token
        wait_until(lambda: len(events) > 1, what="the take")
        assert events[1:] == [WatchEvent(token, other.uuid)]
        watch.close()

    def test_a_push_is_no_event(self, subject: Subject, ask: Ask) -> None:
        """Only the holder is watched, not its stamps; another lock's holder neither."""
        mine, other = holder(), holder("another")
        start = take(ask, mine).token
        events: list[WatchEvent] = []
        watch = subject.store.watch(WatchTarget(NAME), start + 1, events.append)
        ask(Push(NAME, mine.uuid or "", Stamps(250.0, 350.0), start))
        take(ask, other)
        ask(Unlock("another", other.uuid or ""))
        done = ask(Unlock(NAME, mine.uuid or ""))
        assert isinstance(done, Done)
        wait_until(lambda: events, what="the unlock")
        assert events == [WatchEvent(done.revision)]
        watch.close()

    def test_a_ticket_goes_as_the_lock_comes(self, subject: Subject, ask: Ask) -> None:
        """Who watches its predecessor's ticket is told the revision at which that got the lock."""
        first, second = holder(), holder()
        take(ask, first)
        queued = queue(ask, second)
        events: list[WatchEvent] = []
        target = WatchTarget(NAME, second.uuid)
        watch = subject.store.watch(target, queued.revision + 1, events.append)
        queue(ask, second)  # a second sending is no news
        ask(Unlock(NAME, first.uuid or ""))
        got = ask(Claim(second, queued.ticket_revision))
        assert isinstance(got, Taken)
        wait_until(lambda: events, what="the ticket's end")
        assert events == [WatchEvent(got.token)]
        watch.close()

    def test_a_closed_watch_is_silent(self, subject: Subject, ask: Ask) -> None:
        """After `close` only the other watches are told."""
        mine = holder()
        start = take(ask, mine).token
        closed: list[WatchEvent] = []
        open_: list[WatchEvent] = []
        subject.store.watch(WatchTarget(NAME), start + 1, closed.append).close()
        watch = subject.store.watch(WatchTarget(NAME), start + 1, open_.append)
        ask(Unlock(NAME, mine.uuid or ""))
        wait_until(lambda: open_, what="the unlock")
        assert closed == []
        watch.close()

    @pytest.mark.needs("guard")
    def test_a_guard_is_one_holder_s(self, subject: Subject) -> None:
        """Two holders of one lock have two guards on one key."""
        first, second = subject.store.guard(NAME, "a"), subject.store.guard(NAME, "b")
        assert first.key == second.key
        assert first.value != second.value
