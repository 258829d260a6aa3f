"""The memory store with a hand of the test: writes of other clients, and a log of requests."""

from __future__ import annotations

import json
import time
from typing import Any

from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request, Withdraw
from lockclient.testing import memory_store
from tests.support.records import subkeys


class MemoryStore(memory_store.MemoryStore):
    """A store in memory that notes its requests; a test can write to it as another client would."""

    def __init__(self, page_size: int = 1000, memory: memory_store.Memory | None = None) -> None:
        super().__init__(page_size, memory)
        self.asked: list[Request] = []

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        outcome = super().ask(request, deadline)
        self.asked.append(request)
        return outcome

    def take(self, name: str, **values: Any) -> None:
        """Take the lock as another client, now unless `locked_at` says otherwise."""
        self.write(*[("locks", name, key, value) for key, value in subkeys(**values).items()])

    def push(self, name: str, *, alert: float = 300.0, unlock: float = 900.0) -> None:
        """Push the stamps forward, from now on, together as holders do."""
        now = time.time()
        stamps = (("alert_at", now + alert), ("auto_unlock_at", now + unlock))
        self.write(*[("locks", name, part, f"{at:.3f}".encode()) for part, at in stamps])

    def release(self, name: str) -> None:
        gone = [key for key in self.model.kept if key[:2] == ("locks", name)]
        self.write(*[(kind, of, part, None) for kind, of, part in gone])

    def wait(self, name: str, uuid: str, **values: Any) -> None:
        self.write(("queue", name, uuid, json.dumps(values).encode()))

    def unlocker(self, name: str = "watchdog-1:77", *, runs: bool = True) -> None:
        self.write(("unlockers", name, "", b"{}" if runs else None))

    def removed(self, name: str, uuid: str, **values: Any) -> None:
        self.write(("removed", name, uuid, json.dumps(values).encode()))


class FailingStore(MemoryStore):
    """A store that fails a few times before it withdraws."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        if isinstance(request, Withdraw) and self.failures:
            raise self.failures.pop(0)
        return super().ask(request, deadline)
