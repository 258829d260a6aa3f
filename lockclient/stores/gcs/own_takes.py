"""What this process knows of its own takes: the locks it holds, and which takes may come late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.gcs.keys import ObjectState, Version
from lockclient.stores.requests import RequestState

SETTLE_TIMEOUT_S: Final = 0.5
"""Seconds that who withdraws waits for a take that is in flight: less than the end of a program
leaves for it, so that a tombstone is left in time where it is not answered."""
_MAX_ANSWERED: Final = 1000
"""Takes that were answered, of which the last are known: who withdraws does so in a moment."""


class OwnObject(NamedTuple):
    """What is known of a lock that this process holds: what a release must name, and must leave."""

    version: Version
    tombstone_expires_at: float

    @classmethod
    def of(cls, state: ObjectState) -> OwnObject:
        """Return what is known by an object that was just read."""
        return cls(state.version, state.tombstone_expires_at)


class OwnTakes:
    """The takes of this process, by the uuids of its acquisitions; safe to share between threads.

    Attributes:
        held: the locks that they took.
        ambiguous: uuids of which a create may still arrive.
    """

    def __init__(self) -> None:
        self.held: dict[str, OwnObject] = {}
        self.ambiguous: dict[str, None] = {}
        self._in_flight: set[str] = set()  # those that a thread is at
        self._answered: dict[str, None] = {}  # those whose last take was answered
        self._answered_lock = threading.Lock()

    @contextmanager
    def track(self, uuid: str, sending: RequestState) -> Iterator[None]:
        """Note what is known of a take when the body, which sends it, ends."""
        self._answered.pop(uuid, None)  # of an earlier one
        self._in_flight.add(uuid)
        answered = False
        try:
            yield
            answered = not sending.ambiguous
        except ClusterMutexError:
            answered = not (sending.ambiguous or sending.in_flight)
            raise
        finally:
            # First what is known, then that it is over: who waits for that looks then.
            if sending.ambiguous:
                self.ambiguous[uuid] = None
            if sending.abandoned:  # whoever withdraws looks for itself
                self.held.pop(uuid, None)
            if answered:
                with self._answered_lock:
                    self._answered[uuid] = None
                    if len(self._answered) > _MAX_ANSWERED:
                        del self._answered[next(iter(self._answered))]
            self._in_flight.discard(uuid)

    def is_answered(self, uuid: str, deadline: Deadline) -> bool:
        """Tell whether all that this process has sent to take a lock by that uuid was answered."""
        until = deadline.within(0.0, SETTLE_TIMEOUT_S)
        while uuid in self._in_flight and not until.expired():
            time.sleep(0.01)
        known = uuid in self._answered and uuid not in self._in_flight
        return known and uuid not in self.ambiguous

    def update(self, uuid: str, version: Version, tombstone_expires_at: float = 0.0) -> None:
        """Note a later version of a held lock, and what it must leave, if that is more."""
        own = self.held.get(uuid)
        if own is not None:
            expires_at = max(own.tombstone_expires_at, tombstone_expires_at)
            self.held[uuid] = OwnObject(max(own.version, version), expires_at)

    def forget(self, uuid: str) -> None:
        """Drop what is known of an acquisition that has ended."""
        self.held.pop(uuid, None)
        self.ambiguous.pop(uuid, None)
        with self._answered_lock:
            self._answered.pop(uuid, None)
