"""Diagnosis of the servers, for `clustermutex doctor`: votes and durability."""

from __future__ import annotations

from collections.abc import Iterator

from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Finding
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Connection
from lockclient.text.escaping import plain

_DURABILITY_ADVICE = (
    "Set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no, then say so: "
    "`clustermutex vouch --kept`."
)
_RIGHTS_ADVICE = "Run the script of `clustermutex setup-auth` again: it revokes that right."


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
            f"{endpoint} may lose what it has answered: nobody vouches that it writes everything "
            f"down at once. After a restart it gives no lock for {location.longest:g} s."
        )
        yield Finding("server", WARNING, text, _DURABILITY_ADVICE)
    if users := _who_reads_configuration(connection, location):
        text = (
            f"{endpoint} lets {', '.join(users)} read its configuration (+config|get), and in that "
            "the passwords of who may do everything."
        )
        yield Finding("rights", ERROR, text, _RIGHTS_ADVICE)


def _who_reads_configuration(connection: Connection, location: ValkeyLocation) -> list[str]:
    """Name users who were given that right as one of few, as earlier releases did.

    Who may list users has every right, as a rule. Anybody else is told of its own alone.
    """
    try:
        rules = [decoded(line).split() for line in connection.command("ACL", "LIST")]
        return [plain(rule[1]) for rule in rules if "+config|get" in rule]
    except errors.ErrorReply:
        pass
    try:
        connection.command("CONFIG", "GET", "appendfsync")
    except errors.ErrorReply:
        return []
    return [plain(location.user or "default")]


def _sum(voting: int, servers: int, majority: int) -> Finding:
    votes = f"{voting} of {servers} servers vote; {majority} must agree"
    if voting < majority:
        advice = f"Follow the advice for the others: locks can be acquired when {majority} vote."
        return Finding("votes", ERROR, f"{votes}: no lock can be acquired.", advice)
    spare = voting - majority
    if spare or servers == 1:
        alone = " One server is not a majority of several: when it is down, so are all locks."
        return Finding("votes", FINE, f"{votes}.{alone if servers == 1 else ''}")
    advice = "Do what is said of the others, before one more of them fails."
    return Finding("votes", WARNING, f"{votes}: none may fail.", advice)
