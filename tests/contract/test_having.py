"""What every store promises to who has a lock, removes one, or watches one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import ANY

import pytest

from lockclient.store import (
    Claim,
    Done,
    Event,
    Gone,
    Push,
    Reclaim,
    Refused,
    Remove,
    Request,
    Taken,
    Target,
    Unlock,
    Withdraw,
)
from lockclient.timing import Stamps
from tests.contract.asking import NAME, Ask, holder, queue, removal, seen, take
from tests.contract.conftest import Subject
from tests.processes import wait_until


class TestHolding:
    def test_a_push_moves_the_stamps_and_nothing_else(self, ask: Ask) -> None:
        """Its stamps are read afterwards; the token stays."""
        mine = holder()
        token = take(ask, mine).token
        stamps = Stamps(150.0, 250.0, 350.125)
        pushed = ask(Push(NAME, mine.uuid or "", stamps))
        assert isinstance(pushed, Done)
        found = seen(ask)
        assert found.holder == replace(mine.stamped(stamps), fencing_token=token)
        assert token < found.stamp_revision <= pushed.revision

    def test_a_push_that_comes_late_changes_nothing(self, ask: Ask) -> None:
        """After one that was made later; a clock that was set back is another matter."""
        mine = holder()
        take(ask, mine)
        later, earlier = Stamps(150.0, 250.0, 350.0), Stamps(140.0, 240.0, 340.0)
        for stamps, newest, written in (
            (later, True, later),
            (earlier, True, later),
            (later, True, later),
            (earlier, False, earlier),
            (later, True, later),
        ):
            assert isinstance(ask(Push(NAME, mine.uuid or "", stamps, newest)), Done)
            assert seen(ask).holder == replace(mine.stamped(written), fencing_token=ANY)

    def test_a_push_that_comes_late_does_not_bring_a_lock_back(self, ask: Ask) -> None:
        """Nor takes it from the next holder."""
        mine, other = holder(), holder()
        take(ask, mine)
        ask(Unlock(NAME, mine.uuid or ""))
        late = Push(NAME, mine.uuid or "", Stamps(150.0, 250.0, 350.0), newest=True)
        assert ask(late) == Gone(None, None)
        take(ask, other)
        assert ask(late) == Gone(other.uuid, None)

    def test_a_push_without_an_end_writes_none(self, ask: Ask) -> None:
        """A lock that is never auto-unlocked has no `auto_unlock_at`, before and after."""
        mine = holder(auto_unlock_at=None)
        take(ask, mine)
        ask(Push(NAME, mine.uuid or "", Stamps(150.0, 250.0, None)))
        found = seen(ask)
        assert found.holder is not None
        assert (found.holder.auto_unlock_at, found.stamp_revision) == (None, 0)

    @pytest.mark.parametrize(
        "make",
        [
            lambda uuid: Push(NAME, uuid, Stamps(1.0, 2.0, 3.0)),
            lambda uuid: Unlock(NAME, uuid),
        ],
        ids=["push", "unlock"],
    )
    def test_who_lost_the_lock_is_told_to_whom_and_why(
        self, ask: Ask, make: Callable[[str], Request]
    ) -> None:
        """Push and unlock of a lock that was removed change nothing and bring the record."""
        mine, other = holder(), holder()
        take(ask, mine)
        record = removal(mine)
        assert isinstance(ask(Remove(record, None)), Done)
        gone = ask(make(mine.uuid or ""))
        assert isinstance(gone, Gone)
        assert gone.holder is None
        assert gone.removal is not None
        assert gone.removal.facts() == record.facts()
        take(ask, other)
        gone = ask(make(mine.uuid or ""))
        assert isinstance(gone, Gone)
        assert gone.holder == other.uuid
        still = seen(ask).holder
        assert still is not None
        assert (still.uuid, still.alive_at) == (other.uuid, other.alive_at)

    def test_an_unlock_leaves_nothing(self, ask: Ask) -> None:
        """Afterwards nobody holds the lock; a second unlock says so."""
        mine = holder()
        take(ask, mine)
        assert isinstance(ask(Unlock(NAME, mine.uuid or "")), Done)
        assert seen(ask).holder is None
        gone = ask(Unlock(NAME, mine.uuid or ""))
        assert isinstance(gone, Gone)
        assert (gone.holder, gone.removal, gone.resent) == (None, None, False)

    def test_withdrawing_leaves_neither_lock_nor_ticket(self, ask: Ask) -> None:
        """As holder, as waiter, as neither, and twice; nobody else's things are touched."""
        mine, waiter, other = holder(), holder(), holder()
        take(ask, mine)
        queue(ask, waiter)
        queue(ask, other)
        for _ in range(2):
            assert isinstance(ask(Withdraw(NAME, "nobody")), Done)
            assert isinstance(ask(Withdraw(NAME, waiter.uuid or "")), Done)
            found = seen(ask)
            assert found.holder is not None
            assert [each.uuid for each in found.waiters] == [other.uuid]
        assert isinstance(ask(Withdraw(NAME, mine.uuid or "")), Done)
        found = seen(ask)
        assert found.holder is None
        assert [each.uuid for each in found.waiters] == [other.uuid]

    def test_only_the_same_identity_reclaims(self, ask: Ask) -> None:
        """The heir of a dead holder has its lock; nothing of the dead one's facts stays."""
        dead = holder(identity="worker", thread="main", reason="old", auto_unlock_at=9.0)
        dead = replace(dead, fencing_token=take(ask, dead).token)
        for stranger, previous in [
            (holder(identity="other"), dead),
            (holder(identity="worker"), replace(dead, uuid="another")),
            (holder(identity="worker"), replace(dead, fencing_token=1)),
        ]:
            refused = ask(Reclaim(stranger, previous))
            assert isinstance(refused, Refused)
            assert refused.holder == dead.uuid
        heir = holder(identity="worker", auto_unlock_at=None, pid=None)
        taken = ask(Reclaim(heir, dead))
        assert isinstance(taken, Taken)
        assert seen(ask).holder == replace(heir, fencing_token=taken.token)
        assert ask(Reclaim(heir, dead)) == Taken(taken.token, earlier=True)


class TestRemoving:
    def test_a_push_that_got_in_first_wins(self, ask: Ask) -> None:
        """A remover that saw older stamps removes nothing, and leaves no record."""
        mine = holder()
        token = take(ask, mine).token
        ask(Push(NAME, mine.uuid or "", Stamps(150.0, 250.0, 350.0)))
        gone = ask(Remove(removal(mine), token))
        assert isinstance(gone, Gone)
        assert (gone.holder, gone.removal) == (mine.uuid, None)
        found = seen(ask, uuid=mine.uuid)
        assert found.holder is not None
        assert found.removal is None

    def test_the_record_comes_with_the_removal(self, ask: Ask) -> None:
        """Sent twice it is done once; a second remover is told that it was not him."""
        mine = holder(reason="why not ✓", backtrace="  File x")
        token = take(ask, mine).token
        mine = replace(mine, fencing_token=token)
        record = removal(mine)
        assert isinstance(ask(Remove(record, token)), Done)
        found = seen(ask, uuid=mine.uuid)
        assert found.holder is None
        assert found.removal is not None
        assert found.removal.facts() == record.facts()
        assert isinstance(ask(Remove(record, token)), Done)
        assert isinstance(ask(Remove(replace(record, removed_by="unlocker-2"), token)), Gone)


class TestWatching:
    def test_nothing_is_missed_from_the_revision_on(self, subject: Subject, ask: Ask) -> None:
        """What happened between the look and the watch is told, too, in order."""
        mine, other = holder(), holder()
        start = take(ask, mine).token
        done = ask(Unlock(NAME, mine.uuid or ""))
        assert isinstance(done, Done)
        events: list[Event] = []
        watch = subject.store.watch(Target(NAME), start + 1, events.append)
        wait_until(lambda: events, what="the unlock before the watch")
        assert events == [Event(done.revision)]
        token = take(ask, other).token
        wait_until(lambda: len(events) > 1, what="the take")
        assert events[1:] == [Event(token, other.uuid)]
        watch.close()

    def test_a_push_is_no_event(self, subject: Subject, ask: Ask) -> None:
        """Only the holder is watched, not its stamps; another lock's holder neither."""
        mine, other = holder(), holder("another")
        start = take(ask, mine).token
        events: list[Event] = []
        watch = subject.store.watch(Target(NAME), start + 1, events.append)
        ask(Push(NAME, mine.uuid or "", Stamps(150.0, 250.0, 350.0)))
        take(ask, other)
        ask(Unlock("another", other.uuid or ""))
        done = ask(Unlock(NAME, mine.uuid or ""))
        assert isinstance(done, Done)
        wait_until(lambda: events, what="the unlock")
        assert events == [Event(done.revision)]
        watch.close()

    def test_a_ticket_goes_as_the_lock_comes(self, subject: Subject, ask: Ask) -> None:
        """Who watches its predecessor's ticket is told the revision at which that got the lock."""
        first, second = holder(), holder()
        take(ask, first)
        queued = queue(ask, second)
        events: list[Event] = []
        target = Target(NAME, second.uuid)
        watch = subject.store.watch(target, queued.revision + 1, events.append)
        queue(ask, second)  # a second sending is no news
        ask(Unlock(NAME, first.uuid or ""))
        taken = ask(Claim(second, queued.ticket_revision))
        assert isinstance(taken, Taken)
        wait_until(lambda: events, what="the ticket's end")
        assert events == [Event(taken.token)]
        watch.close()

    def test_a_closed_watch_is_silent(self, subject: Subject, ask: Ask) -> None:
        """After `close` only the other watches are told."""
        mine = holder()
        start = take(ask, mine).token
        closed: list[Event] = []
        open_: list[Event] = []
        subject.store.watch(Target(NAME), start + 1, closed.append).close()
        watch = subject.store.watch(Target(NAME), start + 1, open_.append)
        ask(Unlock(NAME, mine.uuid or ""))
        wait_until(lambda: open_, what="the unlock")
        assert closed == []
        watch.close()

    def test_a_guard_is_one_holder_s(self, subject: Subject) -> None:
        """Two holders of one lock have two guards on one key."""
        first, second = subject.store.guard(NAME, "a"), subject.store.guard(NAME, "b")
        assert first.key == second.key
        assert first.value != second.value
