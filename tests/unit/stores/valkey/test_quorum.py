"""Counting votes: no two majorities, and silence is no vote."""

from __future__ import annotations

import itertools

from lockclient.stores.valkey.listing import most_recorded
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.voting.quorum import Quorum


def answers(*kinds: str | None) -> dict[int, Reply]:
    """Return the servers' answers; None: none yet."""
    return {i: Reply(kind, []) for i, kind in enumerate(kinds) if kind is not None}


def test_missing_votes_can_not_change_a_decision_of_more_than_half() -> None:
    for servers, majority in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3)):
        quorum = Quorum(servers)
        assert quorum.majority == majority
        for said in itertools.product(("taken", "held", None), repeat=servers):
            some = answers(*said)
            missing = [i for i, kind in enumerate(said) if kind is None]
            ends = {
                quorum.agrees(
                    {**some, **{i: Reply(k, []) for i, k in zip(missing, rest, strict=True)}},
                    "taken",
                )
                for rest in itertools.product(("taken", "held"), repeat=len(missing))
            }
            assert quorum.decides("taken")(some) == (len(ends) == 1)
            assert quorum.can_agree(some, "taken") == (True in ends)


def test_the_holder_is_the_one_that_a_majority_names() -> None:
    quorum = Quorum(5)
    assert quorum.holder(["a", "a", "a"]) == (True, "a")
    assert quorum.holder(["a", "a", None, None]) == (False, None)
    assert quorum.holder(["a", "a", "b", "b", None]) == (True, None)
    assert quorum.holder([None, None, None]) == (True, None)
    assert quorum.holder(["a", "b", None, None]) == (True, None)
    assert quorum.holder([]) == (False, None)


def test_the_text_on_split_votes_does_not_depend_on_their_order() -> None:
    said = "a on 2 and b on 2 of 5 servers, and 3 make it a lock"
    for votes in ({"a": 2, "b": 2}, {"b": 2, "a": 2}):
        assert Quorum(5).minority_text(votes, 5) == f"{said}: nobody holds it"
        asked = "1 could not be asked, so that it may be held"
        assert Quorum(5).minority_text(votes, 4) == f"{said}: {asked}"


def test_the_record_that_most_servers_have_is_listed() -> None:
    said = {0: {"a/u": "30 "}, 1: {"a/u": "20 ", "b/u": "9 "}, 2: {"a/u": "20 "}, 3: {"b/u": "8 "}}
    assert most_recorded(said) == {"a/u": (20, 2), "b/u": (8, 3)}
