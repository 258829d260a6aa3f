"""Findings of `doctor` in a store, and servers that vote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

FINE, WARNING, ERROR = "ok", "warning", "error"
LEVELS = (FINE, WARNING, ERROR)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result: `level` is one of `LEVELS`, `advice` what to do (empty: nothing)."""

    check: str
    level: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock that is ahead of ours by `least` to `most` seconds."""

    whose: str
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Voter:
    """A server that votes on each lock.

    Attributes:
        waits: seconds until it votes, if it is new or was emptied.
        trouble: why it does not answer; empty: it does.
        locks: the names of its locks, with or without a majority.
        kept: an operator vouches that it persists data before it answers.
    """

    endpoint: str
    waits: float = 0.0
    trouble: str = ""
    locks: frozenset[str] = frozenset()
    kept: bool = False


class Voting(Protocol):
    """A store of several servers that vote on each lock."""

    def voters(self) -> Iterator[Voter]:
        """Ask each server, one after the other."""

    def vouch(self) -> None:
        """Record that nobody holds a lock, so that all servers vote at once."""

    def vouch_kept(self, *, kept: bool = True) -> None:
        """Record whether all servers write everything down before they answer."""


def too_few(votes: Mapping[str, str]) -> str:
    """Name the servers without a vote (`ServiceStore.votes`), if the others are too few."""
    without = [f"{server} ({why})" for server, why in votes.items() if why]
    if 2 * (len(votes) - len(without)) > len(votes) or not without:
        return ""
    return f"{len(without)} of {len(votes)} servers have no vote: {'; '.join(without)}."
