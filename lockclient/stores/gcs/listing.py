"""What stands in the bucket, as services read it: one listing for all that changes.

Locks and signs of life lie side by side (`<root>locks/…`, `<root>locks-unlockers/…`), so that one
listing has both, and it has metadata alone: no body is read for a list. Records are listed when
there may be new ones. A removal leaves a trace over its lock, and `late_until` of that goes on from
hand to hand (`steps`): as long as it is not over, whatever stands under the name has it. So a name
with another `late_until` than before tells that there may be a record; it can tell so in vain, by a
withdrawal, which costs a listing.

**Who gives signs of life sees by them that it sees.** A listing has whatever was written before it
was asked for: that is promised. So one without the sign of life that was written last, or with one
before it, is none of now (a cache answers, or a proxy that says "nothing"), however well it reads:
its locks would be missed, or alerted on though they were pushed, by an unlocker that is ready. It
is no look, and the picture grows old. A later one than the last is somebody's joke, or our own that
came late, and proves as much.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from lockclient.errors import InvalidLockName
from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_UUID, SUBKEYS, check_name
from lockclient.stores.common.polling import Item, Key, Known
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.keys import FIELDS, Names, ObjectState, Version
from lockclient.stores.gcs.wire.http_client import HttpClient
from lockclient.stores.requests import Read, RequestState

log = logging.getLogger(__name__)

_PAGE: Final = 10.0
"""Seconds for a page."""
MOST: Final = 50_000
MOST_BYTES: Final = 100 << 20
"""Objects of a listing, and bytes of its pages: others may write there whatever they like. More is
refused as a whole, since a lock that a part of a listing does not have would pass for gone. Of
records it is the first part that is read: they tell what was, and who deletes the old ones gets to
the rest."""
_FORGOTTEN: Final = 3600.0
"""Seconds after which a sign of life is deleted, long after it has ended."""
_LONGEST: Final = 600.0
"""Seconds that a sign of life counts at most, whatever it says."""
_SLACK: Final = 2.0
"""Seconds for which a sign of life counts beyond its own time: so exactly the bucket tells it."""

Resource = dict[str, Any]


class Listing:
    """Reads what stands in the bucket; see `polling.Source`.

    Args:
        calls: the way to it.
        names: of the objects.
        half_done: called with a removal that was decided, and is not done a look later.
    """

    def __init__(
        self, calls: HttpClient, names: Names, half_done: Callable[[str, ObjectState], object]
    ) -> None:
        self._calls = calls
        self._names = names
        self._half_done = half_done
        self._late: dict[str, int] = {}
        self._decided: dict[str, tuple[int, int]] = {}
        self._told_of = 0
        self._wrote: dict[str, float] = {}
        self._blind = False

    def wrote(self, name: str, created: float | None) -> None:
        """Note when a sign of life was written, which is to be found from now on; None: no more."""
        if created is None:
            self._wrote.pop(name, None)
        else:
            self._wrote[name] = created

    def now(self) -> float:
        return self._calls.now()

    def told_of(self) -> int:
        return self._told_of

    # ------------------------------------------------------------ reading all

    def live(
        self,
        deadline: Deadline,
        known: Mapping[Key, Known],  # noqa: ARG002 - a listing has the values anyway
    ) -> Iterator[Sequence[Item]]:
        """See `polling.Source`.

        Raises:
            StoreUnavailable: our own sign of life is not in there.
        """
        late, decided = dict[str, int](), dict[str, tuple[int, int]]()
        missing = dict(self._wrote)  # before the first page is asked for
        for page in self._pages(self._names.live, deadline):
            found = []
            for each in page:
                wrote = missing.get(each["name"])
                if wrote is not None and ObjectState.told(each).created >= wrote:
                    del missing[each["name"]]
                if (sign := self._sign_of_life(each)) is not None:
                    found.append(sign)
                elif (name := self._named(each["name"], self._names.locks)) is not None:
                    there = ObjectState.told(each)
                    if there.foreign:
                        continue
                    if there.late_until:
                        late[name] = round(there.late_until)
                    if there.decision is not None:
                        version, looks = self._decided.get(name, (0, 0))
                        looks = looks + 1 if version == there.version.revision else 0
                        decided[name] = there.version.revision, looks
                        if looks == 1:  # who may not do it does not try with each look
                            self._half_done(name, there)
                    elif (item := _standing(name, there)) is not None:
                        found.append(item)
            yield found
        self._see({*missing} & {*self._wrote})
        if any(late[name] != self._late.get(name) for name in late):
            self._told_of += 1
        # By one step each, and only when all was read: two may do this at a time.
        self._late, self._decided = late, decided

    def records(
        self,
        deadline: Deadline,
        known: Mapping[Key, Known],  # noqa: ARG002
    ) -> Iterator[Sequence[Item]]:
        for page in self._pages(self._names.removed, deadline, whole=False):
            found = []
            for each in page:
                folder, _, uuid = each["name"].rpartition("/")
                name, uuid = self._named(folder, self._names.removed), unquote(uuid)
                if name is not None and 0 < len(uuid.encode(errors="replace")) <= MAX_UUID:
                    there = ObjectState.told(each)
                    value = there.metadata.get("record", "").encode(errors="replace")
                    version = there.version.revision
                    said = {uuid: (value, version)}
                    found.append(Item("removed", name, uuid, version, there.created, said))
            yield found

    def held(self, prefix: str, deadline: Deadline) -> Iterator[str]:
        """Yield the names of held locks that begin with `prefix`."""
        for page in self._pages(f"{self._names.locks}{quote(prefix, safe='')}", deadline):
            for each in page:
                there, name = ObjectState.told(each), self._named(each["name"], self._names.locks)
                if name is not None and there.uuid is not None and there.decision is None:
                    yield name

    def dead(self, deadline: Deadline) -> Iterator[tuple[str, Version]]:
        """Yield the signs of life that have ended long ago."""
        for page in self._pages(self._names.unlockers, deadline):
            for each in page:
                there = ObjectState.told(each)
                if there.created + _FORGOTTEN < self.now():
                    yield each["name"], there.version

    def count(self, deadline: Deadline) -> int:
        """Return how many objects each look reads, by their names; `MOST` or more: too many."""
        found = 0
        for page in self._pages(self._names.live, deadline, fields="name"):
            found += len(page)
            if found >= MOST:
                break
        return found

    # ------------------------------------------------------------ inside

    def _see(self, missing: Collection[str]) -> None:
        """Take note whether a listing had all that was to be found in it."""
        bucket, was, self._blind = self._calls.place.bucket, self._blind, bool(missing)
        if missing:
            error = errors.blind(bucket, min(missing))
            if not was:
                log.warning("%s", error)
            raise error
        if was:
            log.warning("The listings of the bucket %s are of now again.", bucket)

    def _pages(
        self, prefix: str, deadline: Deadline, fields: str = f"name,{FIELDS}", *, whole: bool = True
    ) -> Iterator[list[Resource]]:
        """Yield a listing's pages; unless it is to be `whole`, no more than may be read.

        Raises:
            StoreError: it is to be, and has more than `MOST` objects, or `MOST_BYTES` bytes.
        """
        query = {"prefix": prefix, "fields": f"nextPageToken,items({fields})"}
        objects = size = 0
        while True:
            patience = Deadline(min(deadline, Deadline.after(_PAGE)))
            answer = self._calls.ask(self._calls.page(query), patience, RequestState(Read("")))
            said = answer.said()
            page = said.get("items") or []
            objects, size = objects + len(page), size + len(answer.body)
            if objects > MOST or size > MOST_BYTES:
                if whole:
                    raise errors.too_much(self._calls.place.bucket, prefix, MOST, MOST_BYTES)
                return
            yield page
            if not (token := said.get("nextPageToken")):
                return
            query["pageToken"] = token

    def _sign_of_life(self, resource: Resource) -> Item | None:
        if not resource["name"].startswith(self._names.unlockers):
            return None
        name, there = (
            unquote(resource["name"][len(self._names.unlockers) :]),
            ObjectState.told(resource),
        )
        value = there.metadata.get("said", "").encode(errors="replace")
        if there.created + _lasting(value) + _SLACK < self.now():
            return None  # it has ended
        version = there.version.revision
        return Item("unlockers", name, "", version, there.created, {"": (value, version)})

    @staticmethod
    def _named(where: str, folder: str) -> str | None:
        """Return the lock that an object is about; None: no name of ours."""
        segment = where[len(folder) :]
        if not where.startswith(folder) or "/" in segment:
            return None
        try:
            name = check_name(unquote(segment, errors="strict"))
        except (InvalidLockName, UnicodeDecodeError):
            return None
        return name if quote(name, safe="") == segment else None


def _standing(name: str, there: ObjectState) -> Item | None:
    version = there.version.revision
    if there.uuid is not None:
        said = there.found()
        values = {part: said[part] for part in SUBKEYS if part in said}
        return Item("locks", name, "", version, there.created, values)
    gone = there.gone or ""
    if len(gone.encode(errors="replace")) > MAX_UUID:
        return None
    return Item("withdrawn", name, gone, version, there.created, {gone: (b"", version)})


def _lasting(value: bytes) -> float:
    """Return for how many seconds a sign of life counts, by what it says itself."""
    try:
        said = json.loads(value)
        return min(_LONGEST, max(0.0, float(said["ttl"])))
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0.0
