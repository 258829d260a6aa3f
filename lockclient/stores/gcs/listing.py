"""Bucket listing for services: one listing has all locks and unlocker announcements.

Locks and announcements lie side by side (`<root>locks/…`, `<root>locks-unlockers/…`), and a listing
has their metadata: no body is read. Records are listed when there may be new ones. A removal leaves
a tombstone, whose `late_until` stays under the name until it is over (step 2 in `requests`). So a
name with another `late_until` than before may have a new record; after a withdrawal it has none,
which costs a listing.

**A stale listing is found out by the own announcement.** Google promises that a listing has all
that was written before it was asked for. One without the announcement that was written last, or
with an older one, comes from a cache or a proxy, and would miss locks and heartbeats. It is not
believed, and the snapshot grows old. (A newer announcement than the last is the own one that came
late.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Final
from urllib.parse import unquote

from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_UUID_BYTES, SUBKEYS
from lockclient.stores.common.polling import Key, KnownItem, StoredItem
from lockclient.stores.common.segments import decode, encode
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.keys import FIELDS, ObjectNames, ObjectState, Version
from lockclient.stores.gcs.wire.http_client import MAX_PAGE_BYTES, HttpClient, HttpRequest
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

_PAGE_TIMEOUT_S: Final = 10.0
"""Seconds for a page of a listing."""
MAX_OBJECTS: Final = 50_000
MAX_LISTING_BYTES: Final = 100 << 20
"""Objects of a listing, and bytes of its pages: others may write there whatever they like. More is
refused as a whole, since a lock that a part of a listing does not have would pass for gone. Of
records it is the first part that is read: they tell what was, and who deletes the old ones gets to
the rest."""
_ANNOUNCEMENT_RETENTION_S: Final = 3600.0
"""Seconds after which an announcement is deleted, long after it has expired."""
_MAX_ANNOUNCEMENT_TTL_S: Final = 600.0
"""Seconds that an announcement counts at most, whatever it says."""
_ANNOUNCEMENT_SLACK_S: Final = 2.0
"""Seconds for which an announcement counts beyond its TTL: so exactly the bucket tells the time."""


class ObjectListing:
    """Lists the objects of a bucket; see `polling.Source`.

    Args:
        complete: called with a removal that was decided, and is not done a poll later.
    """

    def __init__(
        self, client: HttpClient, names: ObjectNames, complete: Callable[[str, ObjectState], object]
    ) -> None:
        self._client = client
        self._names = names
        self._complete = complete
        self._tombstone_expiries: dict[str, int] = {}
        self._decided: dict[str, tuple[int, int]] = {}
        self._record_version = 0
        self._announced_at: dict[str, float] = {}
        self._stale = False

    def expect_announcement(self, name: str, created_at: float | None) -> None:
        """Expect an announcement in listings from now on, as new as this; None: no more."""
        if created_at is None:
            self._announced_at.pop(name, None)
        else:
            self._announced_at[name] = created_at

    def now(self) -> float:
        return self._client.now()

    def record_version(self) -> int:
        return self._record_version

    # ------------------------------------------------------------ reading all

    def live(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        """See `polling.Source`.

        A removal that was only just decided is not seen yet: its record may not stand there before
        the next look, and nobody is to see the lock go before he can see why.

        Raises:
            StoreUnavailable: our own announcement is not in there.
        """
        expiries, decided = dict[str, int](), dict[str, tuple[int, int]]()
        missing = dict(self._announced_at)  # before the first page is asked for
        for page in self._objects(self._names.live, deadline):
            found = []
            for path, state in page:
                if state.created_at >= missing.get(path, inf):
                    del missing[path]
                if (announcement := self._announcement(path, state)) is not None:
                    found.append(announcement)
                elif (name := self._lock_name(path)) is None or state.is_foreign:
                    continue
                else:
                    if state.tombstone_expires_at:
                        expiries[name] = round(state.tombstone_expires_at)
                    if state.decision is not None:
                        decided[name] = self._decision_seen(name, state)
                        before = known.get(("locks", name, ""))
                        if before is not None and not decided[name][1]:
                            found.append(
                                StoredItem("locks", name, "", before.version, self.now(), {})
                            )
                    elif (item := _lock_or_tombstone(name, state)) is not None:
                        found.append(item)
            yield found
        self._check_freshness({*missing} & {*self._announced_at})
        if any(expiries[name] != self._tombstone_expiries.get(name) for name in expiries):
            self._record_version += 1
        # By one step each, and only when all was read: two may do this at a time.
        self._tombstone_expiries, self._decided = expiries, decided

    def _decision_seen(self, name: str, state: ObjectState) -> tuple[int, int]:
        """Return which removal was decided, and how many looks have found it so before this one."""
        version, looks = self._decided.get(name, (0, 0))
        looks = looks + 1 if version == state.version.revision else 0
        if looks == 1:  # who may not do it does not try with each look
            self._complete(name, state)
        return state.version.revision, looks

    def records(
        self,
        deadline: Deadline,
        known: Mapping[Key, KnownItem],  # noqa: ARG002
    ) -> Iterator[Sequence[StoredItem]]:
        for page in self._objects(self._names.removed, deadline, whole=False):
            found = []
            for path, state in page:
                name = self._lock_name(path.rpartition("/")[0], self._names.removed)
                uuid = name and self._names.removed_uuid(path, name, state.metadata)
                if name and uuid:
                    value = state.metadata.get("record", "").encode(errors="replace")
                    version = state.version.revision
                    values = {uuid: (value, version)}
                    found.append(
                        StoredItem("removed", name, uuid, version, state.created_at, values)
                    )
            yield found

    def held(self, prefix: str, deadline: Deadline) -> Iterator[str]:
        """Yield the names of held locks that begin with `prefix`."""
        for page in self._objects(f"{self._names.locks}{encode(prefix)}", deadline):
            for path, state in page:
                name = self._lock_name(path)
                if name is not None and state.uuid is not None and state.decision is None:
                    yield name

    def expired_announcements(self, deadline: Deadline) -> Iterator[tuple[str, Version]]:
        """Yield the objects of announcements that have expired long ago."""
        for page in self._objects(self._names.unlockers, deadline):
            for path, state in page:
                if state.created_at + _ANNOUNCEMENT_RETENTION_S < self.now():
                    yield path, state.version

    def newest_announcement_age(self, deadline: Deadline) -> float:
        """Return the seconds since the last heartbeat of any unlocker; 0: one lives, inf: none.

        One that has withdrawn its announcement, as it ends, leaves nothing.
        """
        age = inf
        for page in self._objects(self._names.unlockers, deadline, whole=False):
            for path, state in page:
                lives = self._announcement(path, state) is not None
                age = min(age, 0.0 if lives else self.now() - state.created_at)
        return age

    # ------------------------------------------------------------ inside

    def _check_freshness(self, missing: Collection[str]) -> None:
        """Raise unless a listing had all announcements that were to be found in it."""
        bucket, was, self._stale = self._client.location.bucket, self._stale, bool(missing)
        if missing:
            error = errors.stale_listing(bucket, min(missing))
            if not was:
                log.warning("%s", error)
            raise error
        if was:
            log.warning("Listings of the bucket %s are up to date again.", bucket)

    def _objects(
        self, prefix: str, deadline: Deadline, *, whole: bool = True
    ) -> Iterator[list[tuple[str, ObjectState]]]:
        """Yield a listing's objects with their names, by pages.

        Unless it is to be `whole`, it yields no more than may be read.

        Raises:
            StoreError: it is to be, and has more than `MAX_OBJECTS`, or `MAX_LISTING_BYTES`.
        """
        bucket = self._client.location.bucket
        query = {"prefix": prefix, "fields": f"nextPageToken,items(name,{FIELDS})"}
        objects = size = 0
        while True:
            until = deadline.within(0.0, _PAGE_TIMEOUT_S)
            path = f"/storage/v1/b/{bucket}/o"
            call = HttpRequest("GET", path, (200,), query=query, max_bytes=MAX_PAGE_BYTES)
            answer = self._client.ask(call, until)
            listing = answer.json()
            page = listing.get("items") or []
            objects, size = objects + len(page), size + len(answer.body)
            if objects > MAX_OBJECTS or size > MAX_LISTING_BYTES:
                if whole:
                    raise errors.listing_too_large(bucket, prefix, MAX_OBJECTS, MAX_LISTING_BYTES)
                return
            yield [(resource["name"], ObjectState.from_resource(resource)) for resource in page]
            if not (token := listing.get("nextPageToken")):
                return
            query["pageToken"] = token

    def _announcement(self, path: str, state: ObjectState) -> StoredItem | None:
        """Return an unlocker's announcement; None: it is none, or has expired."""
        if not path.startswith(self._names.unlockers):
            return None
        name, version = unquote(path[len(self._names.unlockers) :]), state.version.revision
        value = state.metadata.get("said", "").encode(errors="replace")
        if state.created_at + _ttl_of(value) + _ANNOUNCEMENT_SLACK_S < self.now():
            return None
        return StoredItem("unlockers", name, "", version, state.created_at, {"": (value, version)})

    def _lock_name(self, path: str, folder: str = "") -> str | None:
        """Return the lock that an object is about; None: no name of ours."""
        folder = folder or self._names.locks
        return decode(path[len(folder) :]) if path.startswith(folder) else None


def _lock_or_tombstone(name: str, state: ObjectState) -> StoredItem | None:
    version = state.version.revision
    if state.uuid is not None:
        subkeys = state.subkeys()
        values = {part: subkeys[part] for part in SUBKEYS if part in subkeys}
        return StoredItem("locks", name, "", version, state.created_at, values)
    uuid = state.tombstone_uuid or ""
    if len(uuid.encode(errors="replace")) > MAX_UUID_BYTES:
        return None
    return StoredItem("withdrawn", name, uuid, version, state.created_at, {uuid: (b"", version)})


def _ttl_of(value: bytes) -> float:
    """Return for how many seconds an announcement counts, by what it says itself."""
    try:
        return min(_MAX_ANNOUNCEMENT_TTL_S, max(0.0, float(json.loads(value)["ttl"])))
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0.0
