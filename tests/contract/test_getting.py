"""What `test_model` leaves out of the requests for a lock: tokens, names, the tickets' lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Done, Taken
from lockclient.stores.requests import (
    Reclaim,
    Unlock,
)
from tests.contract.asking import NAME, Ask, holder, queue, seen, take, taken
from tests.contract.following import told
from tests.contract.subject import Subject


class TestTake:
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
    @pytest.mark.needs("lose_tickets")
    def test_tickets_are_kept_until_they_are_lost(self, subject: Subject, ask: Ask) -> None:
        """A later ticket is kept by itself. (What a lost one is worth: `test_model`.)"""
        take(ask, holder())
        queue(ask, holder())
        assert subject.store.has_ticket_lease()
        assert subject.store.keep_tickets(None, Deadline.after(10)) is True
        assert subject.lose_tickets is not None
        subject.lose_tickets()
        assert subject.store.keep_tickets(None, Deadline.after(10)) is False
        queue(ask, holder())
        assert subject.store.keep_tickets(None, Deadline.after(10)) is True

    def test_nobody_has_a_place_in_line_before_the_first_ticket(self, subject: Subject) -> None:
        """There is nothing to keep, and a ticket costs more than one request."""
        assert subject.store.has_ticket_lease() is False
        assert subject.store.keep_tickets(None, Deadline.after(10)) is False
