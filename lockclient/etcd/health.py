"""What `clustermutex doctor` asks of a cluster: what its members say of themselves, and rights."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.failover import FaultError
from lockclient.etcd.faults import Fault
from lockclient.etcd.methods import TXN
from lockclient.etcd.web import clock_ahead, fetch
from lockclient.settings import Settings
from lockclient.store import Member

FOLDERS = ("locks", "queue", "withdrawn", "removed", "unlockers")
"""The folders below the root that a program of ours may write to."""


def members(settings: Settings, timeout: float) -> list[Member]:
    """Ask all members at once for what they say of themselves."""
    with ThreadPoolExecutor(len(settings.endpoints)) as threads:
        return list(threads.map(lambda each: _member(settings, each, timeout), settings.endpoints))


def _member(settings: Settings, endpoint: str, timeout: float) -> Member:
    try:
        before = time.time()
        _, headers, body = fetch(settings, endpoint, "/version", timeout)
        after = time.time()
        version = str(json.loads(body)["etcdserver"])
    except (OSError, http.client.HTTPException) as error:
        return Member(endpoint, trouble=_why(error, timeout))
    except (ValueError, KeyError, TypeError):
        return Member(endpoint, trouble="what listens there is no etcd")

    def ask(path: str) -> dict[str, Any]:
        # Through etcd's own gateway of JSON, which may be switched off: then this stays unknown.
        try:
            found = json.loads(fetch(settings, endpoint, f"/v3/{path}", timeout, "{}")[2])
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    status, listed = ask("maintenance/status"), ask("cluster/member/list")
    member_id = status.get("header", {}).get("member_id")
    said = str(ask("auth/authenticate").get("error", ""))
    return Member(
        endpoint,
        version,
        ahead=clock_ahead(headers, before, after),
        leader=member_id is not None and member_id == status.get("leader"),
        size=int(status.get("dbSize", 0)),
        alarms=tuple(str(each) for each in status.get("errors", ())),
        cluster=tuple(
            f"{each.get('name') or each.get('ID')} ({', '.join(each.get('clientURLs', ()))})"
            for each in listed.get("members", ())
        ),
        auth="not enabled" not in said if said else None,
    )


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


def rights(call: Callable[..., Any], root: str, deadline: Any) -> Mapping[str, bool]:
    """Return which folders the user may write to, by transactions that change nothing.

    etcd checks the rights of both branches of a transaction before it looks at what is compared:
    and no key is ever at the revision -1. Empty if etcd is out of space, for then it refuses a
    transaction with a put before it looks at rights.

    Raises:
        StoreUnavailable, StoreError: it does not answer, or not to this user.
    """
    found: dict[str, bool] = {}
    for folder in FOLDERS:
        key = f"{root}/{folder}/-".encode()
        never = wire.Compare(target=wire.Compare.MOD, key=key, mod_revision=-1)
        put = wire.Operation(put=wire.Put(key=key))
        try:
            call(TXN, wire.Txn(compare=[never], success=[put]), deadline)
            found[folder] = True
        except FaultError as refusal:
            if refusal.fault is Fault.NO_SPACE:
                return {}
            if "permission denied" not in (refusal.error.details() or ""):
                raise refusal.said from refusal.error
            found[folder] = False
    return found
