"""What can be asked of the bucket on behalf of one request of a mutex, each with its guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_VALUE
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.keys import FIELDS, ObjectState, Version
from lockclient.stores.gcs.wire.http_client import HttpAnswer, HttpClient, HttpRequest
from lockclient.stores.requests import RequestState

NOTHING: Final = Version(0, 0)
"""The version of what is not there."""


@dataclass(frozen=True, slots=True)
class GuardedObjects:
    """Asks the bucket on behalf of one request."""

    calls: HttpClient
    sending: RequestState
    deadline: Deadline

    def ask(self, call: HttpRequest) -> HttpAnswer:
        return self.calls.ask(call, self.deadline, self.sending)

    def stands(self, name: str) -> ObjectState | None:
        """Return what stands under a lock's name now.

        Raises:
            StoreError: it is somebody else's, and nothing that may be written over.
        """
        answer = self.ask(self.calls.object("GET", name, (200, 404), query={"fields": FIELDS}))
        there = None if answer.status == 404 else ObjectState.told(answer.said())
        if there is not None and there.foreign:
            raise errors.foreign(self.calls.place.bucket, name)
        return there

    def body(self, name: str, version: Version | None = None, cut: int = MAX_VALUE) -> bytes | None:
        """Return an object's body, of this generation; None: it is gone."""
        query = {"alt": "media"}
        if version is not None:
            query["generation"] = str(version.generation)
        # One byte more than may be, by which it is seen to be too long.
        answer = self.ask(self.calls.object("GET", name, (200, 404), query=query, cut=cut + 1))
        return None if answer.status == 404 else answer.body

    def put(
        self,
        name: str,
        metadata: Mapping[str, str],
        body: bytes,
        over: Version = NOTHING,
        again: Mapping[str, str] | None = None,
    ) -> Version | None:
        """Upload an object over what has that version; None: something else stands there.

        With `again` it has that metadata where an earlier sending may still arrive.
        """
        query = guards(over, "generation,metageneration")
        call = self.calls.insert(name, metadata, body, query)
        if again is not None:
            call = replace(call, again=self.calls.insert(name, again, body, query))
        answer = self.ask(call)
        return Version.told(answer.said()) if answer.status == 200 else None

    def patch(self, name: str, metadata: Mapping[str, str | None], of: Version) -> Version | None:
        """Change the metadata of what has that version; None: it has another one, or is gone."""
        query = guards(of, "generation,metageneration")
        answer = self.ask(self.calls.patch(name, metadata, query))
        return Version.told(answer.said()) if answer.status == 200 else None

    def delete(self, name: str, of: Version) -> bool:
        """Delete what has that version; False: it has another one, or is gone."""
        call = self.calls.object("DELETE", name, (204, 200, 404, 412), query=guards(of))
        return self.ask(call).status in (200, 204)


def guards(version: Version, fields: str = "") -> dict[str, str]:
    """Return the preconditions that name a version."""
    query = {"ifGenerationMatch": str(version.generation)}
    if version.generation:
        query["ifMetagenerationMatch"] = str(version.metageneration)
    return {**query, "fields": fields} if fields else query
