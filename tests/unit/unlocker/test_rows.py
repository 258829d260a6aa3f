"""What the policy's argument needs of the table: `seen_at` is not before the write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from lockclient.model.clocks import Deadline
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import Batch, Kind
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until


class SlowStore(MemoryStore):
    """A store whose second reading hangs until it is let go, and then finds a new push."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_once = False
        self.let_go = threading.Event()
        self.pushed_at = 0.0

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        if self.asked_once and "locks" in kinds:
            self.let_go.wait(30)
            self.push("a")
            self.pushed_at = time.monotonic()
        self.asked_once = True
        yield from super().load(kinds, deadline)


def test_a_push_during_a_reading_that_hangs_is_not_counted_from_before_it() -> None:
    """Else a lock is removed early by as long as an outage took that a reading waited out."""
    store = SlowStore()
    store.take("a")
    table = Table(store)
    table.start()
    try:
        assert table.wait_ready(30)
        table.resync()
        time.sleep(0.3)  # the reading has begun, and the holder pushes only after this
        store.let_go.set()
        wait_until(lambda: table.loads == 2, what="the second reading")
        row = table.row("a")
        assert row is not None
        assert not row.found
        assert not row.holder.broken()
        assert row.seen_at >= store.pushed_at
    finally:
        table.stop()
