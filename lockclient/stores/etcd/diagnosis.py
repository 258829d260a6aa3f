"""The checks of `clustermutex doctor`: members, latency, rights."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.errors import ErrorKind
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.members import GRPC_PROXY, Member, members
from lockclient.stores.etcd.releases import (
    DATA_LOSS_VERSIONS,
    NEWEST_TESTED,
    OLDEST_TESTED,
    minor_of,
)
from lockclient.stores.etcd.roles import WRITES
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.failover import WireError
from lockclient.stores.etcd.wire.rpc_methods import TXN
from lockclient.stores.findings import (
    ERROR,
    FINE,
    WARNING,
    Clock,
    Finding,
)
from lockclient.stores.request_types import Read, Unlock
from lockclient.stores.service_store import ServiceStore
from lockclient.text.escaping import plain

FOLDERS = ("locks", "queue", "withdrawn", "removed", "code", "unlockers", "notifications")
"""The folders below the root that a program of ours may write to."""
MEMBER_TIMEOUT_S = 2.0
"""Seconds for a member to answer over HTTP."""
REQUEST_TIMEOUT_S = 5.0
TRANSACTIONS = 50
MEASURING_S = 10.0
"""Seconds for all transactions together: so many as were done are enough."""
LATENCY_WARNING_S, LATENCY_ERROR_S = 0.1, 1.0
"""Seconds that one transaction in a hundred may take, before it is a warning, and an error."""
MAX_QUOTA_PART = 0.8
"""The part of its quota that an etcd may fill before it is a warning."""
NOBODYS_LOCK = "clustermutex-doctor"


def examine(
    store: ServiceStore, location: EtcdLocation, call: Callable[..., Any]
) -> Iterator[Finding | Clock]:
    """Yield the findings: see `ServiceStore.examine`."""
    found = members(location, MEMBER_TIMEOUT_S)
    yield from judge_members(found)
    yield from (clock for clock in map(clock_of, found) if clock is not None)
    store.names("", 1, Deadline.after(REQUEST_TIMEOUT_S))  # does it answer this user?
    try:
        rights = probe_permissions(call, location.root, Deadline.after(REQUEST_TIMEOUT_S))
        yield judge_latency(*_measure(store, writing=rights.get("locks", False)))
        auth = next((member.auth for member in found if member.auth is not None), None)
        certified = all(member.certified for member in found if not member.trouble)
        yield from judge_rights(rights, location.user, auth=auth, certified=certified)
    except ClusterMutexError as error:
        yield Finding("latency", ERROR, str(error), "Run this again when etcd answers steadily.")


def _measure(store: ServiceStore, *, writing: bool) -> tuple[list[float], str]:
    """Return the seconds that transactions took, and which transactions they were.

    An unlock by no holder changes nothing, but it goes through consensus and to the disks like
    every lock. A user without rights to write can only read.
    """
    request = Unlock(NOBODYS_LOCK, str(uuid.uuid4())) if writing else Read(NOBODYS_LOCK)
    deadline = Deadline.after(MEASURING_S)
    seconds: list[float] = []
    store.ask(request, deadline)  # the first one connects
    while len(seconds) < TRANSACTIONS and (len(seconds) < 2 or not deadline.expired()):
        began = time.perf_counter()
        store.ask(request, Deadline.after(REQUEST_TIMEOUT_S))
        seconds.append(time.perf_counter() - began)
    return seconds, "unlocks of nothing" if writing else "reads, for want of rights to write"


def clock_of(member: Member) -> Clock | None:
    """Return a member's clock, which has whole seconds."""
    if member.ahead is None:
        return None
    return Clock(f"etcd at {member.endpoint}", member.ahead - 0.5, member.ahead + 0.5)


# ---------------------------------------------------------------- judging


def judge_members(found: Sequence[Member]) -> Iterator[Finding]:
    """Judge the members: reachable, versions, space, alarms."""
    for member in found:
        if member.trouble == GRPC_PROXY:
            yield Finding(
                "member",
                ERROR,
                f"What listens at {member.endpoint} answers as `etcd grpc-proxy`, which is not "
                "supported.",
                "Name the members themselves: through it a lost lock and a release are noticed "
                "late or never, and waiters lose their places in the queue.",
            )
            continue
        if member.trouble:
            yield Finding(
                "member",
                ERROR if all(other.trouble for other in found) else WARNING,
                f"etcd at {member.endpoint} does not answer over HTTP: {member.trouble}.",
                "See that it runs and can be reached from here."
                + (" Until then the others serve." if len(found) > 1 else ""),
            )
            continue
        leads = ", the leader" if member.leader else ""
        size = f", {member.size / 2**20:.1f} MiB of data" if member.size else ""
        text = f"etcd at {member.endpoint} answers, version {member.version}{leads}{size}."
        yield Finding("member", FINE, text)
        if member.learner:
            text = f"etcd at {member.endpoint} is a learner: it takes no requests until promoted."
            yield Finding("member", WARNING, text, "Promote it: `etcdctl member promote ID`.")
        yield from _version(member)
        yield from _space(member)
        yield from _pages(member)
        for alarm in member.alarms:
            yield Finding(
                "member",
                ERROR,
                f"etcd at {member.endpoint} raises an alarm: {plain(alarm)}.",
                "For NOSPACE: compact, defragment, then `etcdctl alarm disarm`; until then it "
                "takes no locks. For CORRUPT: replace that member.",
            )
    versions = sorted({member.version for member in found if not member.trouble})
    if len(versions) > 1:
        text = f"The members run different versions: {', '.join(versions)}."
        yield Finding("version", WARNING, text, "Finish the upgrade that is under way.")


def _version(member: Member) -> Iterator[Finding]:
    where = f"etcd at {member.endpoint} is {member.version}"
    if member.version in DATA_LOSS_VERSIONS:
        yield Finding(
            "version",
            WARNING,
            f"{where}, one of the versions 3.5.0 to 3.5.2, which can lose or corrupt data when "
            "they crash under load.",
            "Upgrade to 3.5.3 or later; don't run it in production.",
        )
        return
    minor, tested = minor_of(member.version), f"{where}; ClusterMutex is tested with 3.4 to 3.7."
    if minor is not None and minor < OLDEST_TESTED:
        yield Finding("version", WARNING, tested, "Upgrade it.")
    if minor is not None and minor > NEWEST_TESTED:
        yield Finding("version", FINE, tested)


def _space(member: Member) -> Iterator[Finding]:
    if not member.quota or member.size < MAX_QUOTA_PART * member.quota:
        return
    yield Finding(
        "space",
        WARNING,
        f"etcd at {member.endpoint} fills {member.size / member.quota:.0%} of its quota of "
        f"{member.quota / 2**20:,.0f} MiB, with {member.in_use / 2**20:,.0f} MiB of data; full, it "
        "takes no locks.",
        "Defragment its members, one after the other: most of the file is empty."
        if member.in_use < member.size / 2
        else "See that it compacts its history, and what else is kept in it; or raise its "
        "--quota-backend-bytes.",
    )


def _pages(member: Member) -> Iterator[Finding]:
    if not member.pages:
        return
    text = f"etcd at {member.endpoint} answers every web page"
    if member.auth:
        yield Finding("pages", FINE, f"{text}, but asks it for a user.")
        return
    yield Finding(
        "pages",
        WARNING,
        f"{text}: one that is open in a browser which reaches it can read, forge and delete all "
        "locks.",
        "Start it with --enable-grpc-gateway=false --cors=http://nobody.invalid:80 and, with the "
        "names by which it is asked, --host-whitelist=NAME,NAME.",
    )


def judge_latency(seconds: Sequence[float], what: str) -> Finding:
    """Judge how long transactions took."""
    half, most = _percentile(seconds, 50), _percentile(seconds, 99)
    text = (
        f"{len(seconds)} transactions ({what}): p50 {half * 1000:.1f} ms, p99 {most * 1000:.1f} ms."
    )
    if most <= LATENCY_WARNING_S:
        return Finding("latency", FINE, text)
    advice = (
        "Look at etcd's disks (etcd_disk_wal_fsync_duration_seconds), the load of its machines and "
        "the network to them."
    )
    return Finding("latency", ERROR if most > LATENCY_ERROR_S else WARNING, text, advice)


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


def judge_rights(
    found: Mapping[str, bool], user: str | None, *, auth: bool | None, certified: bool = False
) -> Iterator[Finding]:
    """Judge the user's rights; `found` says which folders it may write to.

    `certified`: clients need a certificate.
    """
    everybody = "Everybody with a certificate" if certified else "Everybody"
    who = f"The user {user!r}" if user else everybody
    if not found:
        text = f"{who} may read; the rest is unknown: etcd is out of space."
        yield Finding("rights", WARNING, text, "Free space first, then run this again.")
        return
    roles = [role for role, needs in WRITES.items() if all(found[folder] for folder in needs)]
    lacking = ", ".join(folder for folder in found if not found[folder])
    text = f"{who} may do what these need: {', '.join(roles)}."
    text += f" It may not write to {lacking}." if lacking else ""
    yield Finding("rights", FINE, text)
    partly = [
        role
        for role, needs in WRITES.items()
        if role not in roles and any(found[folder] for folder in needs)
    ]
    if lacking and roles == ["dashboard"] and partly:
        yield Finding(
            "rights",
            WARNING,
            f"{who} may write something, but not all that any program needs.",
            "`clustermutex setup-auth` prints the roles.",
        )
    if auth is False and certified:
        text = "etcd lets in clients with a certificate only; each of them may do everything."
        yield Finding("auth", FINE, text)
    elif auth is False:
        yield Finding(
            "auth",
            WARNING,
            "etcd asks for no user: who reaches it may take, remove and forge any lock.",
            "`clustermutex setup-auth` prints roles for each program; or keep strangers off its "
            "network by TLS with client certificates.",
        )
    elif auth:
        yield Finding("auth", FINE, "etcd asks its clients for a user.")


# ---------------------------------------------------------------- asking


def probe_permissions(call: Callable[..., Any], root: str, deadline: Any) -> Mapping[str, bool]:
    """Return which folders the user may write to, by transactions that change nothing.

    etcd checks the rights for both branches before it compares, and no key has the revision -1. The
    result is empty if etcd is out of space: then it refuses a put before it checks rights.

    Raises:
        StoreUnavailable, StoreError: etcd does not answer, or refuses this user.
    """
    found: dict[str, bool] = {}
    for folder in FOLDERS:
        key = f"{root}/{folder}/-".encode()
        never = wire.Compare(target=wire.Compare.MOD, key=key, mod_revision=-1)
        put = wire.Operation(put=wire.Put(key=key))
        try:
            call(TXN, wire.Txn(compare=[never], success=[put]), deadline)
            found[folder] = True
        except WireError as refusal:
            if refusal.fault is ErrorKind.NO_SPACE:
                return {}
            if refusal.fault is not ErrorKind.NO_RIGHT:
                raise refusal.store_error from refusal.error
            found[folder] = False
    return found
