"""Object operations of one request, with their preconditions (generation, metageneration)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_VALUE_BYTES
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.keys import FIELDS, ObjectState, Version
from lockclient.stores.gcs.wire.http_answer import HttpAnswer
from lockclient.stores.gcs.wire.http_client import HttpClient, HttpRequest
from lockclient.stores.requests import RequestState

ABSENT: Final = Version(0, 0)
"""The version of what is not there."""


@dataclass(frozen=True, slots=True)
class GuardedObjects:
    """Reads and writes objects on behalf of one request, until its deadline."""

    client: HttpClient
    sending: RequestState
    deadline: Deadline

    def ask(self, call: HttpRequest) -> HttpAnswer:
        return self.client.ask(call, self.deadline, self.sending)

    def head(self, name: str) -> ObjectState | None:
        """Return the object under a lock's name, without its body; None: there is none.

        Raises:
            StoreError: it is somebody else's, and nothing that may be written over.
        """
        answer = self.ask(
            self.client.object_request("GET", name, (200, 404), query={"fields": FIELDS})
        )
        state = None if answer.status == 404 else ObjectState.from_resource(answer.json())
        if state is not None and state.is_foreign:
            raise errors.foreign_object(self.client.location.bucket, name)
        return state

    def body(
        self, name: str, version: Version | None = None, max_bytes: int = MAX_VALUE_BYTES
    ) -> bytes | None:
        """Return an object's body, of this generation; None: it is gone."""
        query = {"alt": "media"}
        if version is not None:
            query["generation"] = str(version.generation)
        # One byte more than may be, by which it is seen to be too long.
        answer = self.ask(
            self.client.object_request(
                "GET", name, (200, 404), query=query, truncate_at=max_bytes + 1
            )
        )
        return None if answer.status == 404 else answer.body

    def put(
        self,
        name: str,
        metadata: Mapping[str, str],
        body: bytes,
        replaced: Version = ABSENT,
        resend_metadata: Mapping[str, str] | None = None,
    ) -> Version | None:
        """Upload an object in place of that version; None: there is another one, or none.

        With `resend_metadata` it has that where an earlier sending may still arrive.
        """
        query = preconditions(replaced, "generation,metageneration")
        call = self.client.upload_request(name, metadata, body, query)
        if resend_metadata is not None:
            call = replace(
                call, resend=self.client.upload_request(name, resend_metadata, body, query)
            )
        answer = self.ask(call)
        return Version.from_resource(answer.json()) if answer.status == 200 else None

    def patch(
        self, name: str, metadata: Mapping[str, str | None], version: Version
    ) -> Version | None:
        """Change the metadata of what has that version; None: it has another one, or is gone."""
        query = preconditions(version, "generation,metageneration")
        answer = self.ask(self.client.patch_request(name, metadata, query))
        return Version.from_resource(answer.json()) if answer.status == 200 else None

    def delete(self, name: str, version: Version) -> bool:
        """Delete what has that version; False: it has another one, or is gone."""
        call = self.client.object_request(
            "DELETE", name, (204, 200, 404, 412), query=preconditions(version)
        )
        return self.ask(call).status in (200, 204)


def preconditions(version: Version, fields: str = "") -> dict[str, str]:
    """Return the preconditions that name a version."""
    query = {"ifGenerationMatch": str(version.generation)}
    if version.generation:
        query["ifMetagenerationMatch"] = str(version.metageneration)
    return {**query, "fields": fields} if fields else query
