"""Bucket store (Google Cloud Storage)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import nsmallest
from itertools import islice
from typing import Any

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.polled_store import PolledStore
from lockclient.stores.common.polling import Polling
from lockclient.stores.findings import Finding
from lockclient.stores.gcs.conditional_calls import ABSENT, GuardedObjects
from lockclient.stores.gcs.diagnosis import examine
from lockclient.stores.gcs.expiry import Expiry
from lockclient.stores.gcs.keys import ObjectNames, Version
from lockclient.stores.gcs.listing import ObjectListing
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.requests import GcsRequestExecutor
from lockclient.stores.gcs.wire.access_tokens import checked_credentials
from lockclient.stores.gcs.wire.http_client import HttpClient
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.service_store import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    NAMES_TO_SORT,
    Change,
    Document,
)


class GcsStore(PolledStore):
    """A `ServiceStore` in a bucket of Google Cloud Storage. It connects at the first request.

    Args:
        location: of the locks.
        credentials: an object of google-auth, or the path of a file of such; None: those that
            Google's own programs find (GOOGLE_APPLICATION_CREDENTIALS, gcloud, metadata server).

    Raises:
        ValueError: these are no credentials, or there is no such file.
    """

    can = Capabilities(
        "Google Cloud Storage",
        queue=False,
        watch=False,
        fencing=False,
        guard=False,
        pace=1.2,  # a bucket accepts one write a second to an object
    )
    location: GcsLocation

    def __init__(self, location: GcsLocation, credentials: Any = None) -> None:
        self._credentials = checked_credentials(credentials)
        self.can = replace(type(self).can, expires=location.expire)
        super().__init__(location)

    def _connect(self) -> None:
        super()._connect()
        self._client = HttpClient(self.location, self._credentials)
        self._names = ObjectNames(self.location.root)
        self._listing = ObjectListing(self._client, self._names)
        self._polling = Polling(self._listing, self.background.patient)
        expiry = Expiry(self._listing) if self.location.expire else None
        self._do = GcsRequestExecutor(self._client, expiry).do

    def _disconnect(self) -> None:
        super()._disconnect()
        self._client.close()

    # ------------------------------------------------------------ announcements

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:  # noqa: ARG002 - it is in the value
        """See `ServiceStore.announce`.

        An object has no lease: an announcement ends by its age, by the bucket's clock.
        """
        name = self._names.announcement(unlocker)
        written = self._guarded(deadline).put(name, {"said": value}, b"", None)
        assert written is not None, "a write that compares nothing was refused"
        self._listing.announced = name, written.created_at
        return self._polling.revision_at(monotonic())

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        self._listing.announced = "", 0.0  # first: a poll that runs meanwhile may not find it
        self._guarded(deadline).delete(self._names.announcement(unlocker))

    # ------------------------------------------------------------ documents

    def read_document(self, name: str, deadline: Deadline) -> Document:
        objects, path, body = self._guarded(deadline), self._names.documents + name, None
        while body is None:  # another unlocker wrote between the two requests
            version = objects.version(path)
            body = objects.body(path, version, MAX_DOCUMENT_BYTES) if version != ABSENT else b""
        return Document(body if len(body) <= MAX_DOCUMENT_BYTES else None, version.revision)

    def write_document(
        self, name: str, value: bytes, seen: Document, deadline: Deadline
    ) -> Document | None:
        objects, path = self._guarded(deadline), self._names.documents + name
        version = Version.from_revision(seen.version)
        if value:
            state = objects.put(path, {}, value, version)
            return Document(value, state.version.revision) if state else None
        # No deletion says whether the object was absent.
        is_absent = version == ABSENT and objects.version(path) == ABSENT
        is_deleted = is_absent or (version != ABSENT and objects.delete(path, version))
        return Document(b"", ABSENT.revision) if is_deleted else None

    def document_names(self, deadline: Deadline) -> list[str]:
        return list(islice(self._listing.documents(deadline), MAX_DOCUMENTS))

    def forget(self, change: Change, deadline: Deadline) -> bool:
        if change.kind == "removed":
            name = self._names.record(change.name, change.part)
        else:
            name = self._names.lock(change.name)
        return self._guarded(deadline).delete(name, Version.from_revision(change.version))

    # ------------------------------------------------------------ reading

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        held = self._listing.held(prefix, deadline)
        found = islice(held, max(limit, NAMES_TO_SORT))
        return self.background.run_shielded(nsmallest, limit, found)

    def _guarded(self, deadline: Deadline) -> GuardedObjects:
        return GuardedObjects(self._client, self._names, deadline)

    def examine(self) -> Iterator[Finding]:
        return examine(self._client, self.ask)
