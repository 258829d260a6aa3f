"""The state that each member reports by gRPC and, on its client port, by HTTP.

Version, size, alarms, clock, open access.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from email import message
from email.utils import parsedate_to_datetime
from types import MappingProxyType

import grpc

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.common.network_errors import Cause, Reason
from lockclient.stores.etcd.errors import LEARNER, ErrorKind, diagnose
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import WireError
from lockclient.stores.etcd.wire.rpc_methods import AUTHENTICATE, STATUS

MAX_ANSWER_BYTES = 4 << 20
"""Bytes of an answer that are read; etcd's own answers are shorter."""
_SIZES = re.compile(
    r"^etcd_(mvcc_db_total_size_in_bytes|mvcc_db_total_size_in_use_in_bytes"
    r"|server_quota_backend_bytes) (\S+)$",
    re.MULTILINE,
)
"""Lines of etcd's metrics, which need no rights, unlike its status."""
_PAGE = {"Origin": "http://page.invalid"}
"""The header of a browser's request for a web page of another site."""
_REBOUND = {"Host": "page.invalid"}
"""The header of that request when the site's name has this member's address (DNS rebinding)."""
_NO_CERTIFICATE = ("ALERT_CERTIFICATE_REQUIRED", "ALERT_BAD_CERTIFICATE")
"""The alerts of TLS 1.3 and 1.2 to a client without a certificate."""
GRPC_PROXY = "`etcd grpc-proxy` listens there"
_UNKNOWN_HOST = 421
"""etcd's status for a host that is not in its list."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the cluster, by its own answers; a field without an answer is empty.

    Attributes:
        trouble: why it did not answer.
        ahead: seconds that its wall clock is ahead of ours, within half a second.
        learner: whether it takes no requests, because it has not been promoted yet.
        size, in_use, quota: bytes of its database file, of the data in it, and the file's limit.
        auth: whether clients need a user.
        certified: whether clients need a certificate.
        pages: whether it answers requests of any web page.
    """

    endpoint: str
    version: str = ""
    trouble: str = ""
    ahead: float | None = None
    leader: bool = False
    learner: bool = False
    size: int = 0
    in_use: int = 0
    quota: int = 0
    alarms: tuple[str, ...] = ()
    auth: bool | None = None
    certified: bool = False
    pages: bool = False


def members(location: EtcdLocation, timeout: float) -> list[Member]:
    """Ask all members at the same time."""
    with ThreadPoolExecutor(len(location.endpoints)) as threads:
        return list(
            threads.map(lambda member: _member(location, member, timeout), location.endpoints)
        )


def _member(location: EtcdLocation, endpoint: str, timeout: float) -> Member:
    try:
        before = time.time()
        known, headers, body = fetch(location, endpoint, "/version", timeout)
        after = time.time()
        if known == _UNKNOWN_HOST:
            return Member(endpoint, trouble="its --host-whitelist lacks the name by which we ask")
        version = str(json.loads(body)["etcdserver"])
    except (OSError, http.client.HTTPException) as error:
        return Member(endpoint, trouble=_why(error))
    except (ValueError, KeyError, TypeError):
        return Member(endpoint, trouble=_what_else(location, endpoint, timeout))

    sizes = _sizes(location, endpoint, timeout)
    status, auth, learner = _itself(location, endpoint, timeout)
    return Member(
        endpoint,
        version,
        ahead=clock_ahead(headers, before, after),
        leader=0 != status.header.member_id == status.leader,
        learner=learner,
        size=sizes.get("mvcc_db_total_size_in_bytes", status.db_size),
        in_use=sizes.get("mvcc_db_total_size_in_use_in_bytes", 0),
        quota=sizes.get("server_quota_backend_bytes", 0),
        alarms=tuple(status.errors),
        auth=auth,
        certified=_refuses_strangers(location, endpoint, timeout),
        pages=not learner and _answers_pages(location, endpoint, timeout),
    )


def _what_else(location: EtcdLocation, endpoint: str, timeout: float) -> str:
    """Return a sentence about the server that listens there instead of etcd."""
    for path in ("/proxy/metrics", "/metrics"):  # the second one in 3.4
        with suppress(OSError, http.client.HTTPException):
            if b"etcd_grpc_proxy_" in fetch(location, endpoint, path, timeout)[2]:
                return GRPC_PROXY
    return "what listens there is no etcd"


def _itself(
    location: EtcdLocation, endpoint: str, timeout: float
) -> tuple[wire.StatusAnswer, bool | None, bool]:
    """Ask for its status (may be empty), whether clients need a user, if it is a learner."""
    status, auth, learner = wire.StatusAnswer(), None, False
    with closing(Channels(replace(location, endpoints=(endpoint,)))) as alone:
        with suppress(WireError, ClusterMutexError):
            status = alone.call(STATUS, wire.Status(), Deadline.after(timeout))
        try:
            # An empty user name: with authentication enabled it is refused for another reason.
            authenticate = alone.unary[endpoint].stub(AUTHENTICATE)
            authenticate(wire.Authenticate(), timeout=timeout)
        except grpc.RpcError as error:
            details = error.details() or ""
            learner = LEARNER in details
            if diagnose(error) not in (ErrorKind.NOT_EXECUTED, ErrorKind.UNKNOWN):
                auth = "not enabled" not in details
    return status, auth, learner


def _refuses_strangers(location: EtcdLocation, endpoint: str, timeout: float) -> bool:
    """Return whether it refuses TLS without a client certificate; False if that is unknown."""
    if location.cert is None:
        return False
    try:
        fetch(replace(location, cert=None, key=None), endpoint, "/version", timeout)
    except ssl.SSLError as error:
        return (error.reason or "").endswith(_NO_CERTIFICATE)
    except (OSError, http.client.HTTPException):
        pass
    return False


def _answers_pages(location: EtcdLocation, endpoint: str, timeout: float) -> bool:
    """Return whether a web page in a browser that reaches it can use its JSON gateway.

    The requests are those of a browser, without our certificate. With TLS etcd does not check the
    host, and need not: its certificate is not for a page's name.
    """
    stranger = replace(location, cert=None, key=None)

    def ask(sent: Mapping[str, str]) -> tuple[int, str | None]:
        status, headers, _ = fetch(stranger, endpoint, "/v3/kv/range", timeout, "{}", sent)
        return status, headers.get("Access-Control-Allow-Origin")

    try:
        status, origin = ask(_PAGE)
        if status == 404:  # there is no gateway
            return False
        if origin in ("*", _PAGE["Origin"]):
            return True
        return not location.secure and ask(_REBOUND)[0] != _UNKNOWN_HOST
    except (OSError, http.client.HTTPException):
        return False


def _sizes(location: EtcdLocation, endpoint: str, timeout: float) -> dict[str, int]:
    try:
        text = fetch(location, endpoint, "/metrics", timeout)[2].decode(errors="replace")
        return {name: int(float(value)) for name, value in _SIZES.findall(text)}
    except (OSError, http.client.HTTPException, ValueError, OverflowError):
        return {}


def _why(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException):  # there is no answer, or it is not HTTP
        return Reason.ONLY_TLS.value
    return Cause.of_error(error).text


# ---------------------------------------------------------------- by HTTP


def fetch(
    location: EtcdLocation,
    endpoint: str,
    path: str,
    timeout: float,
    body: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, message.Message, bytes]:
    """Send a request by HTTP to a member's client port: GET, or POST with a body.

    Raises:
        OSError, http.client.HTTPException: no answer in time.
    """
    host, _, port = endpoint.rpartition(":")
    connection: http.client.HTTPConnection
    if location.secure:
        context = ssl.create_default_context(cafile=location.cacert)
        if location.cert is not None:
            context.load_cert_chain(location.cert, location.key)
        connection = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read(MAX_ANSWER_BYTES)
    finally:
        connection.close()


def clock_ahead(headers: message.Message, before: float, after: float) -> float | None:
    """Return how many seconds a member's clock is ahead of ours, None without a `Date` header.

    The header has whole seconds, so the error is half a second and half the request's time at most.

    Args:
        headers: the answer's headers.
        before, after: our wall clock before the request and after the answer.
    """
    try:
        theirs = parsedate_to_datetime(headers.get("Date", "")).timestamp() + 0.5
    except (ValueError, TypeError):
        return None
    return theirs - (before + after) / 2


def clock_offsets(location: EtcdLocation, timeout: float) -> list[float]:
    """Return how many seconds each member's clock is ahead of ours, of those that answered.

    All members are asked at the same time, so a frozen one takes no time from the others.
    """

    def ask(endpoint: str) -> float | None:
        before = time.time()
        try:
            _, headers, _ = fetch(location, endpoint, "/version", timeout)
        except (OSError, http.client.HTTPException):
            return None
        return clock_ahead(headers, before, time.time())

    with ThreadPoolExecutor(len(location.endpoints)) as threads:
        found = threads.map(ask, location.endpoints)
        return [ahead for ahead in found if ahead is not None]
