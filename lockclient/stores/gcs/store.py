"""Bucket store (Google Cloud Storage): requests in worker threads, watches by polling."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockclient.errors import StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.common.poll_watch import PollWatch
from lockclient.stores.common.threaded import ThreadedStore
from lockclient.stores.diagnosis_protocol import Finding
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.diagnosis import examine
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.requests import GcsRequestExecutor
from lockclient.stores.gcs.service_store import GcsServiceStore
from lockclient.stores.gcs.wire.http_client import HttpClient
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import Capabilities, WatchEvent, WatchTarget
from lockclient.stores.requests import RequestState


class GcsStore(ThreadedStore, GcsServiceStore):
    """A `ServiceStore` in a bucket of Google Cloud Storage. Nothing is sent before it is asked.

    Args:
        place: which bucket, and where in it.
    """

    can = Capabilities(
        "Google Cloud Storage",
        queue=False,
        watch=False,
        fencing=False,
        guard=False,
        shared_clock=True,
        pace=1.2,  # an object takes one write a second
    )
    _name = "bucket"

    def __init__(self, place: GcsLocation) -> None:
        self.place = place
        super().__init__()

    def _connect(self) -> None:
        super()._connect()
        self._client = HttpClient(self.place)
        self._executor = GcsRequestExecutor(self._client)
        self._serve(self._client)

    def _disconnect(self) -> None:
        self._clean_up_workers.close()
        self._client.close()

    def _do(self, sending: RequestState, deadline: Deadline) -> Outcome:
        return self._executor.do(sending, deadline)

    def _was_closed(self) -> StoreClosed:
        return errors.closed(self.place.bucket)

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> PollWatch:
        """See `MutexStore.watch`: every few seconds it is looked who has the lock."""
        if not revision:
            notify(WatchEvent(0, started=True))
        return PollWatch(self.ask, target, notify, self._pollers)

    def endpoints(self) -> tuple[str, ...]:
        """Name the store's address, for messages."""
        return (self.place.url(),)

    def examine(self) -> Iterator[Finding]:
        return examine(self._client, self.ask, self._listing)
