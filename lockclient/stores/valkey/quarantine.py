"""Quarantine of new or emptied servers, which wait before they vote: see it, and clear it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from lockclient.errors import StoreUnavailable
from lockclient.stores.diagnosis_protocol import Voter
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Command, Connection

_SCAN_COUNT: Final = "500"
"""Keys that a server scans in one step: less than a millisecond."""


def voters(servers: Broadcast) -> Iterator[Voter]:
    """Yield what each server says, also those whose votes do not count yet."""
    for endpoint, found in servers.open_all():
        if isinstance(found, errors.VoteFailure):
            yield Voter(endpoint, trouble=found.reason)
            continue
        try:
            yield Voter(endpoint, found.quarantine_s, locks=frozenset(_lock_names(servers, found)))
        except (errors.ErrorReply, *errors.Unanswered) as error:
            yield Voter(endpoint, trouble=errors.classify(error).reason)


def clear_quarantine(servers: Broadcast) -> None:
    """Let all servers vote at once, for somebody who knows that nobody holds a lock.

    Raises:
        StoreUnavailable: some can't be told; those that can vote then.
    """
    opened = enumerate(servers.open_all(vouched=True))
    failures = {i: found for i, (_, found) in opened if isinstance(found, errors.VoteFailure)}
    if failures:
        raise StoreUnavailable(
            f"Not all servers of {servers.location.url()} could be told that nobody holds a lock "
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
