"""Maps servers' errors to why they have no vote, in words, and to our exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import valkey.exceptions as valkey_py

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.stores.common.network_errors import ADVICE, Reason, reason_of
from lockclient.stores.valkey.location import ValkeyLocation

Unanswered = (OSError, valkey_py.ConnectionError, valkey_py.TimeoutError, valkey_py.InvalidResponse)
"""What a connection fails with; what was sent by it may have been done, or may be yet."""


class ErrorReply(valkey_py.ResponseError):
    """What a server answers with that does not do it; with all that it says of it."""


FAILED: Final = (ErrorReply, StoreError, *Unanswered)
"""Whatever a request may fail with."""


class UnknownScript(ErrorReply):
    """It does not know a script by its name."""


class VoteFailure(NamedTuple):
    """Why a server has no vote now.

    Attributes:
        reason: that, in few words.
        permanent: trying again won't cure it.
        out_of_space: for want of space.
        by_connection: it concerns whatever is asked by this connection, and not one key or script:
            another server may stand at this address by now, or the user be another one.
        foreign_key: something that is not ours stands at the key.
        unanswered: the request was sent, and may have been done, or may be yet.
    """

    reason: str
    permanent: bool = False
    out_of_space: bool = False
    by_connection: bool = False
    foreign_key: bool = False
    unanswered: bool = False


_LATE: Final = "no answer in time"
_CLOSED: Final = Reason.CLOSED.value
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
_WORDS: Final = {
    Reason.NO_ANSWER: _LATE,
    Reason.NO_CONNECTION: _LATE,
    Reason.UNTRUSTED: f"{Reason.UNTRUSTED.value} (VALKEY_CACERT)",
    Reason.CLIENT_REFUSED: f"{Reason.CLIENT_REFUSED.value} (VALKEY_CERT, VALKEY_KEY)",
    Reason.HANDSHAKE: f"{Reason.HANDSHAKE.value}; it may want a client certificate "
    "(VALKEY_CERT, VALKEY_KEY)",
}
_OF_THIS_PROCESS: Final = (Reason.NO_DESCRIPTORS, Reason.NO_THREADS, Reason.NO_MEMORY)

_NO_PERMISSION: Final = re.compile(
    "NOPERM|[Nn]o permissions|can't run this command|can't access at least one of the"
)
_PERMISSION_NOISE: Final = re.compile(
    "^(NOPERM|ERR) (ACL failure in script: )?| script: .*$|^ACL failure in script: "
)
"""What stands around a refusal for want of a right, and is nothing to people."""
_MAY_NOT: Final = "this user may not do that"
_NO_TLS: Final = "if there is no TLS at this port, the URL begins with valkey://"
_TLS: Final = "if there is TLS at this port, the URL begins with valkeys://"
_MAYBE_TLS: Final = {True: (_LATE, _CLOSED), False: (_CLOSED,)}
"""By whether we talk TLS: what may mean that the server does otherwise."""
UNSETTLED: Final = (
    "it is new to this keyspace, or was emptied or restarted, and no program has met it since that "
    "may take or remove locks"
)
"""Why a server has no vote of which nobody has noted when it votes, for who may not note it."""
VOUCH_ADVICE: Final = (
    "If nobody holds a lock of this keyspace, `clustermutex vouch` lets servers vote at once."
)
_PERMISSION_ADVICE: Final = (
    "`clustermutex setup-auth` prints the rights of each program (--client, --unlocker, "
    "--dashboard, --operator)."
)
_NETWORK_ADVICE: Final = (
    "Check the network, and that it runs.",
    "Check the network, and that they run.",
)
_SILENT: Final = re.compile("in time|not reached")
_ADVICE: Final = (
    ("votes in", (VOUCH_ADVICE, VOUCH_ADVICE)),
    (_MAY_NOT, (_PERMISSION_ADVICE, _PERMISSION_ADVICE)),
    (f"refused$|no route|resolved|{_CLOSED}|{_SILENT.pattern}", _NETWORK_ADVICE),
)
"""By a pattern of a failure's reason: what people can do about it, where those
words do not say it: of one server, and of several."""


def server_error(text: str) -> Exception:
    """Return the exception for an answer that is an error."""
    return UnknownScript(text) if text.startswith("NOSCRIPT") else ErrorReply(text)


def classify(error: Exception, location: ValkeyLocation | None = None) -> VoteFailure:
    """Return what any error means; with a location it came as a connection was opened."""
    text = " ".join(str(error).split())
    if isinstance(error, ErrorReply):
        if _NO_PERMISSION.search(text):
            reason = f"{_MAY_NOT} ({_cut(_PERMISSION_NOISE.sub('', text))})"
            return VoteFailure(reason, permanent=True)
        known = (found for pattern, found in _BY_ERROR_TEXT.items() if re.search(pattern, text))
        return next(known, None) or VoteFailure(_cut(text), permanent=True)
    if isinstance(error, StoreError):
        return VoteFailure(_cut(text), permanent=True)
    if isinstance(error, valkey_py.InvalidResponse):  # another program is at its address
        return VoteFailure("it answers, and not as Valkey does")
    inner = error.__context__  # valkey-py raises its own exceptions instead
    why = reason_of(inner if isinstance(inner, OSError) else error)
    if why in _OF_THIS_PROCESS:
        return VoteFailure(f"{why.value}. {ADVICE[why]}".rstrip("."), permanent=True)
    reason = (_WORDS.get(why, why.value) if why else _cut(text)) or type(error).__name__
    if location is None or reason not in _MAYBE_TLS[location.tls]:
        return VoteFailure(reason)
    return VoteFailure(f"{reason}: {_NO_TLS if location.tls else _TLS}")


def may_run_no_script(error: ErrorReply) -> bool:
    """Tell whether an answer means that this user may send no script, whatever is in it."""
    return bool(_NO_PERMISSION.search(str(error))) and "'evalsha'" in str(error)


def _cut(text: str) -> str:
    return text[:200].rstrip(".")


def config_mismatch(fingerprint: bytes, location: ValkeyLocation) -> VoteFailure:
    """Return the failure of a keyspace that other clients have configured otherwise."""
    theirs = dict(
        setting.partition("=")[::2] for setting in fingerprint.decode(errors="replace").split()
    )
    if theirs.get("keys") != "2":
        reason = (
            "its keys are of a release without an index, and nobody lists them: end all clients of "
            "that release, then delete <prefix>/server on each server"
        )
    elif theirs.get("servers") != str(len(location.endpoints)):
        reason = (
            f"it is one of {theirs.get('servers', '?')} servers there, and this client's URL names "
            f"{len(location.endpoints)}: all who use this prefix must name the same ones"
        )
    elif theirs.get("longest") != f"{location.longest:g}":
        reason = (
            f"longest is {theirs.get('longest', '?')} s there, and {location.longest:g} s in this "
            "client's URL: all who use this prefix must say the same"
        )
    else:
        reason = (
            f"expire is {theirs.get('expire', '0')} there, and {location.expire:d} in this "
            "client's URL: all who use this prefix must say the same"
        )
    return VoteFailure(reason, permanent=True)


# ---------------------------------------------------------------- our exceptions


def no_majority(
    location: ValkeyLocation, failures: Mapping[int, VoteFailure], *, unknown: bool
) -> StoreError | StoreUnavailable:
    """Return the exception for too few votes, with what keeps each server from its own."""
    reasons = reasons_text(location, failures)
    few = f"{location.majority} of {len(location.endpoints)} Valkey servers must agree"
    if len(location.endpoints) == 1:
        few = "The Valkey server must agree"
    late = not failures or any(_SILENT.search(failure.reason) for failure in failures.values())
    text = f"{few}, and did not{' in time' if late else ''} ({reasons or 'the time was up'})."
    advice = advice_for(failures.values() or [VoteFailure(_LATE)] * len(location.endpoints))
    votes = len(location.endpoints) - sum(failure.permanent for failure in failures.values())
    if votes >= location.majority:
        full = sum(failure.out_of_space for failure in failures.values())
        if len(location.endpoints) - full < location.majority:
            return StoreFull(text, unknown=unknown)
        return StoreUnavailable(f"{text} {advice}".rstrip(), unknown=unknown)
    return StoreError(f"{text} Trying again won't change that. {advice}".rstrip(), unknown=unknown)


def reasons_text(location: ValkeyLocation, failures: Mapping[int, VoteFailure]) -> str:
    """Say what keeps each server from its vote; once where it is the same."""
    alike: dict[str, list[str]] = {}
    for i, endpoint in enumerate(location.endpoints):
        if i in failures:
            alike.setdefault(failures[i].reason, []).append(endpoint)
    return "; ".join(f"{', '.join(endpoints)}: {reason}" for reason, endpoints in alike.items())


def advice_for(failures: Iterable[VoteFailure]) -> str:
    """Say what people can do about these; empty where their words say it, or nobody knows."""
    reasons = [failure.reason for failure in failures]
    found = [
        (sum(bool(re.search(pattern, reason)) for reason in reasons), advice)
        for pattern, advice in _ADVICE
    ]
    return " ".join(advice[number > 1] for number, advice in found if number)


def silence_too_long(location: ValkeyLocation, seconds: float) -> StoreError:
    """Return the exception for a lock that may be silent for longer than is agreed."""
    return StoreError(
        f"auto_unlock_after is {seconds:g} s, and no lock at {location.url()} may go for more "
        f"than {location.longest:g} s without a heartbeat: a server that was emptied gives "
        "locks again after that time. Say a shorter one, or longest=SECONDS in every client's URL."
    )
