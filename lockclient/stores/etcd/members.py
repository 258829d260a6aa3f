"""The state that each member reports: version, size, alarms, clock, open access.

By gRPC, and by HTTP, which it speaks on its client port beside that.
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
from lockclient.stores.etcd.errors import ErrorKind, diagnose
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import WireError
from lockclient.stores.etcd.wire.rpc_methods import AUTHENTICATE, STATUS

MAX_ANSWER_BYTES = 4 << 20
"""How much of an answer is read; etcd's own are shorter, and who knows what listens there."""
_SIZES = re.compile(
    r"^etcd_(mvcc_db_total_size_in_bytes|mvcc_db_total_size_in_use_in_bytes"
    r"|server_quota_backend_bytes) (\S+)$",
    re.MULTILINE,
)
"""In its metrics, which it shows to all: its status asks for rights."""
_PAGE = {"Origin": "http://page.invalid"}
"""What a browser says for a web page from anywhere."""
_REBOUND = {"Host": "page.invalid"}
"""What it says when that page's own name leads to this address (DNS rebinding)."""
_NO_CERTIFICATE = ("ALERT_CERTIFICATE_REQUIRED", "ALERT_BAD_CERTIFICATE")
"""By which a server of TLS 1.3, or 1.2, ends a connection of who has none."""
GRPC_PROXY = "`etcd grpc-proxy` listens there"
_UNKNOWN_HOST = 421
"""etcd's status for a host that is not in its list."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the cluster, by its own answers; a field that it does not tell is empty.

    Without an answer there is only `trouble`. `ahead` is how many seconds its wall clock is ahead
    of ours, give or take half a second; `size` the bytes of its data, of which `in_use` hold some,
    and `quota` what they may become; `auth` whether it asks its clients for a user; `certified`
    whether it lets nobody in without a certificate of a client, as TLS tells; `pages` whether it
    answers any web page.
    """

    endpoint: str
    version: str = ""
    trouble: str = ""
    ahead: float | None = None
    leader: bool = False
    size: int = 0
    in_use: int = 0
    quota: int = 0
    alarms: tuple[str, ...] = ()
    auth: bool | None = None
    certified: bool = False
    pages: bool = False


def members(location: EtcdLocation, timeout: float) -> list[Member]:
    """Ask all members at once for what they say of themselves."""
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
    status, auth = _itself(location, endpoint, timeout)
    return Member(
        endpoint,
        version,
        ahead=clock_ahead(headers, before, after),
        leader=0 != status.header.member_id == status.leader,
        size=sizes.get("mvcc_db_total_size_in_bytes", status.db_size),
        in_use=sizes.get("mvcc_db_total_size_in_use_in_bytes", 0),
        quota=sizes.get("server_quota_backend_bytes", 0),
        alarms=tuple(status.errors),
        auth=auth,
        certified=_refuses_strangers(location, endpoint, timeout),
        pages=_answers_pages(location, endpoint, timeout),
    )


def _what_else(location: EtcdLocation, endpoint: str, timeout: float) -> str:
    """Return what listens there instead of an etcd."""
    for path in ("/proxy/metrics", "/metrics"):  # the second one in 3.4
        with suppress(OSError, http.client.HTTPException):
            if b"etcd_grpc_proxy_" in fetch(location, endpoint, path, timeout)[2]:
                return GRPC_PROXY
    return "what listens there is no etcd"


def _itself(
    location: EtcdLocation, endpoint: str, timeout: float
) -> tuple[wire.StatusAnswer, bool | None]:
    """Ask this member, and no other, for its status, and whether it asks clients for a user.

    A status that it does not tell, or not to us, is empty.
    """
    status, auth = wire.StatusAnswer(), None
    with closing(Channels(replace(location, endpoints=(endpoint,)))) as alone:
        with suppress(WireError, ClusterMutexError):
            status = alone.call(STATUS, wire.Status(), Deadline.after(timeout))
        try:
            # Nobody has this name: where users are asked for, it is refused for that.
            authenticate = alone.unary[endpoint].stub(AUTHENTICATE)
            authenticate(wire.Authenticate(), timeout=timeout)
        except grpc.RpcError as error:
            if diagnose(error) not in (ErrorKind.NOT_SENT, ErrorKind.UNKNOWN):
                auth = "not enabled" not in (error.details() or "")
    return status, auth


def _refuses_strangers(location: EtcdLocation, endpoint: str, timeout: float) -> bool:
    """Tell whether it breaks TLS off for want of a certificate; all else proves nothing."""
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
    """Tell whether a web page, in any browser that reaches it, can talk to its gateway of JSON.

    Asked as a browser would: without our certificate. Over TLS etcd does not look at the host; nor
    need it, for its certificate is not for the name of a page.
    """
    strange = replace(location, cert=None, key=None)

    def ask(said: Mapping[str, str]) -> tuple[int, str | None]:
        status, headers, _ = fetch(strange, endpoint, "/v3/kv/range", timeout, "{}", said)
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
    if isinstance(error, http.client.HTTPException):  # the answer is no HTTP, or none
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
    """Ask a member over HTTP on its client port: GET, or POST with a body.

    Raises:
        OSError, http.client.HTTPException: there is no answer, or none in time.
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
    """Return how many seconds a member's clock is ahead of ours, None if it did not say.

    The `Date` header is in whole seconds: the figure is right within half a second and half the
    time that the question took.

    Args:
        headers: of the answer.
        before, after: our wall clock, when the question was sent and answered.
    """
    try:
        theirs = parsedate_to_datetime(headers.get("Date", "")).timestamp() + 0.5
    except (ValueError, TypeError):
        return None
    return theirs - (before + after) / 2


def clock_offsets(location: EtcdLocation, timeout: float) -> list[float]:
    """Return how many seconds each member's clock is ahead of ours, for those that answered.

    All are asked at once, so that each has `timeout` seconds, also beside one that is frozen.
    """

    def ask(endpoint: str) -> float | None:
        before = time.time()
        try:
            _, headers, _ = fetch(location, endpoint, "/version", timeout)
        except (OSError, http.client.HTTPException):
            return None  # a member that can't say is no witness; the caller counts those that can
        return clock_ahead(headers, before, time.time())

    with ThreadPoolExecutor(len(location.endpoints)) as threads:
        found = threads.map(ask, location.endpoints)
        return [ahead for ahead in found if ahead is not None]
