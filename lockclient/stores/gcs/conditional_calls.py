"""Calls about objects on behalf of one request, with their preconditions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_VALUE_BYTES, Holder
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.keys import FIELDS, ObjectNames, ObjectState, Version
from lockclient.stores.gcs.wire.http_client import HttpClient, HttpRequest
from lockclient.stores.gcs.wire.http_session import HttpAnswer
from lockclient.stores.request_types import Delivery

ABSENT: Final = Version(0, 0)
"""The version of an object that does not exist."""


@dataclass(frozen=True, slots=True)
class GuardedObjects:
    """Reads and writes objects on behalf of one request, until its deadline.

    Attributes:
        delivery: the state of the acquisition's takes.
        was_unknown: an earlier request of the acquisition was not answered.
        remove_if_due: see `Expiry.remove_if_due`; None: locks do not expire.
    """

    client: HttpClient
    names: ObjectNames
    deadline: Deadline
    delivery: Delivery = field(default_factory=Delivery)
    was_unknown: bool = False
    remove_if_due: Callable[[GuardedObjects, str, ObjectState], bool] | None = None

    def expired(self, name: str, state: ObjectState) -> bool:
        """Remove a silent lock where locks expire; True: it has changed, and is to be read."""
        return self.remove_if_due is not None and self.remove_if_due(self, name, state)

    def _ask(self, method: str, name: str, expected: tuple[int, ...], **how: Any) -> HttpAnswer:
        path = f"/storage/v1/b/{self.client.location.bucket}/o/{quote(name, safe='')}"
        call = HttpRequest(method, path, expected, **how)
        return self.client.ask(call, self.deadline, self.delivery)

    def _read(self, name: str) -> ObjectState | None:
        answer = self._ask("GET", name, (200, 404), query={"fields": FIELDS})
        return None if answer.status == 404 else ObjectState.from_resource(answer.json)

    def head(self, name: str) -> ObjectState | None:
        """Return the object under a lock's name, without its body; None: no such object.

        Raises:
            StoreError: it is neither a lock nor a tombstone, and must not be overwritten.
        """
        state = self._read(name)
        if state is not None and state.is_foreign:
            raise errors.foreign_object(self.client.location.bucket, name)
        return state

    def version(self, name: str) -> Version:
        """Return the version of any object; `ABSENT`: no such object."""
        state = self._read(name)
        return ABSENT if state is None else state.version

    def body(
        self, name: str, version: Version | None = None, max_bytes: int = MAX_VALUE_BYTES
    ) -> bytes | None:
        """Return the body of an object, of this generation; None: no such object.

        A body that is too long is cut one byte beyond `max_bytes`.
        """
        query = {"alt": "media"}
        if version is not None:
            query["generation"] = str(version.generation)
        answer = self._ask("GET", name, (200, 404), query=query, truncate_at=max_bytes + 1)
        return None if answer.status == 404 else answer.body

    def holder(self, name: str, state: ObjectState) -> Holder | None:
        """Return the holder of a lock with its whole `about`; None: another client has the lock."""
        body = self.body(self.names.lock(name), state.version) if state.size else b""
        return None if body is None else state.holder(name, body)

    def put(
        self,
        name: str,
        metadata: Mapping[str, str],
        body: bytes,
        replaced: Version | None = ABSENT,
        *,
        once: bool = False,
    ) -> ObjectState | None:
        """Upload an object in place of that version; None: another version, or none, is there.

        Without a version (None) it replaces any. With `once` None also means that the upload was
        not answered and may still arrive. Never a resumable upload: its pieces may arrive for a
        week.
        """
        boundary = uuid4().hex.encode()
        about = json.dumps({"metadata": metadata}).encode()
        parts = b"".join(
            b"--%b\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%b\r\n"
            % (boundary, part)
            for part in (about, body)
        )
        call = HttpRequest(
            "POST",
            f"/upload/storage/v1/b/{self.client.location.bucket}/o",
            (200, 412),
            query={"uploadType": "multipart", "name": name, **_guards(replaced), "fields": FIELDS},
            body=parts + b"--%b--\r\n" % boundary,
            content_type=f"multipart/related; boundary={boundary.decode()}",
            once=once,
        )
        try:
            answer = self.client.ask(call, self.deadline, self.delivery)
        except StoreUnavailable:
            if once and self.delivery.is_unknown and not self.deadline.expired():
                return None
            raise
        return ObjectState.from_resource(answer.json) if answer.status == 200 else None

    def patch(
        self, name: str, metadata: Mapping[str, str] | Mapping[str, str | None], version: Version
    ) -> ObjectState | None:
        """Patch the metadata of that version; None: another version, or none, is there."""
        answer = self._ask(
            "PATCH",
            name,
            (200, 404, 412),
            query={**_guards(version), "fields": FIELDS},
            body=json.dumps({"metadata": metadata}).encode(),
            content_type="application/json; charset=UTF-8",
        )
        return ObjectState.from_resource(answer.json) if answer.status == 200 else None

    def delete(self, name: str, version: Version | None = None) -> bool:
        """Delete that version, or any; False: another version, or none, is there."""
        answer = self._ask("DELETE", name, (204, 200, 404, 412), query=_guards(version))
        return answer.status in (200, 204)


def _guards(version: Version | None) -> dict[str, str]:
    """Return the preconditions of a write in place of a version; none for None."""
    if version is None:
        return {}
    query = {"ifGenerationMatch": str(version.generation)}
    if version.generation:
        query["ifMetagenerationMatch"] = str(version.metageneration)
    return query
