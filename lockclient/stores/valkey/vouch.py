"""Which servers wait before they vote, and how somebody who knows better ends that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from lockclient.errors import StoreUnavailable
from lockclient.stores.diagnosis_protocol import Voter
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.voting.quorum import text
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Command, Connection, Refusal

_STEP: Final = "500"
"""Keys that a server looks at in one step: less than a millisecond."""


def voters(servers: Broadcast) -> Iterator[Voter]:
    """Yield what each server says, also those whose votes do not count yet."""
    for i in servers.all:
        endpoint = servers.place.endpoints[i]
        try:
            line = servers.open(i)
        except Refusal as refusal:
            yield Voter(endpoint, trouble=str(refusal))
            continue
        try:
            yield Voter(endpoint, line.waits, locks=frozenset(_left(servers, line)))
        except (errors.Refused, *errors.Unanswered) as error:
            yield Voter(endpoint, trouble=errors.told(error).words)
        finally:
            line.close()


def vouch(servers: Broadcast) -> None:
    """Let all servers vote at once, for somebody who knows that nobody holds a lock.

    Raises:
        StoreUnavailable: some can't be told; those that can vote then.
    """
    untold = {}
    for i in servers.all:
        try:
            servers.open(i, vouched=True).close()
        except Refusal as refusal:
            untold[i] = refusal.trouble
    if untold:
        raise StoreUnavailable(
            f"Not all servers of {servers.place.url()} could be told that nobody holds a lock "
            f"({errors.said_of(servers.place, untold)}).",
            unknown=False,
        )


def _left(servers: Broadcast, line: Connection) -> Iterator[str]:
    """Yield the names of locks that stand in one server, whatever the others say of them."""
    keys, cursor = servers.keys, "0"
    while True:
        call = Command(lua_scripts.LEFT, (keys.server,), (cursor, keys.locks, _STEP), votes=False)
        said, names = line.ask(call).rest
        yield from (unquote(text(each)) for each in names)
        if (cursor := text(said)) == "0":
            return
