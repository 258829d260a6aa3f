"""Removes the due locks, each by a transaction that fails if the lock got a heartbeat."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.auto_unlock import is_unchanged, silence_removal
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.removal import Removal
from lockclient.service.logging_setup import log_fields
from lockclient.stores.outcomes import Done, NotHolder, ReadResult
from lockclient.stores.request_types import Read, Remove
from lockclient.stores.service_store import ServiceStore
from lockclient.text.escaping import shown_name
from unlocker.deadlines import Deadlines, TimedLock
from unlocker.metrics.counters import CHANGED, FAILED, GONE, REMOVED, Metrics
from unlocker.rate_limit import Key, RateLimit

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 2.0
"""Timeout of the requests about one lock: SIGTERM must end the service within 5 s."""

_MAX_PARALLEL = 4
"""Locks removed in parallel without a rate limit; their requests mostly wait for a disk."""

_RUN_BUDGET_S = 5.0
"""Time limit of one run. The sweep's thread sends no alert during a run, so the remaining locks
wait for the next run."""


@dataclass(eq=False)
class Remover:
    """Removes due locks and keeps those that could not be removed yet. One thread calls `run`.

    Attributes:
        store: has the locks.
        deadlines: tells whether a lock has changed since its times were computed.
        rate_limit: limits removals. It always counts a removal before `deadlines` forgets the lock.
        identity: this unlocker's name in the removal records.
        metrics: has the counter of attempts.
        ending: when set, no further removal begins.
    """

    store: ServiceStore
    deadlines: Deadlines
    rate_limit: RateLimit
    identity: str
    metrics: Metrics
    ending: threading.Event
    _pending: deque[TimedLock] = field(default_factory=deque)
    _refused: set[TimedLock] = field(default_factory=set)
    _unanswered: set[TimedLock] = field(default_factory=set)  # the request may be in flight
    _last_removed: TimedLock | None = None

    def run(self, due: Iterable[TimedLock]) -> None:
        """Try once to remove each of these locks and of those left from earlier runs.

        Raises:
            StoreUnavailable: the store did not answer; the next run does the rest.
        """
        todo, self._pending = deque((*self._pending, *due)), deque()
        budget = Deadline.after(_RUN_BUDGET_S)
        try:
            if self.rate_limit.unlimited and len(todo) > _MAX_PARALLEL:
                with ThreadPoolExecutor(_MAX_PARALLEL, "remover") as pool:
                    workers = [pool.submit(self._work, todo, budget) for _ in range(_MAX_PARALLEL)]
                finished = [worker.result() for worker in workers]
            else:
                finished = [self._work(todo, budget)]
        finally:
            self._pending.extendleft(reversed(todo))
        if all(finished):  # then what is left waits for the rate limit
            left = self._drop_settled() if todo else 0
            self.rate_limit.withhold(left, self.deadlines.held())

    def failing(self) -> set[str]:
        """Return the names of locks whose removal was refused and is retried, for any thread."""
        return {item.row.holder.name for item in self._refused.copy()}

    def _work(self, todo: deque[TimedLock], budget: Deadline) -> bool:
        """Remove locks until none is left or the rate limit is reached.

        Return False if it stopped for another reason (the time was over, the service ends, a
        removal was not counted in time): the next run goes on.
        """
        while todo:
            if budget.expired() or self.ending.is_set():
                return False
            try:
                item = todo.popleft()
            except IndexError:  # other threads did the rest
                break
            if self._is_settled(item):
                self._refused.discard(item)
            elif not self._wait_until_counted():
                todo.appendleft(item)
                return False
            elif self.rate_limit.is_full(self.deadlines.held()):
                todo.appendleft(item)
                return True
            else:
                self._try(item)
        return True

    def _is_settled(self, item: TimedLock) -> bool:
        """Return whether the item can be forgotten.

        That is so if the lock has changed since its times were computed, and no request about it is
        unanswered.
        """
        return not self.deadlines.is_current(item) and item not in self._unanswered

    def _drop_settled(self) -> int:
        """Forget locks that no longer need a removal; return the number of the others."""
        self._pending = deque(item for item in self._pending if not self._is_settled(item))
        self._refused.intersection_update(self._pending)
        return len(self._pending)

    def _wait_until_counted(self) -> bool:
        """Wait until the rate limit has counted all removals up to our last one.

        Otherwise more removals could begin than the rate limit allows (step 2 in `rate_limit`).

        1. The table reports the removal, and the rate limit counts it.
        2. The table reports that the lock is free, and `deadlines` forgets it.

        So `is_current` tells when the removal was counted.
        """
        deadline = Deadline.after(_REQUEST_TIMEOUT_S)
        while self._last_removed is not None and self.deadlines.is_current(self._last_removed):
            if deadline.expired() or self.ending.wait(0.002):
                return False
        self._last_removed = None
        return True

    def _try(self, item: TimedLock) -> None:
        holder, result = item.row.holder, FAILED
        key: Key = holder.name, holder.uuid
        try:
            result = self._remove(item)
        except StoreUnavailable:
            self._unanswered.add(item)
            self.rate_limit.count([key])  # the store may have removed the lock
            raise
        except Exception as error:  # continue with the other due locks
            if item not in self._refused:  # log once for a lock, not once a second
                log.warning(
                    "Lock '%s' is due and can't be removed; retrying: %s",
                    shown_name(holder.name),
                    error,
                    extra=log_fields("removal-failed", holder),
                    exc_info=not isinstance(error, StoreError),
                )
            self._refused.add(item)
        finally:
            self.metrics.auto_unlocks.labels(result).inc()
            if result == FAILED:
                self._pending.append(item)
            else:
                self._refused.discard(item)
                self._unanswered.discard(item)
        if result == REMOVED and not self.rate_limit.unlimited:
            self.rate_limit.count([key])
            self._last_removed = item

    def _remove(self, item: TimedLock) -> str:
        row, deadline = item.row, Deadline.after(_REQUEST_TIMEOUT_S)
        name, uuid = row.holder.name, row.holder.uuid
        # The record needs the backtrace, which the table does not keep. The transaction compares
        # again everything that this read shows.
        seen = self.store.ask(Read(name, uuid), deadline)
        assert isinstance(seen, ReadResult)
        if seen.holder is None or seen.holder.uuid != uuid:
            return self._result_if_gone(seen.removal)
        # `_is_settled` filters outdated items, except those with an unanswered request.
        if not is_unchanged(seen.holder, row.holder) or not self.deadlines.is_current(item):
            return CHANGED
        silent = monotonic() - row.seen_at
        removal = silence_removal(seen.holder, silent, self.identity, time.time())
        outcome = self.store.ask(Remove(removal, row.holder.stamp_revisions), deadline)
        if isinstance(outcome, Done):
            self._log_removal(removal)
            return REMOVED
        assert isinstance(outcome, NotHolder)
        return CHANGED if outcome.holder == uuid else self._result_if_gone(outcome.removal)

    def _result_if_gone(self, removal: Removal | None) -> str:
        """Return how a lock ended; an earlier request of ours may have removed it."""
        if removal is None or removal.removed_by != self.identity:
            return GONE
        self._log_removal(removal)
        return REMOVED

    def _log_removal(self, removal: Removal) -> None:
        holder = removal.holder
        log.warning(
            "Removed lock '%s': %s.",
            shown_name(holder.name),
            removal.why,
            extra=log_fields("auto-unlocked", holder, removal),
        )
