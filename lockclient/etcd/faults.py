"""etcd's and gRPC's errors → what to do next, and → our exceptions. The one place for both.

Errors are told apart by etcd's exact text first and by the status code second: the same code
stands for a compaction and for a wrong request.
"""

from __future__ import annotations

from enum import Enum, auto

import grpc

from lockclient.errors import StoreError, StoreUnavailable


class Fault(Enum):
    """What an error means for the request that got it."""

    NOT_SENT = auto()
    """No connection: the request can't have happened. Try elsewhere."""
    UNKNOWN = auto()
    """It may have happened. Send it again, here or elsewhere: that tells."""
    NEW_TOKEN = auto()
    """The token is stale: authenticate again and repeat."""
    COMPACTED = auto()
    """The revision asked for is gone."""
    NO_LEASE = auto()
    """The lease that the request names is gone; nothing happened."""
    NO_SPACE = auto()
    """The store is out of space and takes nothing but deletes; nothing happened."""
    REFUSED = auto()
    """The store says no, and will say no again; nothing happened."""


_TEXTS = (
    ("required revision has been compacted", Fault.COMPACTED),
    ("requested lease not found", Fault.NO_LEASE),
    ("database space exceeded", Fault.NO_SPACE),
    ("invalid auth token", Fault.NEW_TOKEN),
    ("revision of auth store is old", Fault.NEW_TOKEN),
    ("user name is empty", Fault.NEW_TOKEN),
    ("failed to connect to all addresses", Fault.NOT_SENT),
    ("context deadline exceeded", Fault.UNKNOWN),
    ("too many requests", Fault.NOT_SENT),
)
_CODES = {
    grpc.StatusCode.UNAVAILABLE: Fault.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.UNKNOWN,
    grpc.StatusCode.CANCELLED: Fault.UNKNOWN,
    grpc.StatusCode.UNKNOWN: Fault.UNKNOWN,  # etcd's own errors without a code: it is ending, say
    grpc.StatusCode.INTERNAL: Fault.UNKNOWN,  # a stream torn down in the middle (RST_STREAM)
}


def diagnose(error: grpc.RpcError) -> Fault:
    """Tell what an error means."""
    details = (error.details() or "").lower()
    for text, fault in _TEXTS:
        if text in details:
            return fault
    return _CODES.get(error.code(), Fault.REFUSED)


def refused(error: grpc.RpcError, endpoint: str) -> StoreError:
    """Return the exception for a refusal, in words of ours where the reason is a common one."""
    details = (error.details() or error.code().name).removeprefix("etcdserver: ")
    advice = ""
    if "permission denied" in details:
        advice = " The user's role lacks a right on the keys of ClusterMutex."
    elif "authentication failed" in details:
        advice = " Check ETCDCTL_USER and ETCDCTL_PASSWORD."
    elif "user name is empty" in details:
        advice = " This etcd asks for a user: set ETCDCTL_USER and ETCDCTL_PASSWORD."
    elif "database space exceeded" in details:
        advice = " It takes no locks until it is compacted, defragmented and its alarm disarmed."
    return StoreError(f"etcd at {endpoint} refused the request: {details}.{advice}")


def unavailable(endpoints: tuple[str, ...], last: str, *, unknown: bool) -> StoreUnavailable:
    """Return the exception for a store that did not answer in time."""
    return StoreUnavailable(
        f"etcd at {', '.join(endpoints)} did not answer in time ({last}). "
        "Check that it runs and that the endpoints are right (CLUSTERMUTEX_URL).",
        unknown=unknown,
    )


def reason(error: grpc.RpcError) -> str:
    """Return an error's cause in a few words, without gRPC's internals."""
    details = error.details() or ""
    lowered = details.lower()
    if "connection refused" in lowered:
        return "connection refused"
    if "certificate_verify_failed" in lowered or "handshak" in lowered or "ssl" in lowered:
        return "the TLS handshake failed: " + details.rpartition("last error:")[2].strip()
    if "name resolution" in lowered or "domain name not found" in lowered:
        return "the host name can't be resolved"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer"
    if "socket closed" in lowered or "goaway" in lowered or "connection reset" in lowered:
        return "the connection was closed"
    if "settings frame" in lowered:
        return "it accepts connections, but does not answer"
    return details.rpartition("last error:")[2].strip() or str(error.code().name).lower()
