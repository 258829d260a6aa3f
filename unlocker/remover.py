"""Removes the locks that are due, each by a transaction that a sign of life defeats."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.service.logging_setup import log_fields
from lockclient.stores.outcomes import Done, NotHolder, ReadResult
from lockclient.stores.requests import Read, Remove
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.confusables import named
from lockclient.text.durations import period
from unlocker.deadlines import Deadlines, Item
from unlocker.metrics.counters import CHANGED, FAILED, GONE, REMOVED, Metrics
from unlocker.rate_limit import Key, RateLimit

log = logging.getLogger(__name__)

_PATIENCE = 2.0
"""Seconds for one lock: the sweep must go on, and SIGTERM ends the service within 5 s."""

_AT_ONCE = 4
"""Locks at a time where there is no brake: their two requests each mostly wait for a disk."""

_BUDGET = 5.0
"""Seconds after which a run leaves the rest to the next: meanwhile no alert is told."""


@dataclass(eq=False)
class Remover:
    """The locks that are due and not removed yet, and the removing. To be run by one thread.

    Attributes:
        store: where the locks are.
        deadlines: knows whether a lock still is as it was when it was judged.
        rate_limit: is to be told of all removals before `deadlines` is.
        identity: who the records say did it.
        metrics: where attempts are counted.
        ending: when set, no further lock is begun.
    """

    store: ServiceStore
    deadlines: Deadlines
    rate_limit: RateLimit
    identity: str
    metrics: Metrics
    ending: threading.Event
    _pending: deque[Item] = field(default_factory=deque)
    _refused: set[Key] = field(default_factory=set)
    _unsure: set[Key] = field(default_factory=set)
    _last: Item | None = None

    def run(self, due: Iterable[Item]) -> None:
        """Try to remove these locks, and those left over from earlier runs, once each.

        Raises:
            StoreUnavailable: the store did not answer; the rest is left for the next run.
        """
        self._pending.extend(due)
        budget, withheld = Deadline.after(_BUDGET), 0
        if self.rate_limit.off and len(self._pending) > _AT_ONCE:
            self._run_at_once(budget)
            return
        for _ in range(len(self._pending)):
            if budget.expired() or self.ending.is_set():
                return
            item = self._pending.popleft()
            if self._over(item):
                self._refused.discard(_key(item))
                continue
            if not self._may_go_on():
                self._pending.appendleft(item)
                return
            if self.rate_limit.full(self._held()):
                self._pending.appendleft(item)
                withheld = self._drop_over()
                break
            self._try(item)
        self.rate_limit.withhold(withheld, self._held())

    def failing(self) -> set[str]:
        """Return the names of locks whose removal was refused and is tried on, for any thread."""
        return {name for name, _ in self._refused.copy()}

    def _run_at_once(self, budget: Deadline) -> None:
        """Do the same without a brake, when no removal has to wait until the one before is told."""
        todo, self._pending = self._pending, deque()

        def work() -> None:
            while not budget.expired() and not self.ending.is_set():
                try:
                    item = todo.popleft()
                except IndexError:  # the others have done the rest
                    return
                if self._over(item):
                    self._refused.discard(_key(item))
                else:
                    self._try(item)

        with ThreadPoolExecutor(_AT_ONCE, "remover") as pool:
            workers = [pool.submit(work) for _ in range(_AT_ONCE)]
        self._pending.extendleft(reversed(todo))
        for each in workers:
            each.result()

    def _over(self, item: Item) -> bool:
        """Tell whether there is nothing left to do about a lock, not even to count it."""
        return not self.deadlines.current(item) and _key(item) not in self._unsure

    def _drop_over(self) -> int:
        """Forget what needs no removal any more; return how much is left."""
        self._pending = deque(each for each in self._pending if not self._over(each))
        self._refused.intersection_update(map(_key, self._pending))
        return len(self._pending)

    def _held(self) -> int:
        return sum(self.deadlines.counts().values())

    def _may_go_on(self) -> bool:
        """Wait until the brake has counted all removals up to our last one: see `brake` for why.

        The table tells of that in the same step in which it tells that the lock is gone.
        """
        deadline = Deadline.after(_PATIENCE)
        while self._last is not None and self.deadlines.current(self._last):
            if deadline.expired() or self.ending.wait(0.002):
                return False
        self._last = None
        return True

    def _try(self, item: Item) -> None:
        key, result = _key(item), FAILED
        try:
            result = self._attempt(item)
        except StoreUnavailable:
            self._unsure.add(key)
            self.rate_limit.count([key])  # it may have happened
            raise
        finally:
            self.metrics.auto_unlocks.labels(result).inc()
            if result == FAILED:
                self._pending.append(item)
            else:
                self._refused.discard(key)
                self._unsure.discard(key)
        if result == REMOVED and not self.rate_limit.off:
            self.rate_limit.count([key])
            self._last = item

    def _attempt(self, item: Item) -> str:
        try:
            return self._remove(item)
        except StoreUnavailable:
            raise
        except Exception as error:  # whatever it is, the others are due as well
            if _key(item) not in self._refused:  # once for a lock, not once a second
                holder = item.row.holder
                log.warning(
                    "Lock %s is due and can't be removed, trying on: %s",
                    named(holder.name),
                    error,
                    extra=log_fields("removal-failed", holder),
                    exc_info=not isinstance(error, StoreError),
                )
            self._refused.add(_key(item))
            return FAILED

    def _remove(self, item: Item) -> str:
        row, deadline = item.row, Deadline.after(_PATIENCE)
        name, uuid = row.holder.name, row.holder.uuid
        # The table keeps no backtraces, and the record is to have one. This look decides nothing
        # that the transaction does not decide again.
        seen = self.store.ask(Read(name, uuid), deadline)
        assert isinstance(seen, ReadResult)
        if seen.holder is None or seen.holder.uuid != uuid:
            return self._ended(seen.removal)
        # Not current: it is looked at only because an earlier request of ours was not answered.
        if (
            seen.holder.stamp_revisions != row.holder.stamp_revisions
            or seen.holder.broken()
            or seen.holder.undecided()
            or not self.deadlines.current(item)
        ):
            return CHANGED
        removal = self._record(seen.holder, row.seen_at)
        outcome = self.store.ask(Remove(removal, row.holder.stamp_revisions), deadline)
        if isinstance(outcome, Done):
            self._tell(removal)
            return REMOVED
        assert isinstance(outcome, NotHolder)
        return CHANGED if outcome.holder == uuid else self._ended(outcome.removal)

    def _ended(self, removal: Removal | None) -> str:
        """Tell how a lock went that is not there any more: by an earlier request of ours, maybe."""
        if removal is None or removal.removed_by != self.identity:
            return GONE
        self._tell(removal)
        return REMOVED

    def _record(self, holder: Holder, seen_at: float) -> Removal:
        silent = monotonic() - seen_at
        allowed = period(holder.auto_unlock_after or 0)
        why = f"no sign of life for {period(round(silent, 1))}; its time ran out after {allowed}"
        return Removal(holder.bounded(), time.time(), self.identity, AUTO_UNLOCK, why)

    def _tell(self, removal: Removal) -> None:
        holder = removal.holder
        log.warning(
            "Removed lock %s: %s.",
            named(holder.name),
            removal.why,
            extra=log_fields("auto-unlocked", holder, removal),
        )


def _key(item: Item) -> Key:
    return item.row.holder.name, item.row.holder.uuid
