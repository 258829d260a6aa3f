"""Bucket store (Google Cloud Storage): requests in worker threads, watches by polling."""

from __future__ import annotations

from collections.abc import Iterator

from lockclient.stores.diagnosis_protocol import Finding
from lockclient.stores.gcs.diagnosis import examine
from lockclient.stores.gcs.requests import GcsRequestExecutor
from lockclient.stores.gcs.service_store import GcsServiceStore
from lockclient.stores.protocol import Capabilities


class GcsStore(GcsServiceStore):
    """A `ServiceStore` in a bucket of Google Cloud Storage. Nothing is sent before it is asked.

    Args:
        location: which bucket, and where in it.
    """

    can = Capabilities(
        "Google Cloud Storage",
        queue=False,
        watch=False,
        fencing=False,
        guard=False,
        pace=1.2,  # an object takes one write a second
    )
    _name = "bucket"

    def _connect(self) -> None:
        super()._connect()
        self._executor = GcsRequestExecutor(self._client)

    def examine(self) -> Iterator[Finding]:
        return examine(self._client, self.ask, self._listing)
