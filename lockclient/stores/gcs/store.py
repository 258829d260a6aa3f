"""The store in a bucket: requests by threads, watches by looking from time to time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockclient.errors import StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.common.async_bridge import Looking
from lockclient.stores.common.threaded import ThreadedStore
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.diagnosis import examine
from lockclient.stores.gcs.location import Place
from lockclient.stores.gcs.requests import Steps
from lockclient.stores.gcs.service_store import ServicesOfBucket
from lockclient.stores.gcs.wire.http_client import Calls
from lockclient.stores.protocol import Abilities, Event, Outcome, Sending, Target
from lockclient.stores.service_protocol import Finding


class GcsStore(ThreadedStore, ServicesOfBucket):
    """A `ServiceStore` in a bucket of Google Cloud Storage. Nothing is sent before it is asked.

    Args:
        place: which bucket, and where in it.
    """

    can = Abilities(
        "Google Cloud Storage",
        line=False,
        watch=False,
        fencing=False,
        guard=False,
        shared_clock=True,
        pace=1.2,  # an object takes one write a second
    )
    _name = "bucket"

    def __init__(self, place: Place) -> None:
        self.place = place
        super().__init__()

    def _connect(self) -> None:
        super()._connect()
        self._calls = Calls(self.place)
        self._steps = Steps(self._calls)
        self._serve(self._calls)

    def _disconnect(self) -> None:
        self._beside.close()
        self._calls.close()

    def _do(self, sending: Sending, deadline: Deadline) -> Outcome:
        return self._steps.do(sending, deadline)

    def _was_closed(self) -> StoreClosed:
        return errors.closed(self.place.bucket)

    def watch(self, target: Target, revision: int, notify: Callable[[Event], None]) -> Looking:
        """See `MutexStore.watch`: every few seconds it is looked who has the lock."""
        if not revision:
            notify(Event(0, started=True))
        return Looking(self.ask, target, notify, self._lookers)

    def endpoints(self) -> tuple[str, ...]:
        """Name the store's address, for messages."""
        return (self.place.url(),)

    def examine(self) -> Iterator[Finding]:
        """See `Examined.examine`."""
        return examine(self._calls, self.ask, self._listing)
