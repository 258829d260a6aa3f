"""Quarantine of new or emptied servers, which wait before they vote: see it, and clear it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.stores.diagnosis_protocol import Voter
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Command, Connection, Vouched

_SCAN_COUNT: Final = "500"
"""Keys that a server scans in one step: less than a millisecond."""


def voters(servers: Broadcast) -> Iterator[Voter]:
    """Yield what each server says, also those whose votes do not count yet."""
    for endpoint, found in servers.open_all():
        if isinstance(found, errors.VoteFailure):
            yield Voter(endpoint, trouble=found.reason)
            continue
        try:
            names = frozenset(_lock_names(servers, found))
            yield Voter(endpoint, found.quarantine_s, locks=names, kept=found.durable)
        except (errors.ErrorReply, errors.Unanswered) as error:
            yield Voter(endpoint, trouble=errors.classify(error).reason)


def clear_quarantine(servers: Broadcast) -> None:
    """Let all servers vote at once, for somebody who knows that nobody holds a lock.

    Raises:
        StoreUnavailable: some can't be told; those that can vote then.
    """
    _tell_all(servers, Vouched(idle=True), "that nobody holds a lock")


def note_kept(servers: Broadcast, *, kept: bool) -> None:
    """Note of all servers what an operator says: whether they keep what they have answered.

    Raises:
        StoreError: some are configured otherwise, as far as this user may ask that; none is told.
        StoreUnavailable: some can't be told, or tell otherwise themselves; the others are.
    """
    for endpoint, found in servers.open_all():
        if kept and isinstance(found, Connection) and (setting := _contradiction(found)):
            raise StoreError(f"{endpoint} does not keep what it answers: it has {setting}.")
    what = "that they keep what they answer" if kept else "that they may forget what they answer"
    _tell_all(servers, Vouched(kept=kept), what)


def _contradiction(connection: Connection) -> str:
    """Return a setting by which a server may forget; empty: none is known to this user."""
    # With `yes` the second leaves out the first for as long as its file is written anew.
    for name, right in (("appendfsync", b"always"), ("no-appendfsync-on-rewrite", b"no")):
        try:
            _, found = connection.command("CONFIG", "GET", name)
        except errors.ErrorReply:
            return ""
        if found != right:
            return f"{name} {decoded(found)}"
    return ""


def _tell_all(servers: Broadcast, vouched: Vouched, what: str) -> None:
    failures: dict[int, errors.VoteFailure] = {}
    for i, (_, found) in enumerate(servers.open_all(vouched)):
        if isinstance(found, errors.VoteFailure):
            failures[i] = found
        elif vouched.kept and not found.durable:
            failures[i] = errors.VoteFailure("it has no appendonly yes, or was a replica")
    if failures:
        raise StoreUnavailable(
            f"Not all servers of {servers.location.url()} could be told {what} "
            f"({errors.reasons_text(servers.location, failures)}).",
            unknown=False,
        )


def _lock_names(servers: Broadcast, connection: Connection) -> Iterator[str]:
    """Yield the names of locks that stand in one server, whatever the others say of them."""
    keys, cursor = servers.keys, "0"
    while True:
        command = Command(lua_scripts.LEFT, (keys.server,), (cursor, keys.locks, _SCAN_COUNT))
        following, names = connection.ask(command).rest
        yield from (unquote(decoded(name)) for name in names)
        if (cursor := decoded(following)) == "0":
            return
