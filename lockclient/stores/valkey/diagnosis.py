"""Checks of `clustermutex doctor`, and the statements of `clustermutex vouch`."""

from __future__ import annotations

from collections.abc import Iterator

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.stores.common.segments import decode
from lockclient.stores.findings import ERROR, FINE, WARNING, Finding, Voter
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Connection
from lockclient.text.escaping import plain

_DURABILITY_ADVICE = (
    "Set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no, then say so: "
    "`clustermutex vouch --kept`."
)


def examine(servers: Broadcast) -> Iterator[Finding]:
    """Yield the findings of each server, then the number of votes."""
    voting = 0
    for endpoint, found in servers.open_all():
        if isinstance(found, VoteFailure):
            text = f"{endpoint} has no vote: {found.reason}."
            yield Finding("server", ERROR, text, errors.advice_for([found]))
        else:
            refusal = _refused_write(found, servers)
            voting += not (found.quarantine_s or refusal)
            yield from _server(endpoint, found, refusal, servers.location)
            yield from _hints(endpoint, found, servers)
    yield _votes(voting, len(servers.all), servers.location.majority)


def _refused_write(connection: Connection, servers: Broadcast) -> str:
    """Return why a server refuses a write that needs memory; empty: it does not.

    The command replaces a key that never exists, and so writes nothing.
    """
    if not connection.is_reader:
        try:
            connection.command("SET", f"{servers.keys.all}withdrawn/", "", "XX")
        except errors.ErrorReply as error:
            return errors.classify(error).reason
    return ""


def _server(
    endpoint: str, connection: Connection, refusal: str, location: ValkeyLocation
) -> Iterator[Finding]:
    if refusal:
        text = f"{endpoint} answers, and refuses the writes of a new lock: {refusal}."
        yield Finding("server", ERROR, text, "Let it write again: its log says what is wrong.")
    elif connection.quarantine_s:
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


def _hints(endpoint: str, connection: Connection, servers: Broadcast) -> Iterator[Finding]:
    """Yield which rights to the channels this user lacks; the connection is unusable afterwards."""
    channel, missing = servers.keys.channel(""), []  # of no lock
    for words in (("PUBLISH", channel, ""), ("SUBSCRIBE", channel))[connection.is_reader :]:
        try:
            connection.command(*words)
        except errors.ErrorReply:
            missing.append(f"+{words[0].lower()}")
    if missing:
        right, user = f"&{servers.keys.channels}", plain(servers.location.user or "default")
        text = (
            f"{endpoint} lets this user not use its channels: it lacks {right} or "
            f"{' or '.join(missing)}. Waiters see only by polling that a lock is free."
        )
        advice = f"Give it these rights: ACL SETUSER {user} '{right}' {' '.join(missing)}."
        yield Finding("rights", WARNING, text, advice)


def _votes(voting: int, servers: int, majority: int) -> Finding:
    votes = f"{voting} of {servers} servers vote; {majority} must agree"
    if voting < majority:
        advice = f"Follow the advice for the others: locks can be acquired when {majority} vote."
        return Finding("votes", ERROR, f"{votes}: no lock can be acquired.", advice)
    if servers == 1:
        alone = "One server is not a majority of several: when it is down, so are all locks."
        return Finding("votes", FINE, f"{votes}. {alone}")
    if voting > majority:
        return Finding("votes", FINE, f"{votes}.")
    advice = "Follow the advice for the other servers before one more of them fails."
    return Finding("votes", WARNING, f"{votes}: none may fail.", advice)


# ---------------------------------------------------------------- vouching


def voters(servers: Broadcast) -> Iterator[Voter]:
    """Yield the answers of each server, also of those without a vote."""
    for endpoint, found in servers.open_all():
        if isinstance(found, VoteFailure):
            yield Voter(endpoint, trouble=found.reason)
            continue
        try:
            names = frozenset(_lock_names(servers, found))
            yield Voter(endpoint, found.quarantine_s, locks=names, kept=found.durable)
        except errors.FAILED as error:
            yield Voter(endpoint, trouble=errors.classify(error).reason)


def clear_quarantine(servers: Broadcast) -> None:
    """Let all servers vote at once: an operator vouches that nobody holds a lock.

    Raises:
        StoreUnavailable: some can't be reached; the others vote now.
    """
    _vouch(servers, "that nobody holds a lock", idle=True)


def note_kept(servers: Broadcast, *, kept: bool) -> None:
    """Note on all servers that an operator vouches that they are durable, or takes that back.

    Raises:
        StoreError: a server has another configuration, as far as this user may read that; no
            server votes.
        StoreUnavailable: some can't be reached, or contradict; the others have noted it.
    """
    for endpoint, found in servers.open_all():
        if kept and isinstance(found, Connection) and (setting := _contradiction(found)):
            raise StoreError(f"{endpoint} does not keep what it answers: it has {setting}.")
    what = "that they keep what they answer" if kept else "that they may forget what they answer"
    _vouch(servers, what, kept=kept)


def _contradiction(connection: Connection) -> str:
    """Return a setting by which a server may forget; empty: this user reads none."""
    # While the append-only file is rewritten, `no-appendfsync-on-rewrite yes` suspends the other.
    for name, right in (("appendfsync", b"always"), ("no-appendfsync-on-rewrite", b"no")):
        try:
            _, found = connection.command("CONFIG", "GET", name)
        except errors.ErrorReply:
            return ""
        if found != right:
            return f"{name} {decoded(found)}"
    return ""


def _vouch(servers: Broadcast, what: str, *, idle: bool = False, kept: bool | None = None) -> None:
    failures: dict[int, VoteFailure] = {}
    for i, (_, found) in enumerate(servers.open_all(idle=idle, kept=kept)):
        if isinstance(found, VoteFailure):
            failures[i] = found
        elif kept and not found.durable:
            failures[i] = VoteFailure("it has no appendonly yes, or was a replica")
    if failures:
        raise StoreUnavailable(
            f"Not all servers of {servers.location.url()} noted {what} "
            f"({errors.reasons_text(servers.location, failures)}).",
            unknown=False,
        )


def _lock_names(servers: Broadcast, connection: Connection) -> Iterator[str]:
    """Yield the names of the locks on one server, without a majority."""
    for entries in connection.scan(("SSCAN", servers.keys.lock_index)):
        for name in map(decode, map(decoded, entries)):
            if name is not None and connection.command("HGET", servers.keys.lock(name), "uuid"):
                yield name
