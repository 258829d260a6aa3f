"""What the service knows at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lockclient.model.restore_marker import Restored
from unlocker.deadlines import Item
from unlocker.policy import ClockCheck
from unlocker.rate_limit import Braking


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What the service knows at the moment of a scrape.

    Attributes:
        locks: how many in each state.
        kept: locks that are past their auto-unlock and wait only because counting began anew.
        lines: how many wait, lock by lock.
        unlockers: how many show a sign of life.
        past_alert: locks past their alert, `LISTED` at most, the most urgent first.
        unlisted: how many locks past their alert are not among them, by state.
        failing: names of locks whose removal was tried in vain and is tried on.
        store_up: whether the store is reachable, as far as known.
        out_of_space: whether it has no space for anything new.
        votes: why which of its servers has no vote, see `ServiceStore.votes`.
        proven_at: until when the watch has shown all that is known to be written (Unix seconds).
        loads: how often all locks were read.
        restored: the last restore of the store that is known of.
        watch_restarts: how often the watch broke.
        check: the last clock check.
        braking: what the brake does.
    """

    locks: Mapping[str, int]
    kept: int
    lines: Iterable[int]
    unlockers: int
    past_alert: Sequence[Item]
    unlisted: Mapping[str, int]
    failing: Collection[str]
    store_up: bool
    out_of_space: bool
    votes: Mapping[str, str]
    proven_at: float
    loads: int
    restored: Restored | None
    watch_restarts: int
    check: ClockCheck | None
    braking: Braking
