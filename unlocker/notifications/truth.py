"""Truth: what this unlocker sees as wrong now. Each unlocker gathers it once a second."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lockclient.model.announcement import announced_conditions
from lockclient.model.clocks import monotonic
from lockclient.model.holder import ALERT, BROKEN, OVERDUE, UNDECIDED
from lockclient.model.removal import Removal
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Row
from unlocker.deadlines import CARRIED_OVER, TOO_LONG, Deadlines
from unlocker.notifications import conditions
from unlocker.notifications.conditions import (
    BLIND,
    CLOCK,
    KEPT,
    KINDS,
    OF_UNLOCKER,
    PAST_ALERT,
    Condition,
    condition_of,
    holder_hash,
    possible_ids,
    unlocker_condition,
)

_KINDS = {
    ALERT: PAST_ALERT,
    OVERDUE: conditions.OVERDUE,
    TOO_LONG: conditions.TOO_LONG,
    BROKEN: conditions.BROKEN,
    UNDECIDED: conditions.UNDECIDED,
    CARRIED_OVER: KEPT,
}
POSSIBLE_S = 30.0
"""Seconds for which hashes of all locks are used: 100,000 take a fifth of a second."""
_MAX_STEP_S = 10.0
"""Most seconds between two steps that count as time without readiness: a process that was stopped
is often ready soon after it continues."""


@dataclass(frozen=True)
class Truth:
    """All that is wrong, as one unlocker sees it.

    Attributes:
        found: the conditions that have lasted, by code and id. Those of locks and of other
            unlockers are missing while this unlocker is not ready.
        is_ready: this unlocker can do its work. If not, nothing is evidence for an end.
        is_sure: its clock is trusted, too, so it finds all that is wrong.
        removals: the newest removals by their holders' hashes, the oldest first.
        announced: the ids of all conditions that unlockers announce.
        rows: returns the rows of the table.
        possible: returns the ids, without codes, of all that may be wrong with the locks in it.
    """

    found: Mapping[str, Mapping[str, Condition]] = field(default_factory=dict)
    is_ready: bool = False
    is_sure: bool = False
    removals: Mapping[str, Removal] = field(default_factory=dict)
    announced: Collection[str] = ()
    rows: Callable[[], Mapping[str, Row]] = dict
    possible: Callable[[], Collection[str]] = tuple

    def is_over(self, condition_id: str) -> bool:
        """Return whether a condition is over, by evidence: the lock is free, has another holder, or
        had a heartbeat; the unlocker does not announce it, or is gone.

        "Not true for me" is no evidence: a restarted unlocker, or one with a wrong clock, knows
        less.
        """
        if KINDS[condition_id[0]].of is OF_UNLOCKER:
            return condition_id not in self.announced
        return condition_id[1:] not in self.possible()


@dataclass(eq=False)
class Observations:
    """Gathers the truth; for one thread.

    Attributes:
        identity: this unlocker's name.
        trouble: returns the reason why this unlocker can't do its work; None: it can.
        own: returns what else is wrong with this unlocker, by codes, as sentences.
        announced: what this unlocker announces of itself: sentences by codes.
    """

    identity: str
    table: Table
    deadlines: Deadlines
    trouble: Callable[[], str | None]
    own: Callable[[], Mapping[str, str]]
    announced: dict[str, str] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _own_since: dict[str, float] = field(default_factory=dict)
    _blind_for: float = 0.0
    _stepped_at: float = math.inf
    _kept: Sequence[Removal] = ()
    _removals: dict[str, Removal] = field(default_factory=dict)
    _possible: tuple[float, Collection[str]] = (-math.inf, ())

    def gather(self, now: float) -> Truth:
        """Return the truth at the monotonic time `now`."""
        trouble, own = self.trouble(), dict(self.own())
        is_sure = CLOCK.code not in own
        if text := self._blindness(trouble, now):
            own[BLIND.code] = text
        self._own_since = {code: self._own_since.get(code, now) for code in own}
        self.announced = {
            code: text
            for code, text in own.items()
            if code == BLIND.code or now - self._own_since[code] >= KINDS[code].for_s
        }
        texts = {
            name: announced_conditions(value) for name, value in self.table.unlockers().items()
        }
        found: dict[str, dict[str, Condition]] = {code: {} for code in KINDS}
        announced = set[str]()
        for name, sentences in {**texts, self.identity: self.announced}.items():
            for kind in (KINDS[code] for code in sentences if code in KINDS):
                condition = unlocker_condition(kind, name, sentences[kind.code])
                announced.add(condition.id)
                if trouble is None or name == self.identity:
                    found[kind.code][condition.id] = condition
        if trouble is not None:
            return Truth(found, removals=self._removals, announced=announced)
        self._find_locks(found, now)
        removals = self._newest_removals()
        return Truth(found, True, is_sure, removals, announced, self.table.rows, self._possible_ids)

    def _possible_ids(self) -> Collection[str]:
        """Return what may be wrong with the locks in the table, which may be `POSSIBLE_S` old.

        So a condition that has just begun may look over, but not for `OVER_S`.
        """
        made_at, found = self._possible
        if monotonic() - made_at >= POSSIBLE_S:
            rows = self.table.rows().values()
            found = {each for row in rows for each in possible_ids(row.holder)}
            self._possible = monotonic(), found
        return found

    def _blindness(self, trouble: str | None, now: float) -> str | None:
        """Return why this unlocker is blind.

        Time without readiness is added up; half of the time with it is subtracted. So 20 s without
        and then 20 s with it count as 10, and an unlocker that is ready half of the time is blind.
        """
        passed = min(max(0.0, now - self._stepped_at), _MAX_STEP_S)
        self._stepped_at = now
        was_blind = BLIND.code in self.announced
        so_far = self._blind_for + (passed if trouble else -passed / 2)
        self._blind_for = min(BLIND.for_s, max(0.0, so_far))
        is_blind = self._blind_for > 0.0 if was_blind else self._blind_for >= BLIND.for_s
        return (trouble or self.announced.get(BLIND.code)) if is_blind else None

    def _find_locks(self, found: Mapping[str, dict[str, Condition]], now: float) -> None:
        since = {}
        for what, holders in self.deadlines.wrong(now).items():
            kind = _KINDS[what]
            for holder in holders:
                condition = condition_of(kind, holder)
                began = since[condition.id] = self._since.get(condition.id, now)
                if now - began >= kind.for_s:
                    found[kind.code][condition.id] = condition
        self._since = since

    def _newest_removals(self) -> Mapping[str, Removal]:
        kept = self.table.removals()
        if kept[:1] != self._kept[:1] or len(kept) != len(self._kept):
            self._kept = kept
            self._removals = {
                holder_hash(removal.holder.name, removal.holder.uuid): removal
                for removal in reversed(kept)
            }
        return self._removals
