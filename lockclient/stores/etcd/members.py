"""What each member of a cluster says of itself: version, size, alarms, clock, who may ask."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.diagnosis_protocol import Member
from lockclient.stores.etcd.errors import ErrorKind, diagnose
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import WireError
from lockclient.stores.etcd.wire.member_http import clock_ahead, fetch
from lockclient.stores.etcd.wire.rpc_methods import (
    AUTHENTICATE,
    MEMBER_LIST,
    STATUS,
    Method,
)

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
_UNKNOWN_HOST = 421
"""etcd's status for a host that is not in its list."""


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
        return Member(endpoint, trouble=_why(error, timeout))
    except (ValueError, KeyError, TypeError):
        return Member(endpoint, trouble="what listens there is no etcd")

    sizes = _sizes(location, endpoint, timeout)
    status, listed, auth = _itself(location, endpoint, timeout)
    return Member(
        endpoint,
        version,
        ahead=clock_ahead(headers, before, after),
        leader=0 != status.header.member_id == status.leader,
        size=sizes.get("mvcc_db_total_size_in_bytes", status.db_size),
        in_use=sizes.get("mvcc_db_total_size_in_use_in_bytes", 0),
        quota=sizes.get("server_quota_backend_bytes", 0),
        alarms=tuple(status.errors),
        cluster=tuple(
            f"{member.name or format(member.id, 'x')} ({', '.join(member.client_urls)})"
            for member in listed.members
        ),
        auth=auth,
        pages=_answers_pages(location, endpoint, timeout),
    )


def _itself(
    location: EtcdLocation, endpoint: str, timeout: float
) -> tuple[wire.StatusAnswer, wire.MemberListAnswer, bool | None]:
    """Ask this member, and no other, for its status, its cluster, and whether it wants a user.

    What it does not tell, or not to us, is empty.
    """
    with closing(Channels(replace(location, endpoints=(endpoint,)))) as alone:

        def ask(method: Method, request: Message) -> Any:
            with suppress(WireError, ClusterMutexError):
                return alone.call(method, request, Deadline.after(timeout))
            return method.answer()

        status, listed = ask(STATUS, wire.Status()), ask(MEMBER_LIST, wire.MemberList())
        auth = None
        try:
            # Nobody has this name: where users are asked for, it is refused for that.
            (member,) = alone.failover.members
            alone.stub(member, AUTHENTICATE)(wire.Authenticate(), timeout=timeout)
        except grpc.RpcError as error:
            if diagnose(error) not in (ErrorKind.NOT_SENT, ErrorKind.UNKNOWN):
                auth = "not enabled" not in (error.details() or "")
    return status, listed, auth


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


def _why(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, http.client.HTTPException):
        return "it closed the connection, as an etcd does that talks TLS only"
    return (getattr(error, "strerror", None) or str(error)).lower()
