"""A store that counts its requests and failures, by task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request
from lockclient.stores.service_store import Batch, Kind, ServiceStore
from unlocker.metrics.counters import Metrics


class CountingStore:
    """A `ServiceStore` that counts and passes all calls to another one."""

    def __init__(self, store: ServiceStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:  # calls that belong to no task
        return getattr(self._store, name)

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        with self._counted("sweep"):
            return self._store.ask(request, deadline)

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        started = monotonic()
        try:  # each page is a request
            for page in self._store.load(kinds, deadline):
                self._metrics.requests.labels("resync").inc()
                yield page
        except ClusterMutexError:
            self._metrics.requests.labels("resync").inc()
            self._metrics.failures.labels("resync").inc()
            raise
        self._metrics.resyncs.observe(monotonic() - started)
        self._metrics.succeeded_at["resync"] = monotonic()

    def clock_offsets(self, timeout: float) -> list[float]:
        self._metrics.requests.labels("clock-check").inc()
        offsets = self._store.clock_offsets(timeout)
        if not offsets:
            self._metrics.failures.labels("clock-check").inc()
        return offsets

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        with self._counted("heartbeat"):
            return self._store.announce(unlocker, value, ttl, deadline)

    @contextmanager
    def _counted(self, task: str) -> Iterator[None]:
        self._metrics.requests.labels(task).inc()
        try:
            yield
        except ClusterMutexError:
            self._metrics.failures.labels(task).inc()
            raise
