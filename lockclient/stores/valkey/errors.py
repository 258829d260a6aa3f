"""What a server's errors mean → words, and our exceptions. The one place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from valkey import exceptions as valkey

from lockclient.errors import StoreClosed, StoreError, StoreFull, StoreUnavailable
from lockclient.stores.valkey.location import ValkeyLocation

Garbled = valkey.InvalidResponse
"""What came is no answer of a server's: another program is at its address, or in between."""
Unanswered = (valkey.ConnectionError, valkey.TimeoutError, OSError, Garbled)
"""What a connection fails with; what was sent by it may have been done, or may be yet."""
Refused = valkey.ResponseError
"""What a server answers with that does not do it."""
NoScript = valkey.NoScriptError
"""It does not know a script by its name."""


class Trouble(NamedTuple):
    """Why a server has no vote now.

    Attributes:
        words: that, in few words.
        refused: trying again won't cure it.
        full: for want of space.
        astray: it concerns whatever is asked by this connection, and not one key or script: another
            server may stand at this address by now, or the user be another one.
        taken: something that is not ours stands at the key.
    """

    words: str
    refused: bool = False
    full: bool = False
    astray: bool = False
    taken: bool = False


_ANSWERS: Final[tuple[tuple[str, Trouble], ...]] = (
    ("^OOM|when used memory", Trouble("it has no memory left (maxmemory)", full=True)),
    ("^MISCONF", Trouble("it can't save to its disk and takes no writes (MISCONF)", full=True)),
    (
        "WRONGPASS|invalid username-password|invalid password",
        Trouble(
            "it does not accept user and password (VALKEY_USER, VALKEY_PASSWORD)", True, astray=True
        ),
    ),
    (
        "NOAUTH|Authentication required",
        Trouble(
            "it wants a password: set VALKEY_PASSWORD, and VALKEY_USER for its ACLs",
            refused=True,
            astray=True,
        ),
    ),
    (
        "without any password configured|no password is set",
        Trouble("it has no password, and one is given (VALKEY_PASSWORD)", True),
    ),
    (
        "READONLY|read only replica",
        Trouble("it is a replica and takes no writes (READONLY)", True, astray=True),
    ),
    ("LOADING|is loading the dataset", Trouble("it is still loading its data (LOADING)")),
    ("MASTERDOWN", Trouble("it is a replica without its primary (MASTERDOWN)", True, astray=True)),
    ("NOREPLICAS", Trouble("it wants replicas that it does not have (NOREPLICAS)")),
    ("^BUSY|is busy running a script", Trouble("it is busy running another script (BUSY)")),
    (
        "^MOVED|^CLUSTERDOWN|^CROSSSLOT|cluster support",
        Trouble("it is a node of a cluster, and must stand alone", True, astray=True),
    ),
    (
        "WRONGTYPE",
        Trouble(
            "something else than a lock stands there: another program has this prefix",
            True,
            taken=True,
        ),
    ),
    ("max number of clients", Trouble("it has too many clients (maxclients)")),
)


_RIGHT: Final = re.compile(
    "NOPERM|[Nn]o permissions|can't run this command|can't access at least one of the"
)
_AROUND: Final = re.compile(
    "^(NOPERM|ERR) (ACL failure in script: )?| script: .*$|^ACL failure in script: "
)
"""What stands around a refusal for want of a right, and is nothing to people."""
_MAY_NOT: Final = "this user may not do that"
_LATE: Final = "no answer in time"
_CLOSED: Final = "the connection was closed"
_NO_TLS: Final = "if there is no TLS at this port, the URL begins with valkey://"
_TLS: Final = "if there is TLS at this port, the URL begins with valkeys://"
_STRANGE: Final = {True: (_LATE, _CLOSED), False: (_CLOSED,)}
"""By whether we talk TLS: what may mean that the server does otherwise."""
VOUCH: Final = (
    "If nobody holds a lock of this keyspace, `clustermutex vouch` lets servers vote at once."
)
_RIGHTS: Final = (
    "`clustermutex setup-auth` prints the rights of each program (--client, --unlocker, "
    "--dashboard, --operator)."
)
_RUNS: Final = ("Check the network, and that it runs.", "Check the network, and that they run.")
_SILENT: Final = re.compile("in time|not reached|it is slow")
_REMEDIES: Final = (
    ("votes in", (VOUCH, VOUCH)),
    (_MAY_NOT, (_RIGHTS, _RIGHTS)),
    (f"refused$|no route|resolved|{_CLOSED}|{_SILENT.pattern}", _RUNS),
)
"""By what is said of a trouble: what people can do about it, where those words do not say it: of
one server, and of several."""


def refused(text: str) -> Exception:
    """Return the exception for an answer that is an error."""
    return NoScript(text) if text.startswith("NOSCRIPT") else Refused(text)


def told(error: Exception, place: ValkeyLocation | None = None) -> Trouble:
    """Return what an error means, whichever it is; with a place it came as a line was opened."""
    if isinstance(error, valkey.ResponseError):
        return answered(error)
    found = failed(error)
    if place is None or found.words not in _STRANGE[place.tls]:
        return found
    hint = _NO_TLS if place.tls else _TLS
    return found._replace(words=f"{found.words}: {hint}")


def answered(error: valkey.ResponseError) -> Trouble:
    """Return what a server's refusal means."""
    text = " ".join(str(error).split())
    if isinstance(error, valkey.NoPermissionError) or _RIGHT.search(text):
        return Trouble(f"{_MAY_NOT} ({_cut(_AROUND.sub('', text))})", refused=True)
    kinds = {
        valkey.OutOfMemoryError: "OOM",
        valkey.ReadOnlyError: "READONLY",
    }
    code = next((said for kind, said in kinds.items() if isinstance(error, kind)), "")
    return _known(f"{code} {text}".strip()) or Trouble(_cut(text), refused=True)


def failed(error: Exception) -> Trouble:
    """Return why a connection could not be had, or broke."""
    if isinstance(error, Garbled):
        return Trouble("it answers, and not as Valkey does")
    text = " ".join(str(error).split())
    found = _known(text)
    if found is not None:
        return found
    if isinstance(error, valkey.AuthenticationError | valkey.NoPermissionError):
        return Trouble(_cut(text), refused=True)
    for pattern, words in (
        ("Connection refused", "connection refused"),
        ("No route to host|unreachable", "there is no route to it"),
        ("CERTIFICATE_VERIFY_FAILED.*hostname|mismatch", "TLS: its certificate has another name"),
        ("CERTIFICATE_VERIFY_FAILED", "TLS: its certificate is not trusted (VALKEY_CACERT)"),
        ("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE", "TLS: it does not talk TLS at this port"),
        (
            "CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE|alert|EOF occurred in violation",
            "TLS: it wants another client certificate, or one (VALKEY_CERT, VALKEY_KEY)",
        ),
        ("Name or service not known|name resolution", "the host name can't be resolved"),
        ("Timeout|timed out", _LATE),
        ("closed by server|reset by peer|Broken pipe", _CLOSED),
    ):
        if re.search(pattern, text):
            return Trouble(words)
    return Trouble(_cut(text) or type(error).__name__)


def _known(text: str) -> Trouble | None:
    return next((found for pattern, found in _ANSWERS if re.search(pattern, text)), None)


def _cut(text: str) -> str:
    return text[:200].rstrip(".")


# ---------------------------------------------------------------- our exceptions


def no_majority(
    place: ValkeyLocation, troubles: Mapping[int, Trouble], *, unknown: bool
) -> StoreError | StoreUnavailable:
    """Return the exception for too few votes, with what keeps each server from its own."""
    said = said_of(place, troubles)
    few = f"{place.majority} of {len(place.endpoints)} Valkey servers must agree"
    if len(place.endpoints) == 1:
        few = "The Valkey server must agree"
    late = not troubles or any(_SILENT.search(each.words) for each in troubles.values())
    text = f"{few}, and did not{' in time' if late else ''} ({said or 'the time was up'})."
    advice = remedy(troubles.values() or [Trouble(_LATE)] * len(place.endpoints))
    votes = len(place.endpoints) - sum(each.refused for each in troubles.values())
    if votes >= place.majority:
        full = len(place.endpoints) - sum(each.full for each in troubles.values())
        if full < place.majority:
            return StoreFull(text, unknown=unknown)
        return StoreUnavailable(f"{text} {advice}".rstrip(), unknown=unknown)
    return StoreError(f"{text} Trying again won't change that. {advice}".rstrip(), unknown=unknown)


def said_of(place: ValkeyLocation, troubles: Mapping[int, Trouble]) -> str:
    """Say what keeps each server from its vote; once where it is the same."""
    alike: dict[str, list[str]] = {}
    for i, endpoint in enumerate(place.endpoints):
        if i in troubles:
            alike.setdefault(troubles[i].words, []).append(endpoint)
    return "; ".join(f"{', '.join(endpoints)}: {words}" for words, endpoints in alike.items())


def remedy(troubles: Iterable[Trouble]) -> str:
    """Say what people can do about these; empty where their words say it, or nobody knows."""
    said = [each.words for each in troubles]
    found = [
        (sum(bool(re.search(pattern, each)) for each in said), to_do)
        for pattern, to_do in _REMEDIES
    ]
    return " ".join(to_do[number > 1] for number, to_do in found if number)


def too_long(place: ValkeyLocation, seconds: float) -> StoreError:
    """Return the exception for a lock that may be silent for longer than is agreed."""
    return StoreError(
        f"auto_unlock_after is {seconds:g} s, and no lock at {place.url()} may go for more than "
        f"{place.longest:g} s without a sign of life: a server that was emptied gives locks again "
        "after that time. Say a shorter one, or longest=SECONDS in every client's URL."
    )


def closed(place: ValkeyLocation, *, unknown: bool = False) -> StoreClosed:
    """Return the exception for a store that this program has closed."""
    return StoreClosed(f"The connections to {place.url()} were closed.", unknown=unknown)
