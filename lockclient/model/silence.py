"""How long a lock's holder may be silent, and why nobody can tell that of some.

A lock says it in `about`, as a duration. One without any `about`, which any shell script can write,
says it by the distance of its two stamps: both come from one reading of a clock, and the distance
is a constant of the acquisition, to which its holder holds itself as another does to
`auto_unlock_after`. So it is known as soon as both were seen to be written together, and what
deviates from it later was not written by that holder as it should be.
"""

from __future__ import annotations

from typing import Final, Protocol

from lockclient.text.durations import period

_TOLERANCE_S: Final = 0.0025
"""Seconds by which the distance of two stamps, each rounded to a millisecond, may be off."""


class _Stamped(Protocol):
    """What a holder says of its times (`Holder`)."""

    @property
    def alert_at(self) -> float | None: ...
    @property
    def auto_unlock_at(self) -> float | None: ...
    @property
    def auto_unlock_after(self) -> float | None: ...
    @property
    def stamp_revisions(self) -> tuple[int, int]: ...
    @property
    def about_seen(self) -> bool: ...
    @property
    def first_distance(self) -> float | None: ...
    def signs_of_life(self) -> list[float]: ...


def disagreement(signs: list[float]) -> float:
    """Return by how many seconds the first sign of life is later than the last; 0: they agree."""
    apart = signs[0] - signs[-1] if signs else 0.0
    return apart if abs(apart) > _TOLERANCE_S else 0.0


def distance(holder: _Stamped) -> float | None:
    """Return the seconds between the stamps of a lock without `about`; None if nothing tells them.

    In etcd each key has the revision of its own last write: stamps of two are not of one push. (The
    other stores write both at once, or neither.)
    """
    alert_at, unlock_at = holder.alert_at, holder.auto_unlock_at
    written_at, together_with = holder.stamp_revisions
    if holder.about_seen or alert_at is None or unlock_at is None or written_at != together_with:
        return None
    return unlock_at - alert_at


def contradiction(holder: _Stamped) -> str:
    """Say why nobody can tell how long a sound lock's holder may be silent; empty if that is known.

    Durations are constants of an acquisition, so stamps that do not lie so far apart were not
    written together: a person has moved one, or a client that does not know the other.
    """
    stamp, after = holder.auto_unlock_at, holder.auto_unlock_after
    if stamp is None and after is None:
        return ""
    if after is None:
        return _unsaid(holder)
    if stamp is None:
        return (
            "it says how long it may be silent (auto_unlock_after), but not when it is to be "
            "auto-unlocked (auto_unlock_at)"
        )
    return _moved(disagreement(holder.signs_of_life()), "its durations say")


def _unsaid(holder: _Stamped) -> str:
    """Say what is wrong with a lock that has `auto_unlock_at` and no duration."""
    if holder.about_seen or holder.first_distance is None:
        apart = not holder.about_seen and holder.auto_unlock_at and holder.alert_at
        return (
            "it is to be auto-unlocked (auto_unlock_at), but does not say how long it may be "
            "silent until then (auto_unlock_after)"
            + (", and its stamps were not written in one transaction" if apart else "")
        )
    now = distance(holder)
    if now is None:
        return "its stamps were not written in one transaction, so that one was moved alone"
    if now <= 0:
        return "it is to be auto-unlocked (auto_unlock_at) no later than alerted on (alert_at)"
    return _moved(disagreement([now, holder.first_distance]), "its stamps said at first")


def _moved(apart: float, known_from: str) -> str:
    if not apart:
        return ""
    how = "later" if apart > 0 else "earlier"
    return (
        f"its auto-unlock comes {period(abs(apart))} {how} than its alert and {known_from}, so "
        "that one of the two was moved alone"
    )
