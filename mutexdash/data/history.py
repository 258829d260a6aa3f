"""History: the holdings that ended lately, in memory and bounded."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.overview.listed_locks import RELEASED, Ended
from lockclient.overview.rows import Transition

_MAX_ENDED = 2000
"""The newest ended holdings are kept."""
_MAX_RECORDS = 1000
"""Removals whose lock has not gone yet; a step of the table brings both, so they are few."""


class History:
    """Listens to the table; any thread may call it."""

    def __init__(self, *, clock: Callable[[], float] = time.time, most: int = _MAX_ENDED) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ended: deque[Ended] = deque(maxlen=most)
        self._records: OrderedDict[tuple[str, str | None], Removal] = OrderedDict()
        self.version = 0
        """Grows with each holding that ends."""

    def note_removals(self, removals: Sequence[Removal], found: bool) -> None:
        """Note why locks go; the table calls this before `note`."""
        if found:  # they were gone before the first reading
            return
        for removal in removals:
            self._records[removal.holder.name, removal.holder.uuid] = removal
        while len(self._records) > _MAX_RECORDS:
            self._records.popitem(last=False)

    def note(self, transitions: Sequence[Transition]) -> None:
        """Note the holders that lost or released their locks."""
        wall = self._clock()
        ended = [
            self._end(change.before.holder, wall, exact=change.live)
            for change in transitions
            if change.before is not None
            and (uuid := change.before.holder.uuid) is not None
            and (change.after is None or change.after.holder.uuid != uuid)
        ]
        if ended:
            with self._lock:
                self._ended.extend(ended)
                self.version += 1

    def _end(self, holder: Holder, wall: float, *, exact: bool) -> Ended:
        record = self._records.pop((holder.name, holder.uuid), None)
        if record is None:
            return Ended(holder, wall, RELEASED, exact=exact)
        how, by, why = record.how or RELEASED, record.removed_by, record.why
        at = wall
        if not exact and record.removed_at is not None:
            at = min(wall, record.removed_at)
        return Ended(holder, at, how, by, why, exact or at < wall)

    def ended(self, since: float) -> list[Ended]:
        """Return what ended after `since` (Unix seconds), the newest first."""
        with self._lock:
            return [ended for ended in reversed(self._ended) if ended.at > since]
