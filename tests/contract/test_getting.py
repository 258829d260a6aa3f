"""What every store promises to who wants a lock: take, queue, claim, look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Done, Position, Refused, Taken
from lockclient.stores.requests import (
    Claim,
    GetPosition,
    Reclaim,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from tests.contract.asking import NAME, Ask, holder, queue, seen, take, taken, ticket
from tests.contract.following import told
from tests.contract.subject import Subject


class TestTake:
    def test_a_free_lock_is_had_and_a_held_one_is_not(self, ask: Ask) -> None:
        """The first taker has it, the second is told who has."""
        first = holder()
        assert take(ask, first).token > 0
        refused = told(Refused, ask(Take(holder())))
        assert (refused.holder, refused.ticket, refused.uuid_spent) == (first.uuid, False, False)

    @pytest.mark.needs("fencing")
    def test_tokens_rise(self, ask: Ask) -> None:
        """Each holder's fencing token is higher than all before it, a reclaim's, too."""
        tokens = []
        for _ in range(3):
            mine = holder(identity="worker")
            tokens.append(take(ask, mine).token)
            heir = holder(identity="worker")
            reclaimed = told(Taken, ask(Reclaim(heir, replace(mine, fencing_token=tokens[-1]))))
            tokens.append(reclaimed.token)
            ask(Unlock(NAME, heir.uuid or ""))
        assert tokens == sorted(set(tokens))

    def test_sent_twice_it_tells_of_the_first(self, ask: Ask) -> None:
        """A lost answer is found out by asking again: the same token, and whose sending it was."""
        mine = holder()
        first = take(ask, mine)
        assert first.by_earlier_send is False
        assert ask(Take(mine)) == Taken(first.token, by_earlier_send=True)

    @pytest.mark.needs("queue")
    def test_it_does_not_jump_the_line(self, ask: Ask) -> None:
        """A lock that is free for a moment belongs to the line."""
        first, waiter = holder(), holder()
        take(ask, first)
        queue(ask, waiter)
        ask(Unlock(NAME, first.uuid or ""))
        refused = told(Refused, ask(Take(holder())))
        assert refused.holder is None

    def test_what_was_written_is_read(self, ask: Ask) -> None:
        """A reader sees every fact of the holder, and the token that it was given."""
        texts = dict.fromkeys(("thread", "identity", "process", "client", "backtrace"), "a\nb ✓")
        mine = holder(reason='"\\', needs=("x",), **texts)
        token = take(ask, mine).token
        found = seen(ask)
        assert found.holder == taken(mine, token)
        assert found.revision >= token

    def test_two_names_never_meet(self, ask: Ask) -> None:
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


@pytest.mark.needs("queue")
class TestLine:
    def test_a_free_lock_is_taken_at_once(self, ask: Ask) -> None:
        """Who would queue for a free lock has it, and no ticket."""
        mine = holder()
        assert isinstance(ask(TakeOrQueue(mine, ticket(mine))), Taken)
        assert seen(ask).waiters == ()

    def test_each_stands_behind_the_one_before(self, ask: Ask) -> None:
        """The head has no predecessor, everyone else the one that came just before."""
        first, second, third = holder(), holder(), holder()
        take(ask, first)
        head = queue(ask, second)
        behind = queue(ask, third)
        assert (head.predecessor, head.holder, head.ambiguous) == (None, first.uuid, False)
        assert (behind.predecessor, behind.holder) == (second.uuid, first.uuid)
        assert head.ticket_revision < behind.ticket_revision
        line = seen(ask).waiters
        assert [waiter.uuid for waiter in line] == [second.uuid, third.uuid]
        assert line[0] == replace(ticket(second), revision=head.ticket_revision)

    def test_queueing_twice_keeps_the_place(self, ask: Ask) -> None:
        """The second sending finds the ticket of the first, also with others behind it by now."""
        take(ask, holder())
        first, second, third = holder(), holder(), holder()
        queue(ask, first)
        place = queue(ask, second)
        again = queue(ask, second)
        assert (again.ticket_revision, again.predecessor) == (place.ticket_revision, first.uuid)
        queue(ask, third)
        unsure = queue(ask, second)
        assert (unsure.ticket_revision, unsure.ambiguous) == (place.ticket_revision, True)
        position = told(Position, ask(GetPosition(NAME, second.uuid or "", place.ticket_revision)))
        assert (position.ticket, position.predecessor) == (True, first.uuid)

    def test_who_has_the_lock_does_not_queue_behind_itself(self, ask: Ask) -> None:
        """The first sending took the lock, the second finds that out and leaves no ticket."""
        mine = holder()
        got = told(Taken, ask(TakeOrQueue(mine, ticket(mine))))
        assert ask(TakeOrQueue(mine, ticket(mine))) == Taken(got.token, by_earlier_send=True)
        assert seen(ask).waiters == ()

    def test_the_head_claims(self, ask: Ask) -> None:
        """When the lock is free the head has it for its ticket; sent twice it is had once."""
        first, head = holder(), holder()
        take(ask, first)
        place = queue(ask, head).ticket_revision
        held = told(Refused, ask(Claim(head, place)))
        assert (held.holder, held.ticket) == (first.uuid, True)
        ask(Unlock(NAME, first.uuid or ""))
        got = told(Taken, ask(Claim(head, place)))
        assert seen(ask).waiters == ()
        assert ask(Claim(head, place)) == Taken(got.token, by_earlier_send=True)

    @pytest.mark.needs("lose_tickets")
    def test_a_lost_ticket_claims_nothing(self, subject: Subject, ask: Ask) -> None:
        """Whose time in line ran out finds out, even with a new ticket under the same uuid."""
        first, head = holder(), holder()
        take(ask, first)
        place = queue(ask, head).ticket_revision
        assert subject.store.has_ticket_lease()
        assert subject.store.keep_tickets(None, Deadline.after(10)) is True
        assert subject.lose_tickets is not None
        subject.lose_tickets()
        assert subject.store.keep_tickets(None, Deadline.after(10)) is False
        ask(Unlock(NAME, first.uuid or ""))
        refused = told(Refused, ask(Claim(head, place)))
        assert (refused.holder, refused.ticket) == (None, False)
        position = told(Position, ask(GetPosition(NAME, head.uuid or "", place)))
        assert position.ticket is False
        take(ask, first)
        assert queue(ask, head).ticket_revision > place
        assert subject.store.keep_tickets(None, Deadline.after(10)) is True
        ask(Unlock(NAME, first.uuid or ""))
        assert isinstance(ask(Claim(head, place)), Refused)

    def test_nobody_has_a_place_in_line_before_the_first_ticket(self, subject: Subject) -> None:
        """There is nothing to keep, and a ticket costs more than one request."""
        assert subject.store.has_ticket_lease() is False
        assert subject.store.keep_tickets(None, Deadline.after(10)) is False

    def test_stepping_up(self, subject: Subject, ask: Ask) -> None:
        """The cheap look tells a predecessor that got the lock from one that gave up."""
        first, second, third, fourth = (holder() for _ in range(4))
        take(ask, first)
        place = queue(ask, second).ticket_revision
        third_place = queue(ask, third).ticket_revision
        fourth_place = queue(ask, fourth).ticket_revision
        ask(Unlock(NAME, first.uuid or ""))
        got = told(Taken, ask(Claim(second, place)))
        head = told(
            Position, ask(GetPosition(NAME, third.uuid or "", third_place, second.uuid, got.token))
        )
        assert (head.ticket, head.predecessor, head.holder) == (True, None, second.uuid)
        assert head.ambiguous is False
        gone = told(Done, ask(Withdraw(NAME, third.uuid or "")))
        unsure = told(
            Position,
            ask(GetPosition(NAME, fourth.uuid or "", fourth_place, third.uuid, gone.revision)),
        )
        assert unsure.ambiguous is True
        full = told(Position, ask(GetPosition(NAME, fourth.uuid or "", fourth_place)))
        assert (full.ticket, full.predecessor, full.holder) == (True, None, second.uuid)
