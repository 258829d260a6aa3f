"""Expiry (`expire=1`): a client that wants a lock removes it after silence of its whole time.

It is for buckets without an unlocker, and follows an unlocker's rule (`model.auto_unlock`): the
client counts on its own monotonic clock from its first read of a version of the lock. Each write
makes a new version, so two reads of one version, however far apart, prove that nobody pushed in
between. All waiters of a process count together; a new process begins at zero.

While an unlocker runs, clients remove nothing: it alerts people first, and limits the rate. A
client lists the announcements every `UNLOCKER_POLL_INTERVAL_S` while it wants a lock that may
expire, and again before it removes one. Silence counts from the last heartbeat of any unlocker,
or from the lock's own, whichever is later. If that can't be read, nothing is removed.

**Races.** `removal_steps` names generation and metageneration as they were judged.
- If a push or release comes first, the removal's first write is refused. If it comes second, it is
  refused and reads the decision.
- Of two removers one decides. The other reads the decision and completes it (a record or tombstone
  is not written twice); one upload takes the free lock.
- An unanswered decision is sent again, and finds itself or a later write. One that arrives late
  names a version that was replaced.
- A taker that dies before its decision has changed nothing; after it, the next reader completes it.
"""

from __future__ import annotations

import os
import socket
import time
from math import inf
from typing import Final

from lockclient.errors import StoreUnavailable
from lockclient.model.auto_unlock import NEVER, ClockCheck, due_at, is_unchanged, silence_removal
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.model.holder import Holder
from lockclient.stores.gcs import removal_steps
from lockclient.stores.gcs.conditional_calls import GuardedObjects
from lockclient.stores.gcs.keys import ObjectState, Version
from lockclient.stores.gcs.listing import ObjectListing
from lockclient.stores.request_types import Remove
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

UNLOCKER_POLL_INTERVAL_S: Final = 10.0
"""Seconds between two listings of announcements: less than the `ttl` of one."""
_MAX_COUNTED: Final = 1000
"""Locks that are counted at a time; beyond that, the one that was read first is forgotten."""


class Expiry:
    """Removes silent locks on behalf of clients that want them; safe to share between threads."""

    def __init__(self, listing: ObjectListing) -> None:
        self._listing = listing
        self._first_seen: dict[str, tuple[int, float]] = {}  # revision, and the first read of it
        self._unlocker_seen_at = -inf
        self._polled_at = -inf

    def remove_if_due(self, objects: GuardedObjects, name: str, state: ObjectState) -> bool:
        """Remove a lock that was just read, if it is due; True: it has changed, read it again.

        Raises:
            StoreError: the bucket refuses the removal.
        """
        listed, seen_at = state.holder(name), self._seen_at(name, state)
        if due_at(listed, seen_at, self._clock_check()) == NEVER:
            return False
        # With a delivery of its own: nothing that is sent here takes the lock, so a taker whose
        # removal is not answered has nothing to withdraw.
        objects = GuardedObjects(objects.client, objects.names, objects.deadline)
        try:
            for max_age in (UNLOCKER_POLL_INTERVAL_S, 0.0):
                self._poll_unlockers(max_age, objects.deadline)
                if not self._is_due(listed, seen_at):
                    return False
            return self._remove(objects, listed, seen_at, state)
        except StoreUnavailable:
            return False  # the next poll tries again

    def _seen_at(self, name: str, state: ObjectState) -> float:
        """Return the time of the first read of this version of a lock."""
        known, seen_at = self._first_seen.get(name, (0, 0.0))
        if known != state.version.revision:
            # The later of two readers may come here first: then silence counts from later.
            seen_at = monotonic()
            self._first_seen.pop(name, None)
            while len(self._first_seen) >= _MAX_COUNTED:
                self._first_seen.pop(next(iter(self._first_seen.copy())), None)
            self._first_seen[name] = state.version.revision, seen_at
        return seen_at

    def _poll_unlockers(self, max_age: float, deadline: Deadline) -> None:
        """Read the last heartbeat of any unlocker, unless a poll is younger than that."""
        begun = monotonic()
        if begun - self._polled_at < max_age:
            return
        age = self._listing.newest_announcement_age(deadline)
        self._unlocker_seen_at = max(self._unlocker_seen_at, monotonic() - age)
        self._polled_at = begun

    def _is_due(self, holder: Holder, seen_at: float) -> bool:
        since = max(seen_at, self._unlocker_seen_at)
        return due_at(holder, since, self._clock_check()) <= monotonic()

    def _clock_check(self) -> ClockCheck:
        """Compare this host's wall clock with the bucket's, for locks without a duration."""
        now, theirs = Now.read(), self._listing.now()
        return ClockCheck.of(now, [theirs - now.wall] if theirs else [], now)

    def _remove(
        self, objects: GuardedObjects, listed: Holder, seen_at: float, state: ObjectState
    ) -> bool:
        """Remove a lock that is due, with its backtrace in the record; see "Races" above."""
        holder = objects.holder(listed.name, state)
        if holder is None:
            return True
        if not is_unchanged(holder, listed) or not self._is_due(holder, seen_at):
            return False
        by = f"taker@{socket.gethostname()}:{os.getpid()}"
        removal = silence_removal(holder, monotonic() - seen_at, by, time.time())
        request = Remove(removal, holder.stamp_revisions)
        if isinstance(removal_steps.remove(objects, request), Version):
            log.warning(
                "Removed lock %r, as no unlocker runs (expire=1): %s.", holder.name, removal.why
            )
        return True
