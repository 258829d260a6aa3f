"""What the policy's argument needs of the table: `seen_at` is not before the write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

from lockclient.model.clocks import Deadline
from lockclient.overview.table import Table
from lockclient.stores.protocol import Subscription
from lockclient.stores.service_protocol import Batch, Change, Kind, ServiceStore
from tests.support.processes import wait_until


class SlowStore:
    """A store whose second reading hangs until it is let go, and then brings a new push."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.let_go = threading.Event()
        self.pushed_at = 0.0

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        revision = 10
        if self.asked.is_set():
            self.let_go.wait(30)
            revision = 20
            self.pushed_at = time.monotonic()
        self.asked.set()
        about = b'{"expected_runtime": 30, "auto_unlock_after": 60}'
        taken = {"uuid": b"u", "hostname": b"h", "about": about}
        pushed = {"alert_at": b"%d" % (20 + revision), "auto_unlock_at": b"%d" % (50 + revision)}
        changes = [
            *(Change("locks", "a", part, value, 10, 10) for part, value in taken.items()),
            *(Change("locks", "a", part, value, revision, 10) for part, value in pushed.items()),
        ]
        yield Batch(tuple(changes), revision)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        class Watch:
            def close(self) -> None:
                pass

        return Watch()

    def connected(self) -> bool:
        return True


def test_a_push_during_a_reading_that_hangs_is_not_counted_from_before_it() -> None:
    """Else a lock is removed early by as long as an outage took that a reading waited out."""
    store = SlowStore()
    table = Table(cast("ServiceStore", store))
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
