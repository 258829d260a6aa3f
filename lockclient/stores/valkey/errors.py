"""Errors of servers: the reason of a missing vote, in words, and our exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import valkey.exceptions as valkey_py

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.stores.common.network_errors import (
    ADVICE,
    NOBODY_THERE,
    OF_THIS_PROCESS,
    Reason,
    reason_of,
)
from lockclient.stores.valkey.location import ValkeyLocation

Unanswered = (OSError, valkey_py.ConnectionError, valkey_py.TimeoutError, valkey_py.InvalidResponse)
"""Errors of a connection; what was sent by it may be executed, now or later."""


class ErrorReply(valkey_py.ResponseError):
    """An error reply of a server, with its full text."""


FAILED: Final = (ErrorReply, StoreError, *Unanswered)
"""All errors of a request."""


class UnknownScript(ErrorReply):
    """The server does not know a script by its hash."""


class VoteFailure(NamedTuple):
    """The reason why a server has no vote now.

    Attributes:
        reason: in few words.
        permanent: trying again won't cure it.
        out_of_space: the server lacks space.
        by_connection: it concerns all requests of this connection, and not one key or script:
            another server may be at this address by now, or the user may have changed.
        foreign_key: the key has a value of another program.
        unanswered: the request was sent, and may be executed, now or later.
        advice: what people can do, where the reason does not say it.
    """

    reason: str
    permanent: bool = False
    out_of_space: bool = False
    by_connection: bool = False
    foreign_key: bool = False
    unanswered: bool = False
    advice: str = ""


VOUCH_ADVICE: Final = (
    "If nobody holds a lock of this keyspace, `clustermutex vouch` lets servers vote at once."
)
_RIGHTS_ADVICE: Final = (
    "`clustermutex setup-auth` prints the rights of each program (--client, --unlocker, "
    "--dashboard, --operator)."
)
_NETWORK_ADVICE: Final = "Check the network, and that the server runs."
_NETWORK: Final = (*NOBODY_THERE, Reason.NO_CONNECTION, Reason.NO_ANSWER, Reason.CLOSED)
NO_ANSWER: Final = VoteFailure(Reason.NO_ANSWER.value, advice=_NETWORK_ADVICE)
NO_CONNECTION: Final = VoteFailure(Reason.NO_CONNECTION.value, advice=_NETWORK_ADVICE)
_full: Final = partial(VoteFailure, out_of_space=True)
_for_the_connection: Final = partial(VoteFailure, permanent=True, by_connection=True)
_a_replica: Final = partial(VoteFailure, by_connection=True)  # it may be promoted

_BY_ERROR_TEXT: Final = {
    "^OOM|when used memory": _full("it has no memory left (maxmemory)"),
    "^MISCONF": _full("it can't save to its disk and takes no writes (MISCONF)"),
    "WRONGPASS|invalid username-password|invalid password": _for_the_connection(
        "it does not accept user and password (VALKEY_USER, VALKEY_PASSWORD, VALKEY_PASSWORD_FILE)"
    ),
    "NOAUTH|Authentication required": _for_the_connection(
        "it wants a password: set VALKEY_PASSWORD, and VALKEY_USER for its ACLs"
    ),
    "without any password configured|no password is set": VoteFailure(
        "it has no password, and one is given (VALKEY_PASSWORD)", permanent=True
    ),
    "READONLY|read only replica": _a_replica("it is a replica and takes no writes (READONLY)"),
    "LOADING|is loading the dataset": VoteFailure("it is still loading its data (LOADING)"),
    "MASTERDOWN": _a_replica("it is a replica without its primary (MASTERDOWN)"),
    "NOREPLICAS": VoteFailure("it wants replicas that it does not have (NOREPLICAS)"),
    "^BUSY|is busy running a script": VoteFailure("it is busy running another script (BUSY)"),
    "^MOVED|^CLUSTERDOWN|^CROSSSLOT|cluster support": _for_the_connection(
        "it is a node of a cluster, and must stand alone"
    ),
    "WRONGTYPE": VoteFailure(
        "something else than a lock stands there: another program has this prefix, or one below it",
        permanent=True,
        foreign_key=True,
    ),
    "max number of clients": VoteFailure("it has too many clients (maxclients)"),
}
"""By a pattern of a server's error reply; the first that matches counts."""
_VARIABLES: Final = {
    Reason.UNTRUSTED: " (VALKEY_CACERT)",
    Reason.CLIENT_REFUSED: " (VALKEY_CERT, VALKEY_KEY)",
    Reason.HANDSHAKE: "; it may want a client certificate (VALKEY_CERT, VALKEY_KEY)",
}

_NO_PERMISSION: Final = re.compile(
    "NOPERM|[Nn]o permissions|can't run this command|can't access at least one of the"
)
_PERMISSION_NOISE: Final = re.compile(
    "^(NOPERM|ERR) (ACL failure in script: )?| script: .*$|^ACL failure in script: "
)
"""Parts of a refusal for want of a right that do not help people."""
_OTHER_SCHEME: Final = {
    True: ": if there is no TLS at this port, the URL begins with valkey://",
    False: ": if there is TLS at this port, the URL begins with valkeys://",
}
"""By whether we use TLS: advice if the server may not."""
UNREGISTERED: Final = (
    "it is new to this keyspace, or was emptied or restarted, and no program has met it since that "
    "may take or remove locks"
)
"""The reason of a server that no client has registered, for a user that may not register it."""


def server_error(text: str) -> Exception:
    """Return the exception for an answer that is an error."""
    return UnknownScript(text) if text.startswith("NOSCRIPT") else ErrorReply(text)


def check(*answers: object) -> None:
    """Raise the first of these answers that is an error."""
    for answer in answers:
        if isinstance(answer, ErrorReply):
            raise answer


def classify(error: Exception, location: ValkeyLocation | None = None) -> VoteFailure:
    """Return the failure of any error; with a location it was raised as a connection was opened."""
    text = " ".join(str(error).split())
    if isinstance(error, ErrorReply):
        if _NO_PERMISSION.search(text):
            reason = f"this user may not do that ({_cut(_PERMISSION_NOISE.sub('', text))})"
            return VoteFailure(reason, permanent=True, advice=_RIGHTS_ADVICE)
        known = (found for pattern, found in _BY_ERROR_TEXT.items() if re.search(pattern, text))
        return next(known, None) or VoteFailure(_cut(text), permanent=True)
    if isinstance(error, StoreError):
        return VoteFailure(_cut(text), permanent=True)
    if isinstance(error, valkey_py.InvalidResponse):  # another program is at its address
        return VoteFailure("it answers, and not as Valkey does")
    inner = error.__context__  # valkey-py raises its own exceptions instead
    why = reason_of(inner if isinstance(inner, OSError) else error)
    if why is None:
        return VoteFailure(_cut(text) or type(error).__name__)
    reason = why.value + _VARIABLES.get(why, "")
    if location is not None:
        is_silent = location.tls and why in (Reason.NO_ANSWER, Reason.NO_CONNECTION)
        reason += _OTHER_SCHEME[location.tls] if is_silent or why is Reason.CLOSED else ""
    advice = _NETWORK_ADVICE if why in _NETWORK else ADVICE.get(why, "")
    return VoteFailure(reason, permanent=why in OF_THIS_PROCESS, advice=advice)


def may_run_no_script(error: ErrorReply) -> bool:
    """Tell whether an answer means that this user may send no script, whatever is in it."""
    return bool(_NO_PERMISSION.search(str(error))) and "'evalsha'" in str(error)


def _cut(text: str) -> str:
    return text[:200].rstrip(".")


def config_mismatch(fingerprint: bytes, location: ValkeyLocation) -> VoteFailure:
    """Return the failure of a keyspace with another configuration."""
    theirs, ours = _settings(fingerprint.decode(errors="replace")), _settings(location.terms)
    names = ("keys", "servers", "longest", "expire")
    name = next((name for name in names if theirs.get(name) != ours.get(name)), "servers")
    if name == "keys":
        reason = (
            "its keys are of another release, and nobody lists them: end all clients of that "
            "release, then delete <prefix>/server on each server"
        )
    else:
        what = "the number of servers" if name == "servers" else name
        reason = (
            f"{what} is {theirs.get(name, '0')} there, and {ours.get(name, '0')} in this client's "
            "URL: all who use this prefix must say the same"
        )
    return VoteFailure(reason, permanent=True)


def _settings(terms: str) -> dict[str, str]:
    return dict(setting.partition("=")[::2] for setting in terms.split())


# ---------------------------------------------------------------- our exceptions


def no_majority(
    location: ValkeyLocation, failures: Mapping[int, VoteFailure], *, unknown: bool
) -> StoreError | StoreUnavailable:
    """Return the exception for too few votes, with the reason of each server without one."""
    reasons = reasons_text(location, failures)
    few = f"{location.majority} of {len(location.endpoints)} Valkey servers must agree"
    if len(location.endpoints) == 1:
        few = "The Valkey server must agree"
    text = f"{few}, and did not ({reasons or 'the time was up'})."
    advice = advice_for(failures.values() or [NO_ANSWER])
    votes = len(location.endpoints) - sum(failure.permanent for failure in failures.values())
    if votes >= location.majority:
        full = sum(failure.out_of_space for failure in failures.values())
        if len(location.endpoints) - full < location.majority:
            return StoreFull(text, unknown=unknown)
        return StoreUnavailable(f"{text} {advice}".rstrip(), unknown=unknown)
    return StoreError(f"{text} Trying again won't change that. {advice}".rstrip(), unknown=unknown)


def reasons_text(location: ValkeyLocation, failures: Mapping[int, VoteFailure]) -> str:
    """Return the reasons of servers without a vote, each reason once."""
    alike: dict[str, list[str]] = {}
    for i, endpoint in enumerate(location.endpoints):
        if i in failures:
            alike.setdefault(failures[i].reason, []).append(endpoint)
    return "; ".join(f"{', '.join(endpoints)}: {reason}" for reason, endpoints in alike.items())


def advice_for(failures: Iterable[VoteFailure]) -> str:
    """Return what people can do about these; empty: the reasons say it, or there is no advice."""
    return " ".join(dict.fromkeys(failure.advice for failure in failures if failure.advice))


def silence_too_long(location: ValkeyLocation, seconds: float) -> StoreError:
    """Return the exception for a lock that may be silent for longer than `longest`."""
    return StoreError(
        f"auto_unlock_after is {seconds:g} s, and no lock at {location.url()} may go for more "
        f"than {location.longest:g} s without a heartbeat: a server that was emptied gives "
        "locks again after that time. Say a shorter one, or longest=SECONDS in every client's URL."
    )
