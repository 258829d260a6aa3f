"""What a store tells about itself: its members, history, votes, and what `doctor` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Member:
    """What one member of the store's cluster says of itself; what it does not say is empty.

    Without an answer there is only `trouble`. `ahead` is how many seconds its wall clock is ahead
    of ours, give or take half a second; `size` the bytes of its data, of which `in_use` hold some,
    and `quota` what they may become; `cluster` all members that it knows, as `name (URLs)`; `auth`
    whether it asks its clients for a user; `certified` whether it lets nobody in without a
    certificate of a client, as TLS tells; `pages` whether it answers any web page.
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
    cluster: tuple[str, ...] = ()
    auth: bool | None = None
    certified: bool = False
    pages: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """How much of its past the store keeps: it is at `revision` and can still show `oldest`.

    `sign` is what an unlocker announced at about that time, which tells when it was: at `oldest`,
    or in the first half of what is kept; empty if none ran then.
    """

    revision: int
    oldest: int
    sign: str = ""


FINE, WARNING, ERROR = "ok", "warning", "error"
LEVELS = (FINE, WARNING, ERROR)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: `level` is one of `LEVELS`, `advice` what to do (empty: nothing)."""

    check: str
    level: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock that was seen: it is ahead of ours by `least` to `most` seconds."""

    whose: str
    least: float
    most: float


class Examined(Protocol):
    """A store that knows itself what it must be like for locks."""

    def examine(self) -> Iterator[Finding | Clock]:
        """Yield what is found, the basic things first, writing nothing; and clocks of servers.

        Raises:
            StoreUnavailable, StoreError: it does not answer, or not to this user.
        """


@dataclass(frozen=True, slots=True)
class Voter:
    """A server that has a vote on each lock: after `waits` seconds, if it is new or was emptied.

    `trouble` is why it can't be asked, if so; `locks` are the names that stand there, whoever
    believes it; `kept` whether an operator vouches that it keeps what it answers over a restart.
    """

    endpoint: str
    waits: float = 0.0
    trouble: str = ""
    locks: frozenset[str] = frozenset()
    kept: bool = False


class Voting(Protocol):
    """A store of several servers that vote on each lock, as its `votes` tell."""

    def voters(self) -> Iterator[Voter]:
        """Ask each server, one after the other."""

    def vouch(self) -> None:
        """Say that nobody holds a lock, so that all servers vote at once."""

    def vouch_kept(self, *, kept: bool = True) -> None:
        """Say whether all servers write everything down before they answer."""


def too_few(votes: Mapping[str, str]) -> str:
    """Say which servers have no vote (`ServiceStore.votes`), and why, if the others are too few."""
    away = [f"{server} ({why})" for server, why in votes.items() if why]
    if 2 * (len(votes) - len(away)) > len(votes) or not away:
        return ""
    return f"{len(away)} of {len(votes)} servers have no vote: {'; '.join(away)}."
