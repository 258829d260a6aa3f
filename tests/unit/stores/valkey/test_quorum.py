"""What so many votes come to: no two majorities, and nobody's silence is a vote."""

from __future__ import annotations

import itertools
import re

import pytest

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.model.holder import MOST_FENCING
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import (
    KeyNames,
    drifted,
    holder_of,
    push_of,
    revision_of,
    token_of,
)
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.voting.quorum import Quorum
from lockclient.stores.valkey.voting.scan_merge import recorded
from lockclient.stores.valkey.wire.connection import Reply

PLACE = ValkeyLocation(tuple(f"h{i}:1" for i in range(5)))


def answers(*kinds: str | None) -> dict[int, Reply]:
    """What each server said; None: nothing yet."""
    return {i: Reply(kind, []) for i, kind in enumerate(kinds) if kind is not None}


@pytest.mark.parametrize(("servers", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(servers: int, majority: int) -> None:
    assert Quorum(servers).majority == majority


def test_nothing_is_decided_that_the_missing_votes_can_change() -> None:
    """All that three and five servers may say, and all ways in which the rest may come."""
    for servers in (1, 3, 5):
        quorum = Quorum(servers)
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


def test_the_holder_is_whom_a_majority_names() -> None:
    """And nobody, when nobody can be it; while that is open, it is not known."""
    quorum = Quorum(5)
    assert quorum.holder(["a", "a", "a"]) == (True, "a")
    assert quorum.holder(["a", "a", None, None]) == (False, None)
    assert quorum.holder(["a", "a", "b", "b", None]) == (True, None)
    assert quorum.holder([None, None, None]) == (True, None)
    assert quorum.holder(["a", "b", None, None]) == (True, None)
    assert quorum.holder([]) == (False, None)


def test_who_has_too_few_is_told_in_the_same_words_each_time() -> None:
    """Whatever order the answers came in; and whether those who are away could make it a lock."""
    said = "a on 2 and b on 2 of 5 servers, and 3 make it a lock"
    for votes in ({"a": 2, "b": 2}, {"b": 2, "a": 2}):
        assert Quorum(5).minority_text(votes, 5) == f"{said}: nobody holds it"
        asked = "1 could not be asked, so that it may be held"
        assert Quorum(5).minority_text(votes, 4) == f"{said}: {asked}"


def test_of_two_records_that_is_listed_which_most_servers_have() -> None:
    """And of as many the smaller one."""
    said = {0: {"a/u": "30 "}, 1: {"a/u": "20 ", "b/u": "9 "}, 2: {"a/u": "20 "}, 3: {"b/u": "8 "}}
    assert recorded(said) == {"a/u": (20, 2), "b/u": (8, 3)}


def test_a_server_s_clock_may_gain_a_hundredth() -> None:
    assert drifted(100.0) == pytest.approx(101.002)


def test_revisions_of_an_acquisition_grow_and_its_token_stays() -> None:
    assert 0 < token_of("a") != token_of("b")
    assert revision_of("a", 7) == token_of("a") + 7
    assert push_of(revision_of("a", 7)) == 7
    assert token_of("a") >= MOST_FENCING  # so that no list shows it as a fencing token


def test_what_another_hand_wrote_is_read_as_far_as_it_goes() -> None:
    """A lock without a number, and none without a uuid."""
    assert holder_of("x", {"hostname": b"h"}) is None
    found = holder_of("x", {"uuid": b"u", "push": b"-1e9", "alert_at": b"5.000"})
    assert found is not None
    assert (found.uuid, found.alert_at, found.stamp_revisions) == ("u", 5.0, (token_of("u"), 0))
    assert found.broken()


def test_names_never_meet() -> None:
    keys = KeyNames("r")
    assert len({keys.record("a/b", "c"), keys.record("a", "b/c"), keys.record("a%2Fb", "c")}) == 3


@pytest.mark.parametrize(
    ("troubles", "kind"),
    [
        ((VoteFailure("down"),) * 3, StoreUnavailable),
        ((VoteFailure("wrong", permanent=True),) * 2 + (VoteFailure("down"),), StoreUnavailable),
        ((VoteFailure("wrong", permanent=True),) * 3, StoreError),
        ((VoteFailure("full", out_of_space=True),) * 3, StoreFull),
    ],
)
def test_too_few_votes_are_told_by_why(
    troubles: tuple[VoteFailure, ...], kind: type[Exception]
) -> None:
    """Whether trying again may help, and of each server what is wrong with it."""
    error = errors.no_majority(PLACE, dict(enumerate(troubles)), unknown=False)
    assert type(error) is kind
    assert "3 of 5 Valkey servers must agree" in str(error)
    assert all(trouble.reason in str(error) for trouble in troubles)
    assert "and did not (" in str(error)


REFUSED = VoteFailure("connection refused")
LATE = VoteFailure("no answer in time")
WAITS = VoteFailure("it is new to this keyspace: it votes in 30 s")
TLS = VoteFailure("TLS: its certificate has another name")
RIGHT = VoteFailure("this user may not do that (No permissions to access a key)", permanent=True)
PASSWORD = VoteFailure("it does not accept user and password", permanent=True)


THREE = "h0:1, h1:1, h2:1"
NETWORK = "Check the network, and that they run."


@pytest.mark.parametrize(
    ("troubles", "ends"),
    [
        ((), f"and did not in time (the time was up). {NETWORK}"),
        ((LATE,) * 3, f"did not in time ({THREE}: no answer in time). {NETWORK}"),
        (
            (REFUSED, LATE, REFUSED),
            "did not in time (h0:1, h2:1: connection refused; h1:1: no answer in time). " + NETWORK,
        ),
        (
            (REFUSED, WAITS, WAITS),
            "it votes in 30 s). If nobody holds a lock of this keyspace, `clustermutex vouch` lets "
            "servers vote at once. Check the network, and that it runs.",
        ),
        ((WAITS,) * 3, "`clustermutex vouch` lets servers vote at once."),
        ((TLS,) * 3, f"did not ({THREE}: TLS: its certificate has another name)."),
        (
            (RIGHT,) * 3,
            "Trying again won't change that. `clustermutex setup-auth` prints the rights of each "
            "program (--client, --unlocker, --dashboard, --operator).",
        ),
        (
            (PASSWORD,) * 3,
            f"did not ({THREE}: it does not accept user and password). Trying again won't change "
            "that.",
        ),
    ],
)
def test_what_to_do_fits_what_is_wrong(troubles: tuple[VoteFailure, ...], ends: str) -> None:
    """Nobody is sent to the network by servers that have answered; what is alike is said once."""
    error = errors.no_majority(PLACE, dict(enumerate(troubles)), unknown=False)
    assert str(error).endswith(ends)


TIMEOUT = TimeoutError("timed out")
CLOSED = ConnectionResetError("the connection was closed by server")


@pytest.mark.parametrize(
    ("tls", "error", "hint"),
    [
        (True, TIMEOUT, ": if there is no TLS at this port, the URL begins with valkey://"),
        (True, CLOSED, ": if there is no TLS at this port, the URL begins with valkey://"),
        (False, CLOSED, ": if there is TLS at this port, the URL begins with valkeys://"),
        (False, TIMEOUT, ""),
        (True, ConnectionRefusedError(111, "Connection refused"), ""),
    ],
)
def test_wrong_tls_is_thought_of(tls: bool, error: Exception, hint: str) -> None:
    """As a line is opened; one that was used fails for another reason."""
    said = errors.classify(error, ValkeyLocation(("h:1",), tls=tls)).reason
    assert (hint in said) if hint else "://" not in said
    assert "://" not in errors.classify(error).reason


SCRIPT = "script: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c, on @user_script:12."


@pytest.mark.parametrize(
    "said",
    [
        "NOPERM No permissions to access a key",
        "NOPERM User worker has no permissions to run the 'eval' command",
        "NOPERM User u has no permissions to run the 'get' command script: on @user_script:12",
        f"ERR The user executing the script can't run this command or subcommand {SCRIPT}",
        "ERR ACL failure in script: The user executing the script can't access at least one of the "
        f"keys mentioned in the command arguments {SCRIPT}",
    ],
)
def test_a_lacking_right_is_told_in_plain_words(said: str) -> None:
    """The server's own behind them, without what is for programs."""
    found = errors.classify(errors.ErrorReply(said))
    assert found.permanent
    assert re.fullmatch(r"this user may not do that \((No |User |The user )[^:]+\)", found.reason)
    assert "2cf24" not in found.reason


@pytest.mark.parametrize(
    ("error", "words", "permanent"),
    [
        (errors.ErrorReply("LOADING Valkey is loading the dataset in memory"), "LOADING", False),
        (errors.ErrorReply("MISCONF errors writing to the AOF file"), "MISCONF", False),
        (errors.ErrorReply("MASTERDOWN Link with MASTER is down"), "MASTERDOWN", False),
        (errors.ErrorReply("BUSY Valkey is busy running a script."), "BUSY", False),
        (errors.ErrorReply("WRONGTYPE Operation against a key"), "another program", True),
        (errors.ErrorReply("READONLY You can't write against a replica."), "READONLY", False),
        (OSError("[SSL: WRONG_VERSION_NUMBER]"), "not talk TLS", False),
        (OSError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "not trusted", False),
        (TimeoutError("timed out"), "no answer in time", False),
        (errors.ErrorReply("ERR max number of clients reached"), "maxclients", False),
    ],
)
def test_what_a_server_says_is_told_in_words(error: Exception, words: str, permanent: bool) -> None:
    found = errors.classify(error)
    assert words in found.reason
    assert found.permanent == permanent
