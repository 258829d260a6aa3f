"""Bucket listing for services: one listing has all locks and unlocker announcements.

Locks and announcements have neighbouring names (`<root>locks/…`, `<root>locks-unlockers/…`), and a
listing has their metadata, so no body is read. Records are listed when there may be new ones: a
removal leaves a tombstone with a `late_until` of its own (step 2 in `requests`), so a name whose
`late_until` differs from that of the poll before may have a new record. (After a withdrawal it has
none; the listing of records is then wasted.)

**Stale listings.** Google promises that a listing has each object that was written before the
listing was requested. One without our last announcement, or with an older one, comes from a cache
or a proxy, and may lack locks and heartbeats. It is refused, and the snapshot ages. (A newer
announcement than the last is our own that arrived late.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final
from urllib.parse import unquote

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_UUID_BYTES, SUBKEYS
from lockclient.stores.common.polling import Key, KnownItem, StoredItem
from lockclient.stores.common.segments import decode, encode
from lockclient.stores.gcs import errors, removal_steps
from lockclient.stores.gcs.conditional_calls import GuardedObjects
from lockclient.stores.gcs.keys import FIELDS, ObjectNames, ObjectState
from lockclient.stores.gcs.wire.http_client import MAX_PAGE_BYTES, HttpClient, HttpRequest
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

_PAGE_TIMEOUT_S: Final = 10.0
"""Seconds for each page of a listing."""
MAX_OBJECTS: Final = 50_000
MAX_LISTING_BYTES: Final = 100 << 20
"""Objects of a listing, and bytes of its pages: other programs may write any number there. A larger
listing of locks is refused as a whole, since a lock beyond the limit would pass for released. Of a
larger listing of records the first part is read; the rest comes when old records are deleted."""
_ANNOUNCEMENT_RETENTION_S: Final = 3600.0
"""Age in seconds at which an announcement is deleted, long after it has expired."""
_MAX_ANNOUNCEMENT_TTL_S: Final = 600.0
"""Seconds for which an announcement counts at most, whatever its own `ttl` is."""
_ANNOUNCEMENT_SLACK_S: Final = 2.0
"""Seconds for which an announcement counts beyond its `ttl`: the precision of the bucket's time."""


_CHORES_S: Final = 2.0
"""Seconds of a poll for all chores."""
_Chore = Callable[[GuardedObjects], object]


class ObjectListing:
    """Lists the objects of a bucket; see `polling.Source`.

    Attributes:
        announced: the object of this unlocker's last announcement, and when the bucket wrote it:
            each listing from now on must have it; an empty name: this is no unlocker.
    """

    def __init__(self, client: HttpClient, names: ObjectNames) -> None:
        self._client = client
        self._names = names
        self._tombstone_expiries: dict[str, int] = {}
        self._decided: dict[str, int] = {}
        self._record_version = 0
        self._stale = False
        self.announced = "", 0.0
        self.now = client.now

    def record_version(self) -> int:
        return self._record_version

    # ------------------------------------------------------------ polls

    def live(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        """See `polling.Source`.

        A removal that was only just decided shows the lock as before until the next poll: a removed
        lock is to disappear after its record can be read, not before.

        Raises:
            StoreUnavailable: our own announcement is missing, or is an old one.
        """
        expiries, decided, chores = dict[str, int](), dict[str, int](), list[_Chore]()
        own, written_at = self.announced  # before the first page is requested
        is_fresh = not own
        for page in self._objects(self._names.live, deadline):
            found = []
            for path, state in page:
                is_fresh |= path == own and state.created_at >= written_at
                name, version = self._lock_name(path), state.version.revision
                if path.startswith(self._names.unlockers):
                    item = self._announcement(path, state)
                    if state.created_at + _ANNOUNCEMENT_RETENTION_S < self.now():
                        chores.append(
                            partial(GuardedObjects.delete, name=path, version=state.version)
                        )
                elif name is None or state.is_foreign:
                    continue
                elif state.decision is None:
                    item = _lock_or_tombstone(name, state)
                else:
                    item, decided[name] = None, version
                    if self._decided.get(name) == version:
                        chores.append(partial(self._complete, name=name, state=state))
                    elif (before := known.get(("locks", name, ""))) is not None:
                        item = StoredItem("locks", name, "", before.version, self.now(), {})
                if name is not None and state.tombstone_expires_at:
                    expiries[name] = round(state.tombstone_expires_at)
                if item is not None:
                    found.append(item)
            yield found
        self._check_freshness(missing="" if is_fresh or self.announced[0] != own else own)
        if any(expiries[name] != self._tombstone_expiries.get(name) for name in expiries):
            self._record_version += 1
        # One step each, after all was read: two threads may list at once.
        self._tombstone_expiries, self._decided = expiries, decided
        if own:  # a dashboard may have no right to write
            self._do_chores(chores, deadline)

    def _do_chores(self, chores: Sequence[_Chore], deadline: Deadline) -> None:
        """Complete removals whose remover has died, and delete old announcements."""
        objects = GuardedObjects(self._client, self._names, deadline.within(0.0, _CHORES_S))
        for chore in chores:
            try:
                chore(objects)
            except ClusterMutexError as error:
                log.debug("The next poll tries again: %s", error)
            except Exception:
                log.exception("A poll could not complete a removal or delete an announcement.")

    def _complete(self, objects: GuardedObjects, name: str, state: ObjectState) -> None:
        removal_steps.complete(objects, name, state)
        self._record_version += 1  # this poll reads the record with the end of the lock

    def _check_freshness(self, missing: str) -> None:
        """Raise if a listing lacks this announcement; empty: it lacks none."""
        bucket, was_stale, self._stale = self._client.location.bucket, self._stale, bool(missing)
        if missing:
            error = errors.stale_listing(bucket, missing)
            if not was_stale:
                log.warning("%s", error)
            raise error
        if was_stale:
            log.warning("Listings of the bucket %s are up to date again.", bucket)

    # ------------------------------------------------------------ other listings

    def records(
        self,
        deadline: Deadline,
        known: Mapping[Key, KnownItem],  # noqa: ARG002 - as in `Source`
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

    def documents(self, deadline: Deadline) -> Iterator[str]:
        for page in self._objects(self._names.documents, deadline, whole=False):
            yield from (path.removeprefix(self._names.documents) for path, _ in page)

    def newest_announcement_age(self, deadline: Deadline) -> float:
        """Return the seconds since the last heartbeat of any unlocker; 0: one runs, inf: none did.

        One that has withdrawn its announcement, as it ended, is not found.
        """
        age = inf
        for page in self._objects(self._names.unlockers, deadline, whole=False):
            for path, state in page:
                runs = self._announcement(path, state) is not None
                age = min(age, 0.0 if runs else self.now() - state.created_at)
        return age

    # ------------------------------------------------------------ parts

    def _objects(
        self, prefix: str, deadline: Deadline, *, whole: bool = True
    ) -> Iterator[list[tuple[str, ObjectState]]]:
        """Yield a listing's objects with their names, by pages; not `whole`: the first part of it.

        Raises:
            StoreError: a whole one has more than `MAX_OBJECTS`, or `MAX_LISTING_BYTES`.
        """
        bucket = self._client.location.bucket
        query = {"prefix": prefix, "fields": f"nextPageToken,items(name,{FIELDS})"}
        objects = size = 0
        while True:
            path = f"/storage/v1/b/{bucket}/o"
            call = HttpRequest("GET", path, (200,), query=query, max_bytes=MAX_PAGE_BYTES)
            answer = self._client.ask(call, deadline.within(0.0, _PAGE_TIMEOUT_S))
            listing = answer.json
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
        """Return an unlocker's announcement; None: it has expired."""
        name, version = unquote(path[len(self._names.unlockers) :]), state.version.revision
        value = state.metadata.get("said", "").encode(errors="replace")
        if state.created_at + _ttl_of(value) + _ANNOUNCEMENT_SLACK_S < self.now():
            return None
        return StoredItem("unlockers", name, "", version, state.created_at, {"": (value, version)})

    def _lock_name(self, path: str, folder: str = "") -> str | None:
        """Return the lock of an object; None: no name of ours."""
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
    """Return the seconds for which an announcement counts, by its own value."""
    try:
        return min(_MAX_ANNOUNCEMENT_TTL_S, max(0.0, float(json.loads(value)["ttl"])))
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0.0
