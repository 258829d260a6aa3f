"""Requests beyond `test_model`: names, the ticket lease, late requests, watches.

And in stores without fencing tokens, what another client writes to a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lockclient.model.clocks import Deadline, Stamps
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.outcomes import Conflict, Done, NotHolder, Refused, Taken
from lockclient.stores.request_types import Claim, Push, Reclaim, Remove, Unlock
from tests.contract.asking import NAME, Ask, holder, queue, removal, seen, take, taken
from tests.contract.following import told
from tests.contract.subject import Subject
from tests.support.processes import wait_until


def test_two_names_never_meet(ask: Ask) -> None:
    """Locks whose names look alike are two locks."""
    names = ["a", "a/b", "a%2Fb", "a b", "a%20b", "A", "..", "a/", "ü", "u\u0308", "🔒"]
    owners = {name: holder(name) for name in names}
    for owner in owners.values():
        take(ask, owner)
    for name, owner in owners.items():
        found = seen(ask, name).holder
        assert found is not None
        assert found == taken(owner, found.fencing_token)
        assert isinstance(ask(Unlock(name, owner.uuid or "")), Done)
    assert all(seen(ask, name).holder is None for name in names)


@pytest.mark.needs("queue", "lose_tickets")
def test_tickets_are_kept_until_they_are_lost(subject: Subject, ask: Ask) -> None:
    """Before the first one there is nothing to keep; a later ticket is kept by itself."""
    assert subject.store.has_ticket_lease() is False
    assert subject.store.extend_tickets(None, Deadline.after(10)) is False
    take(ask, holder())
    queue(ask, holder())
    assert subject.store.has_ticket_lease()
    assert subject.store.extend_tickets(None, Deadline.after(10)) is True
    assert subject.lose_tickets is not None
    subject.lose_tickets()
    assert subject.store.extend_tickets(None, Deadline.after(10)) is False
    queue(ask, holder())
    assert subject.store.extend_tickets(None, Deadline.after(10)) is True


def test_only_the_read_acquisition_is_reclaimed(subject: Subject, ask: Ask) -> None:
    mine = holder(identity="worker")
    token = take(ask, mine).token
    before = seen(ask).holder
    assert before is not None
    told(Done, ask(Push(NAME, mine.uuid or "", Stamps(250.0, 350.0), token)))
    now = seen(ask).holder
    assert now is not None
    later = replace(now, fencing_token=token + (1 << 40))  # more than a push adds in any store
    for previous in (later, *([] if subject.store.can.fencing else [before])):
        refused = told(Refused, ask(Reclaim(holder(identity="worker"), previous)))
        assert refused.holder == mine.uuid
    told(Taken, ask(Reclaim(holder(identity="worker"), now)))


@pytest.mark.needs("write")
@pytest.mark.parametrize("stamp", ["alert_at", "auto_unlock_at"])
@pytest.mark.parametrize("value", [b"9999.000", b"1.000", b"soon", None])
def test_a_foreign_stamp_stops_a_removal_until_the_next_push(
    subject: Subject, ask: Ask, stamp: str, value: bytes | None
) -> None:
    mine = holder()
    token = take(ask, mine).token
    assert subject.write is not None
    subject.write(NAME, stamp, value)
    gone = told(NotHolder, ask(Remove(removal(mine), (token, token))))
    assert (gone.holder, gone.removal) == (mine.uuid, None)
    touched = seen(ask, uuid=mine.uuid)
    assert touched.holder is not None
    assert touched.removal is None
    stamps = Stamps(250.0, 350.0)
    pushed = ask(Push(NAME, mine.uuid or "", stamps, token))
    if isinstance(pushed, Conflict):
        assert seen(ask).holder == touched.holder
        pushed = ask(Push(NAME, mine.uuid or "", stamps, pushed.revision))
    at = told(Done, pushed).revision
    assert seen(ask).holder == taken(mine.stamped(stamps), token, at)
    assert isinstance(ask(Remove(removal(mine), (at, at))), Done)


Watching = Callable[..., list[WatchEvent]]


@pytest.fixture
def watching(subject: Subject) -> Iterator[Watching]:
    """Watch a lock or a ticket from a revision on; return its events, in a list that grows."""
    watches = []

    def watch(since: int, uuid: str | None = None) -> list[WatchEvent]:
        events: list[WatchEvent] = []
        watches.append(subject.store.watch(WatchTarget(NAME, uuid), since, events.append))
        return events

    yield watch
    for each in watches:
        each.close()


@pytest.mark.needs("watch")
class TestWatching:
    def test_a_watch_misses_nothing_from_its_revision_on(
        self, ask: Ask, watching: Watching
    ) -> None:
        mine, other, another = holder(), holder(), holder("another")
        start = take(ask, mine).token
        ask(Push(NAME, mine.uuid or "", Stamps(250.0, 350.0), start))
        take(ask, another)
        done = told(Done, ask(Unlock(NAME, mine.uuid or "")))
        events = watching(start + 1)
        wait_until(lambda: events, what="the unlock before the watch")
        assert events == [WatchEvent(done.revision)]
        ask(Unlock("another", another.uuid or ""))
        token = take(ask, other).token
        ask(Push(NAME, other.uuid or "", Stamps(250.0, 350.0), token))
        done_again = told(Done, ask(Unlock(NAME, other.uuid or "")))
        wait_until(lambda: len(events) > 2, what="the take and the unlock")
        assert events[1:] == [WatchEvent(token, other.uuid), WatchEvent(done_again.revision)]

    def test_a_ticket_is_deleted_as_the_lock_is_taken(self, ask: Ask, watching: Watching) -> None:
        first, second = holder(), holder()
        take(ask, first)
        queued = queue(ask, second)
        events = watching(queued.revision + 1, second.uuid)
        queue(ask, second)  # a second sending is no news
        ask(Unlock(NAME, first.uuid or ""))
        got = told(Taken, ask(Claim(second, queued.ticket_revision)))
        wait_until(lambda: events, what="the ticket's end")
        assert events == [WatchEvent(got.token)]

    def test_a_closed_watch_is_silent(self, subject: Subject, ask: Ask, watching: Watching) -> None:
        """After `close` only the other watches get events."""
        mine = holder()
        start = take(ask, mine).token
        closed: list[WatchEvent] = []
        subject.store.watch(WatchTarget(NAME), start + 1, closed.append).close()
        events = watching(start + 1)
        ask(Unlock(NAME, mine.uuid or ""))
        wait_until(lambda: events, what="the unlock")
        assert closed == []

    @pytest.mark.needs("guard")
    def test_a_guard_names_one_holder(self, subject: Subject) -> None:
        first, second = subject.store.guard(NAME, "a"), subject.store.guard(NAME, "b")
        assert first.key == second.key
        assert first.value != second.value
