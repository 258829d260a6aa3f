"""Errors of Valkey servers: their meaning and their text."""

from __future__ import annotations

import re

import pytest

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.location import ValkeyLocation

PLACE = ValkeyLocation(tuple(f"h{i}:1" for i in range(5)))

DOWN = VoteFailure("down")
FULL = VoteFailure("full", out_of_space=True)
WRONG = VoteFailure("wrong", permanent=True)
REFUSED = errors.classify(ConnectionRefusedError(111, "Connection refused"))
LATE = errors.NO_ANSWER
WAITS = VoteFailure("it is new: it votes in 30 s", advice=errors.VOUCH_ADVICE)
TLS = VoteFailure("TLS: its certificate has another name")
RIGHT = errors.classify(errors.ErrorReply("NOPERM No permissions to access a key"))
PASSWORD = VoteFailure("it does not accept user and password", permanent=True)
THREE = "h0:1, h1:1, h2:1"
NETWORK = "Check the network, and that the server runs."


@pytest.mark.parametrize(
    ("troubles", "kind", "ends"),
    [
        ((), StoreUnavailable, f"and did not (the time was up). {NETWORK}"),
        ((LATE,) * 3, StoreUnavailable, f"did not ({THREE}: no answer). {NETWORK}"),
        (
            (REFUSED, LATE, REFUSED),
            StoreUnavailable,
            "did not (h0:1, h2:1: connection refused; h1:1: no answer). " + NETWORK,
        ),
        (
            (REFUSED, WAITS, WAITS),
            StoreUnavailable,
            f"it votes in 30 s). {NETWORK} If nobody holds a lock of this keyspace, `clustermutex "
            "vouch` lets servers vote at once.",
        ),
        ((WAITS,) * 3, StoreUnavailable, "`clustermutex vouch` lets servers vote at once."),
        (
            (TLS,) * 3,
            StoreUnavailable,
            f"did not ({THREE}: TLS: its certificate has another name).",
        ),
        (
            (RIGHT,) * 3,
            StoreError,
            "Trying again won't change that. `clustermutex setup-auth` prints the rights of each "
            "program (--client, --unlocker, --dashboard, --operator).",
        ),
        (
            (PASSWORD,) * 3,
            StoreError,
            f"did not ({THREE}: it does not accept user and password). Trying again won't change "
            "that.",
        ),
        ((WRONG, WRONG, DOWN), StoreUnavailable, ""),
        ((FULL,) * 3, StoreFull, ""),
    ],
)
def test_too_few_votes_name_the_causes_and_the_remedy(
    troubles: tuple[VoteFailure, ...], kind: type[Exception], ends: str
) -> None:
    error = errors.no_majority(PLACE, dict(enumerate(troubles)), unknown=False)
    assert type(error) is kind
    assert "3 of 5 Valkey servers must agree, and did not" in str(error)
    assert all(trouble.reason in str(error) for trouble in troubles)
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
    """The hint is for new connections; one that was used fails for another reason."""
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
def test_a_missing_right_is_described(said: str) -> None:
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
        (TimeoutError("timed out"), "no answer", False),
        (errors.ErrorReply("ERR max number of clients reached"), "maxclients", False),
    ],
)
def test_each_error_of_a_server_is_described(error: Exception, words: str, permanent: bool) -> None:
    found = errors.classify(error)
    assert words in found.reason
    assert found.permanent == permanent
