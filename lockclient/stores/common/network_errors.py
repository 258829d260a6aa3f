"""Reasons why a server could not be asked, for all stores: network, TLS and local errors.

An error of Python's sockets or OpenSSL is known by its number. Of one that another library has put
into words, like gRPC, the words are the only source. Advice is looked up by the reason.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from lockclient.errors import StoreError


class Reason(Enum):
    """The value is what people read."""

    REFUSED = "connection refused"
    NO_ROUTE = "there is no route to it"
    NO_ADDRESS = "the host name can't be resolved"
    NO_CONNECTION = "no connection in time"
    NO_ANSWER = "no answer"
    CLOSED = "the connection was closed"
    BUSY = "it asks us to slow down"
    EXPIRED = "TLS: its certificate has expired"
    NOT_YET_VALID = "TLS: its certificate is not valid yet"
    OTHER_NAME = "TLS: its certificate is for another host name"
    UNTRUSTED = "TLS: its certificate is not trusted"
    CLIENT_REFUSED = "TLS: it refused our certificate, or that we have none"
    OTHER_KEY = "TLS: our key is not that of our certificate"
    FILES = "TLS: the certificate files can't be used"
    NOT_TLS = "TLS: it does not talk TLS at this port"
    ONLY_TLS = "it closed the connection at once, as a server does that talks TLS only"
    HANDSHAKE = "TLS: the handshake failed"
    NO_DESCRIPTORS = "this process has no file descriptor left"
    NO_THREADS = "the system gives this process no thread"
    NO_MEMORY = "this machine has no memory left"
    NO_PORTS = "this machine has no port left for a connection"


NOBODY_THERE: Final = frozenset((Reason.REFUSED, Reason.NO_ROUTE, Reason.NO_ADDRESS))
"""Reasons with which no server got the request, nor will: waiting for an answer is idle."""
OF_THIS_PROCESS: Final = frozenset((Reason.NO_DESCRIPTORS, Reason.NO_THREADS, Reason.NO_MEMORY))
"""Reasons that lie in this process: another server would not be reached either."""
ADVICE: Final[Mapping[Reason | None, str]] = {
    Reason.EXPIRED: "Renew the server's certificate; if it has not expired, set this machine's "
    "clock.",
    Reason.NOT_YET_VALID: "Set the clock of this machine, or of the one that made the certificate.",
    Reason.NO_DESCRIPTORS: "Raise this process's limit (ulimit -n), or find what it leaves open.",
    Reason.NO_THREADS: "Raise this process's limit (ulimit -u, or the container's limit of "
    "processes), or let it have fewer threads.",
    Reason.NO_MEMORY: "Free memory on this machine, or in this container.",
    Reason.NO_PORTS: "See what opens so many connections on this machine.",
}
"""Advice that is the same for all stores."""

_BY_ERRNO: Final = {
    errno.ECONNREFUSED: Reason.REFUSED,
    errno.EHOSTUNREACH: Reason.NO_ROUTE,
    errno.ENETUNREACH: Reason.NO_ROUTE,
    errno.ETIMEDOUT: Reason.NO_CONNECTION,
    errno.ECONNRESET: Reason.CLOSED,
    errno.ECONNABORTED: Reason.CLOSED,
    errno.EPIPE: Reason.CLOSED,
    errno.EMFILE: Reason.NO_DESCRIPTORS,
    errno.ENFILE: Reason.NO_DESCRIPTORS,
    errno.ENOMEM: Reason.NO_MEMORY,
    errno.EADDRNOTAVAIL: Reason.NO_PORTS,
}
_BY_VERIFY_CODE: Final = {  # of OpenSSL's X509_V_ERR_…
    9: Reason.NOT_YET_VALID,
    10: Reason.EXPIRED,
    62: Reason.OTHER_NAME,
    64: Reason.OTHER_NAME,
}
_BY_TEXT: Final = (
    # In lower case; the first that fits counts. Seen with Python 3.11, OpenSSL 3 and grpcio 1.85.
    ("too many open files", Reason.NO_DESCRIPTORS),
    ("can't start new thread", Reason.NO_THREADS),
    ("cannot allocate memory", Reason.NO_MEMORY),
    ("cannot assign requested address", Reason.NO_PORTS),
    ("connection refused", Reason.REFUSED),
    (r"connect\(\) timed out", Reason.NO_CONNECTION),
    ("(network|host) is unreachable|no route to host", Reason.NO_ROUTE),
    ("key_values_mismatch", Reason.OTHER_KEY),
    ("certificate has expired", Reason.EXPIRED),
    ("certificate is not yet valid", Reason.NOT_YET_VALID),
    (
        "hostname mismatch|ip address mismatch|hostname verification check failed"
        "|is not in peer certificate",
        Reason.OTHER_NAME,
    ),
    ("certificate_verify_failed", Reason.UNTRUSTED),
    # After the handshake of TLS 1.3 gRPC hides the alert that says it exactly.
    (
        "tsi_data_corrupted|certificate_required"
        "|alert_(bad_certificate|unknown_ca|certificate_|handshake_failure)",
        Reason.CLIENT_REFUSED,
    ),
    ("failed to create security handshaker|tls ca certificate bundle", Reason.FILES),
    (
        "handshake read failed.*(closed|reset)|wrong_version_number|record_layer_failure",
        Reason.NOT_TLS,
    ),
    ("handshak|ssl_error", Reason.HANDSHAKE),
    ("failed to connect to all addresses.*(socket closed|connection reset)", Reason.ONLY_TLS),
    ("name resolution|name or service not known|domain name not found", Reason.NO_ADDRESS),
    ("socket closed|goaway|connection (was )?(reset|aborted)|broken pipe", Reason.CLOSED),
)


class Cause(NamedTuple):
    """The cause of a try without an answer; `text` is for people."""

    reason: Reason | None
    text: str

    @classmethod
    def of(cls, reason: Reason) -> Cause:
        return cls(reason, reason.value)

    @classmethod
    def of_error(cls, error: BaseException) -> Cause:
        """Return the cause of any exception, as far as it is known."""
        reason, innermost = reason_of(error), [*chain(error)][-1]
        if isinstance(innermost, StopIteration):
            return cls(None, "the stream ended without an answer")
        if reason is None:
            return cls(None, str(innermost) or repr(innermost))
        detail = ""
        if isinstance(innermost, ssl.SSLCertVerificationError) and reason is Reason.UNTRUSTED:
            detail = f": {innermost.verify_message}"
        elif reason is Reason.FILES:
            detail = f": {innermost}"
        return cls(reason, f"{reason.value}{detail}")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that libraries have wrapped in it, the innermost last."""
    following: BaseException | None = error
    while following is not None:
        yield following
        inner = (getattr(following, "reason", None), *following.args, following.__cause__)
        following = next((cause for cause in inner if isinstance(cause, BaseException)), None)


def reason_of(error: BaseException) -> Reason | None:
    """Return the reason of an exception, or of one that is wrapped in it; None: none of these.

    Of texts it is the innermost that counts: others have lock names in them.
    """
    *_, innermost = causes = [*chain(error)]
    found = (_reason_by_type(cause) for cause in reversed(causes))
    return next((reason for reason in found if reason is not None), reason_in(str(innermost)))


def _reason_by_type(error: BaseException) -> Reason | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_VERIFY_CODE.get(error.verify_code, Reason.UNTRUSTED)
    if isinstance(error, ssl.SSLError):
        return reason_in(str(error)) or Reason.HANDSHAKE
    if isinstance(error, MemoryError):
        return Reason.NO_MEMORY
    if isinstance(error, socket.gaierror):
        return Reason.NO_ADDRESS
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return Reason.CLOSED
    if isinstance(error, OSError) and error.filename:
        return Reason.FILES
    return Reason.NO_ANSWER if isinstance(error, TimeoutError) else None


def reason_in(text: str) -> Reason | None:
    """Return the reason that a library's words tell."""
    lower = text.lower()
    return next((reason for pattern, reason in _BY_TEXT if re.search(pattern, lower)), None)


def no_descriptors(where: str, *, unknown: bool) -> StoreError:
    """Return the error of a process that can open no connection: trying again won't open one."""
    reason = Reason.NO_DESCRIPTORS
    text = f"{where} could not be asked: {reason.value}. {ADVICE[reason]}"
    return StoreError(text, unknown=unknown, passing=True)
