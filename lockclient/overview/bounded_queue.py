"""The queue between watch and table, bounded in bytes.

If other clients write faster than the table reads, the thread that reads the watch waits for room,
and the store keeps the rest.
"""

from __future__ import annotations

import threading
from collections import deque

from lockclient.stores.service_store import Batch

ROOM = 16 * 1024 * 1024
"""Bytes of values; one batch may exceed it."""
_EACH = 200
"""Bytes counted for a change in addition to its value."""


class BoundedQueue:
    """A FIFO queue of batches: several threads put, one gets."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches: deque[tuple[Batch, int]] = deque()
        self._size = 0
        self._closed = False

    def put(self, batch: Batch, *, wait: bool = True) -> None:
        size = sum(_EACH + len(change.value or b"") for change in batch.changes)
        with self._changed:
            self._changed.wait_for(lambda: not wait or self._size <= ROOM or self._closed)
            self._batches.append((batch, size))
            self._size += size
            self._changed.notify_all()

    def get(self) -> Batch | None:
        """Wait for the next batch and return it; None: the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._closed)
            if self._closed:
                return None
            batch, size = self._batches.popleft()
            self._size -= size
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
