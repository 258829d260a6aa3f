"""Diagnosis of the servers, for `clustermutex doctor`: votes and durability."""

from __future__ import annotations

from collections.abc import Iterator

from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Finding
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Connection

_DURABILITY_ADVICE = (
    "Set appendonly yes and appendfsync always, and let this user ask for it (+config|get)."
)


def examine(servers: Broadcast) -> Iterator[Finding]:
    """Yield what is found, one server after the other, then what that comes to."""
    voting = 0
    for endpoint, found in servers.open_all():
        if isinstance(found, errors.VoteFailure):
            text = f"{endpoint} has no vote: {found.reason}."
            yield Finding("server", ERROR, text, errors.advice_for([found]))
        else:
            voting += not found.quarantine_s
            yield from _server(endpoint, found, servers.location)
    yield _sum(voting, len(servers.all), servers.location.majority)


def _server(endpoint: str, connection: Connection, location: ValkeyLocation) -> Iterator[Finding]:
    if connection.quarantine_s:
        text = (
            f"{endpoint} is new to this keyspace, or was emptied, or restarted without its last "
            f"writes: it votes in {connection.quarantine_s:.0f} s."
        )
        yield Finding("server", WARNING, text, f"Wait. {errors.VOUCH_ADVICE}")
    else:
        yield Finding("server", FINE, f"{endpoint} answers and votes ({connection.version}).")
    if not connection.durable:
        text = (
            f"{endpoint} may lose what it has answered: it does not write everything down at once, "
            f"or does not say so. After a restart it gives no lock for {location.longest:g} s."
        )
        yield Finding("server", WARNING, text, _DURABILITY_ADVICE)


def _sum(voting: int, servers: int, majority: int) -> Finding:
    votes = f"{voting} of {servers} servers vote; {majority} must agree"
    if voting < majority:
        advice = f"Do what is said of the others: locks can be had when {majority} vote."
        return Finding("votes", ERROR, f"{votes}: no lock can be had.", advice)
    spare = voting - majority
    if spare or servers == 1:
        alone = " One server is not a majority of several: when it is down, so are all locks."
        return Finding("votes", FINE, f"{votes}.{alone if servers == 1 else ''}")
    advice = "Do what is said of the others, before one more of them fails."
    return Finding("votes", WARNING, f"{votes}: none may fail.", advice)
