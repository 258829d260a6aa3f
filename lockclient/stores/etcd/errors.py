"""Errors of etcd and gRPC: what each means, and the exception for the program.

etcd's text decides first, the status code second: one code means a compaction and a wrong request,
another one a server that is down, an untrusted certificate, and TLS to a server without it.
"""

from __future__ import annotations

import ssl
from enum import Enum, auto
from typing import Final

import lockclient.stores.etcd.wire  # noqa: F401 - before gRPC, which it keeps from logging

import grpc  # isort: skip

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.stores.common.network_errors import ADVICE, Cause, Reason, reason_in, reason_of
from lockclient.stores.etcd.location import EtcdLocation


class ErrorKind(Enum):
    """The meaning of an error for its request."""

    NOT_EXECUTED = auto()
    """No connection, or this member serves no clients now: nothing happened. Ask another member."""
    UNKNOWN = auto()
    """It may have happened. Send it again to any member: its answer shows that."""
    NEW_TOKEN = auto()
    """The token is stale: authenticate again and repeat."""
    NO_RIGHT = auto()
    """The user of the token lacks a right; nothing happened."""
    COMPACTED = auto()
    """The revision asked for is gone."""
    NO_LEASE = auto()
    """The lease that the request names is gone; nothing happened."""
    NO_SPACE = auto()
    """The store is out of space and takes nothing but deletes; nothing happened."""
    TOO_LARGE = auto()
    """The answer is too large for gRPC: ask for fewer keys."""
    REFUSED = auto()
    """The store refuses the request, and would again; nothing happened."""


LEARNER: Final = "rpc not supported for learner"
"""The answer of a member that was added as a learner, until it is promoted."""
_TEXTS = (
    ("required revision has been compacted", ErrorKind.COMPACTED),
    ("requested lease not found", ErrorKind.NO_LEASE),
    ("database space exceeded", ErrorKind.NO_SPACE),
    ("invalid auth token", ErrorKind.NEW_TOKEN),
    ("revision of auth store is old", ErrorKind.NEW_TOKEN),
    # etcd 3.5.1, code UNKNOWN.
    ("auth: revision in header is old", ErrorKind.NEW_TOKEN),
    ("user name is empty", ErrorKind.NEW_TOKEN),
    ("permission denied", ErrorKind.NO_RIGHT),
    ("failed to connect to all addresses", ErrorKind.NOT_EXECUTED),
    ("errors resolving", ErrorKind.NOT_EXECUTED),
    ("dns resolution failed", ErrorKind.NOT_EXECUTED),
    ("context deadline exceeded", ErrorKind.UNKNOWN),
    ("too many requests", ErrorKind.NOT_EXECUTED),
    # Checked before a request is executed; UNAVAILABLE up to 3.5, then FAILED_PRECONDITION.
    (LEARNER, ErrorKind.NOT_EXECUTED),
    ("etcdserver: not capable", ErrorKind.NOT_EXECUTED),
    ("received message larger than max", ErrorKind.TOO_LARGE),  # gRPC, after the answer
)
_CODES = {
    grpc.StatusCode.UNAVAILABLE: ErrorKind.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED: ErrorKind.UNKNOWN,
    grpc.StatusCode.CANCELLED: ErrorKind.UNKNOWN,
    grpc.StatusCode.UNKNOWN: ErrorKind.UNKNOWN,  # errors of etcd without a code, as it ends
    grpc.StatusCode.INTERNAL: ErrorKind.UNKNOWN,  # a stream that was reset (RST_STREAM)
}


def diagnose(error: grpc.RpcError) -> ErrorKind:
    """Return the meaning of an error."""
    details = (error.details() or "").lower()
    for text, fault in _TEXTS:
        if text in details:
            return fault
    return _CODES.get(error.code(), ErrorKind.REFUSED)


def answered(error: grpc.RpcError) -> bool:
    """Return whether etcd itself sent the error, so that the connection works."""
    return (error.details() or "").startswith("etcdserver: ")


# ---------------------------------------------------------------- refusals


def refused(error: grpc.RpcError, endpoint: str, location: EtcdLocation) -> StoreError:
    """Return the exception for a refusal, with advice for common reasons."""
    details = (error.details() or error.code().name).removeprefix("etcdserver: ")
    advice, kind = "", StoreError
    if "permission denied" in details:
        user = f"user {location.user!r}" if location.user else "user of this client's certificate"
        advice = (
            f" The {user} has no role, or the role lacks a right on keys below {location.root}/. "
            f"`clustermutex setup-auth --root {location.root}` prints the commands that grant what "
            "each kind of program needs; `clustermutex doctor` says what this user may do."
        )
    elif "authentication failed" in details:
        user = f" as {location.user!r}" if location.user else ""
        secret = location.password_source
        advice = f" Check ETCDCTL_USER and {secret}: it does not let us in{user}."
    elif "user name is empty" in details:
        advice = (
            " This etcd asks for a user: set ETCDCTL_USER and ETCDCTL_PASSWORD, or give a client "
            "certificate (ETCDCTL_CERT, ETCDCTL_KEY) whose common name is a user, where etcd has "
            "--client-cert-auth."
        )
    elif "invalid auth token" in details and not location.user:
        advice = (
            " It is the token of the etcd3 client that was handed over, which never renews it: "
            "give ClusterMutex.setup() user and password beside the client."
        )
    elif "Received message larger than max" in details:
        advice = " One value is larger than any of ours: it was not written by ClusterMutex."
    elif "database space exceeded" in details:
        advice = " It takes no locks until it is compacted, defragmented and its alarm disarmed."
        kind = StoreFull
    return kind(f"etcd at {endpoint} refused the request: {details}.{advice}")


# ---------------------------------------------------------------- no answer

_NOT_GRPC: Final = "it accepts connections, but does not answer"
_ADVICE: Final = {
    **ADVICE,
    Reason.UNTRUSTED: "ETCDCTL_CACERT must be the authority that signed for this etcd.",
    Reason.OTHER_NAME: "Name each etcd as its certificate does (CLUSTERMUTEX_URL, "
    "ETCDCTL_ENDPOINTS).",
    Reason.CLIENT_REFUSED: "ETCDCTL_CERT and ETCDCTL_KEY must be a certificate that is valid and "
    "signed by the authority that this etcd trusts (its --trusted-ca-file).",
    Reason.OTHER_KEY: "ETCDCTL_KEY must be the key of ETCDCTL_CERT.",
    Reason.FILES: "ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY must be PEM files "
    "that this user may read.",
    Reason.HANDSHAKE: "Check both sides' certificates (ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY).",
    Reason.NOT_TLS: "If it talks plain text, leave out ETCDCTL_CACERT, ETCDCTL_CERT and "
    "ETCDCTL_KEY, and write etcd:// (or http://) for it.",
    Reason.ONLY_TLS: "If it does, set ETCDCTL_CACERT to its authority, or write etcds:// (or "
    "https://).",
}


def cause_of(error: Exception, location: EtcdLocation | None = None) -> Cause:
    """Return why a try was not answered; with `location` unusable certificate files are read."""
    if not isinstance(error, grpc.RpcError):
        return Cause.of_error(error)
    details = error.details() or ""
    reason = reason_in(details)
    if reason is Reason.FILES and location is not None and location.cert:
        return Cause.of(_why_unusable(location))
    if reason in (Reason.UNTRUSTED, Reason.HANDSHAKE):
        # OpenSSL's text, like `unable to get local issuer certificate`.
        text = details.rpartition("OPENSSL_internal:")[2].removesuffix(": OK")
        return Cause(reason, f"{reason.value}: {text.rpartition(': ')[2]}")
    if reason is not None:
        return Cause.of(reason)
    if "settings frame" in details.lower():
        return Cause(None, _NOT_GRPC)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Cause.of(Reason.NO_ANSWER)
    text = details.rpartition("last error:")[2].strip()
    return Cause(None, text or str(error.code().name).lower())


def _why_unusable(location: EtcdLocation) -> Reason:
    """Return why OpenSSL can't use the certificate files, which gRPC does not report."""
    try:
        context = ssl.create_default_context(cafile=location.cacert)
        context.load_cert_chain(location.cert or "", location.key)
    except OSError as error:
        return reason_of(error) or Reason.FILES
    return Reason.FILES


def more_telling(before: Cause, now: Cause) -> Cause:
    """Return the cause of the last try, or the one before if the last one says less.

    If etcd listens on one of two addresses of a host name, gRPC reports sometimes the trouble with
    one, sometimes the refusal by the other. And a TLS alert is lost when the server closes at once.
    """
    hides = now.reason in (Reason.REFUSED, Reason.ONLY_TLS)
    return before if hides and before.text.startswith("TLS: ") else now


def unavailable(
    endpoints: tuple[str, ...], last: Cause, *, unknown: bool, refused: bool = False
) -> StoreUnavailable:
    """Return the exception for a store that did not answer in time, with the last try's cause."""
    advice = _ADVICE.get(
        last.reason, "Check that it runs and that the endpoints are right (CLUSTERMUTEX_URL)."
    )
    here = all(name.startswith(("127.", "localhost:", "[::1]:")) for name in endpoints)
    if here and last.reason is Reason.REFUSED:
        advice += " `clustermutex up` starts one on this machine."
    return StoreUnavailable(
        f"etcd at {', '.join(endpoints)} did not answer in time ({last.text}). {advice}",
        unknown=unknown,
        refused=refused,
    )
