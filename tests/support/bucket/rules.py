"""A bucket of Google Cloud Storage in memory, by its documented rules: one mutex, one dictionary.

What is here is what the JSON API's reference promises of objects, and no more: each request is done
wholly or not at all, reads and listings see every write that was answered before, and a generation
names one upload for ever. That generations grow is not promised, so here they don't.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

MAX_METADATA = 8 * 1024
MAX_NAME = 1024
MOST_A_PAGE = 1000


class Refusal(Exception):
    """The bucket says no: an HTTP status, Google's word for the reason, and a sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def not_found(message: str) -> Refusal:
    return Refusal(404, "notFound", message)


@dataclass(frozen=True)
class Conditions:
    """A request's preconditions; None: not asked for."""

    generation: int | None = None
    metageneration: int | None = None

    PARAMETERS = ("ifGenerationMatch", "ifMetagenerationMatch")

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Conditions:
        try:
            return cls(*(int(query[name]) if name in query else None for name in cls.PARAMETERS))
        except ValueError:
            raise Refusal(400, "invalid", "A precondition must be a whole number.") from None

    def check(self, live: Stored | None) -> None:
        """Raise a refusal unless they hold for the live object.

        No object has the generation 0, so `ifGenerationMatch=0` asks that there is none.
        """
        there = (live.generation, live.metageneration) if live else (0, None)
        wanted = (self.generation, self.metageneration)
        for name, value, found in zip(self.PARAMETERS, wanted, there, strict=True):
            if value is not None and value != found:
                raise Refusal(
                    412,
                    "conditionNotMet",
                    f"At least one of the pre-conditions you specified did not hold ({name}).",
                )


@dataclass
class Stored:
    name: str
    generation: int
    body: bytes
    content_type: str
    metadata: dict[str, str]
    created: float
    updated: float
    metageneration: int = 1

    def resource(self, bucket: str) -> dict[str, Any]:
        """Return what the API says of it; numbers of 64 bits are texts there."""
        said = {
            "kind": "storage#object",
            "id": f"{bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "contentType": self.content_type,
            "size": str(len(self.body)),
            "timeCreated": in_rfc3339(self.created),
            "updated": in_rfc3339(self.updated),
        }
        if self.metadata:
            said["metadata"] = dict(self.metadata)  # type: ignore[assignment]
        return said


def in_rfc3339(wall: float) -> str:
    at = datetime.fromtimestamp(wall, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Bucket:
    """The objects of one bucket.

    Args:
        name: the bucket's.
        rate_limited: whether an object takes one write a second and no more.
        clock: tells the bucket's wall-clock time.
    """

    def __init__(
        self,
        name: str,
        *,
        rate_limited: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.rate_limited = rate_limited
        self.refused = 0
        self.clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, Stored] = {}
        self._written: dict[str, float] = {}
        self._generations: set[int] = set()
        self._random = random.Random(7)

    # ------------------------------------------------------------ one object

    def insert(
        self,
        name: str,
        body: bytes,
        conditions: Conditions,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/octet-stream",
    ) -> dict[str, Any]:
        """Upload an object: whatever was there before, it has a new generation, and is at its
        first metageneration."""
        _check_name(name)
        with self._lock:
            conditions.check(self._objects.get(name))
            kept = _checked(dict(metadata or {}))
            self._count_write(name)
            now = self.clock()
            made = Stored(name, self._new_generation(), body, content_type, kept, now, now)
            self._objects[name] = made
            return made.resource(self.name)

    def get(self, name: str, generation: str | None = None) -> tuple[dict[str, Any], bytes]:
        """Return the live object's resource and body; without versioning no other can be named."""
        with self._lock:
            live = self._live(name)
            if generation not in (None, str(live.generation)):
                raise not_found(f"No such object: {self.name}/{name}#{generation}")
            return live.resource(self.name), live.body

    def patch(
        self, name: str, changes: Mapping[str, Any], conditions: Conditions
    ) -> dict[str, Any]:
        """Change the metadata by JSON's merge: the metageneration grows by one."""
        with self._lock:
            live = self._live(name)
            conditions.check(live)
            kept = dict(live.metadata)
            if "metadata" in changes:
                said = changes["metadata"]
                kept = {} if said is None else {**kept, **said}
            kept = _checked({key: value for key, value in kept.items() if value is not None})
            self._count_write(name)
            live.metadata, live.updated = kept, self.clock()
            live.content_type = changes.get("contentType", live.content_type)
            live.metageneration += 1
            return live.resource(self.name)

    def delete(self, name: str, conditions: Conditions) -> None:
        with self._lock:
            conditions.check(self._live(name))
            self._count_write(name)
            del self._objects[name]

    def _live(self, name: str) -> Stored:
        _check_name(name)
        live = self._objects.get(name)
        if live is None:
            raise not_found(f"No such object: {self.name}/{name}")
        return live

    def _count_write(self, name: str) -> None:
        now = time.monotonic()
        if self.rate_limited and now - self._written.get(name, -1.0) < 1.0:
            self.refused += 1
            raise Refusal(
                429,
                "rateLimitExceeded",
                f"The object {self.name}/{name} exceeded the rate limit for object mutation "
                "operations (create, update, and delete). Please reduce your request rate.",
            )
        self._written[name] = now

    def _new_generation(self) -> int:
        while True:
            made = self._random.randrange(10**15, 2 * 10**15)
            if made not in self._generations:
                self._generations.add(made)
                return made

    # ------------------------------------------------------------ many objects

    def page(self, prefix: str = "", token: str = "") -> tuple[list[dict[str, Any]], str]:
        """List by name, in the order of UTF-8's bytes; `token` is the last name of the page before,
        and that of this page is returned with it, if there is more."""
        with self._lock:
            names = sorted(self._objects, key=str.encode)
            names = [name for name in names if name.startswith(prefix)]
            names = [name for name in names if name.encode() > token.encode()]
            page, more = names[:MOST_A_PAGE], names[MOST_A_PAGE:]
            items = [self._objects[name].resource(self.name) for name in page]
            return items, page[-1] if more else ""

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._objects)


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME or name in (".", "..") or {"\r", "\n"} & {*name}:
        raise Refusal(400, "invalid", f"Invalid object name: {name!r}")


def _checked(metadata: dict[str, Any]) -> dict[str, str]:
    """Return custom metadata that fits."""
    if not all(isinstance(value, str) for value in metadata.values()):
        raise Refusal(400, "invalid", "Metadata values must be texts.")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > MAX_METADATA:
        raise Refusal(400, "invalid", f"Metadata has {size} bytes, more than {MAX_METADATA}.")
    return metadata
