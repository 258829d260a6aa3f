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
from dataclasses import dataclass, field
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
    """Return the refusal for what is not there."""
    return Refusal(404, "notFound", message)


@dataclass(frozen=True)
class Conditions:
    """A request's preconditions; None: not asked for."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    PARAMETERS = (
        "ifGenerationMatch",
        "ifGenerationNotMatch",
        "ifMetagenerationMatch",
        "ifMetagenerationNotMatch",
    )

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Conditions:
        """Read them from a query."""
        try:
            return cls(*(int(query[each]) if each in query else None for each in cls.PARAMETERS))
        except ValueError:
            raise Refusal(400, "invalid", "A precondition must be a whole number.") from None

    def check(self, live: Stored | None, *, reading: bool = False) -> None:
        """Raise a refusal unless they hold for the live object.

        No object has the generation 0, so `ifGenerationMatch=0` asks that there is none. A "not"
        needs an object to compare. Where it fails, a reader has what is there already: 304.
        """
        generation = live.generation if live else 0
        if self.generation is not None and self.generation != generation:
            raise _unmet("ifGenerationMatch")
        if self.metageneration is not None and (
            live is None or self.metageneration != live.metageneration
        ):
            raise _unmet("ifMetagenerationMatch")
        for wanted, there, which in (
            (self.not_generation, generation, "ifGenerationNotMatch"),
            (self.not_metageneration, live.metageneration if live else 0, "ifMetagenerationNot…"),
        ):
            if wanted is not None and (live is None or wanted == there):
                raise Refusal(304, "notModified", "Not Modified") if reading else _unmet(which)


def _unmet(which: str) -> Refusal:
    return Refusal(
        412,
        "conditionNotMet",
        f"At least one of the pre-conditions you specified did not hold ({which}).",
    )


@dataclass
class Stored:
    """A live object."""

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
    """Return a time as the API writes it."""
    at = datetime.fromtimestamp(wall, timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


@dataclass
class Page:
    """One page of a listing."""

    items: list[dict[str, Any]] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str = ""


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
        if not 0 < len(name.encode()) <= MAX_NAME or name in (".", "..") or {"\r", "\n"} & {*name}:
            raise Refusal(400, "invalid", f"Invalid object name: {name!r}")
        with self._lock:
            conditions.check(self._objects.get(name))
            kept = _checked(dict(metadata or {}))
            self._count_write(name)
            now = self.clock()
            made = Stored(name, self._new_generation(), body, content_type, kept, now, now)
            self._objects[name] = made
            return made.resource(self.name)

    def get(
        self, name: str, conditions: Conditions, generation: int | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Return the live object's resource and body."""
        with self._lock:
            live = self._live(name, generation)
            conditions.check(live, reading=True)
            return live.resource(self.name), live.body

    def patch(
        self,
        name: str,
        changes: Mapping[str, Any],
        conditions: Conditions,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """Change the metadata by JSON's merge: the metageneration grows by one."""
        with self._lock:
            live = self._live(name, generation)
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

    def delete(self, name: str, conditions: Conditions, generation: int | None = None) -> None:
        """Delete the live object."""
        with self._lock:
            conditions.check(self._live(name, generation))
            self._count_write(name)
            del self._objects[name]

    def _live(self, name: str, generation: int | None) -> Stored:
        live = self._objects.get(name)
        if live is None or generation not in (None, live.generation):
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

    def page(
        self,
        prefix: str = "",
        *,
        delimiter: str = "",
        start: str = "",
        end: str = "",
        at_most: int = MOST_A_PAGE,
        token: str = "",
    ) -> Page:
        """List by name, in the order of UTF-8's bytes; `token` is the last name of the page before.

        With a delimiter all names that have it behind the prefix are one entry, up to it.
        """
        with self._lock:
            names = sorted(self._objects, key=str.encode)
            found = Page()
            last = ""
            for name in names:
                if not name.startswith(prefix) or name.encode() < start.encode():
                    continue
                if end and name.encode() >= end.encode():
                    break
                entry, common = name, False
                if delimiter and delimiter in name[len(prefix) :]:
                    cut = name.index(delimiter, len(prefix)) + len(delimiter)
                    entry, common = name[:cut], True
                if token and entry.encode() <= token.encode():
                    continue
                if common and found.prefixes[-1:] == [entry]:
                    continue
                if len(found.items) + len(found.prefixes) >= min(at_most, MOST_A_PAGE):
                    found.token = last
                    break
                last = entry
                if common:
                    found.prefixes.append(entry)
                else:
                    found.items.append(self._objects[name].resource(self.name))
            return found

    def names(self) -> list[str]:
        """Return the names of all objects: for tests."""
        with self._lock:
            return sorted(self._objects)


def _checked(metadata: dict[str, Any]) -> dict[str, str]:
    """Return custom metadata that fits."""
    if not all(isinstance(each, str) for each in metadata.values()):
        raise Refusal(400, "invalid", "Metadata values must be texts.")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > MAX_METADATA:
        raise Refusal(400, "invalid", f"Metadata has {size} bytes, more than {MAX_METADATA}.")
    return metadata
