"""Removing a lock that is not one's own, in three writes; whoever finds it half done completes it.

1. **The decision**: a patch of the lock's own metadata, guarded by generation and metageneration as
   they were seen. A push that got in first wins: the patch is refused. From here on it is the push
   that is refused, and so is the holder's release; both read the decision there, and believe it.
2. **The record**, under a name of its own, if it is not there yet.
3. **The trace** over the lock, guarded by the decision's version: the name is free, and nothing of
   that holder which still arrives can take it again.

Who dies before the first has done nothing. After the first the decision stands, and with it all
that is needed for the rest: whoever meets it (a taker, who waits, the holder itself, another
remover) does it. After the second a record stands, of a lock that is being removed. Were the record
first, it would call a lock removed that its holder pushed or released in the meantime; were the
lock deleted first, there would be a moment at which nobody knows why. Done twice, or by two at
once, each of the last two is refused the second time.
"""

from __future__ import annotations

from typing import Final

from lockclient.model.holder import MAX_UUID, Holder
from lockclient.model.removal import Removal
from lockclient.stores.gcs.guarded_objects import GuardedObjects
from lockclient.stores.gcs.keys import (
    Names,
    ObjectState,
    Version,
    decided,
    decision,
    in_record,
    record_written,
    trace,
)
from lockclient.stores.requests import Remove

_MOST: Final = 8000
"""Bytes of metadata: 8 KiB are refused."""


class RemovalSteps:
    """Removes locks.

    Args:
        names: of the objects.
    """

    def __init__(self, names: Names) -> None:
        self._names = names

    def remove(self, at: GuardedObjects, request: Remove) -> Version | ObjectState | None:
        """Remove a lock; return the decision's version, or what stands there instead."""
        holder, where = request.removal.holder, self._names.lock(request.removal.holder.name)
        text = decision(request.removal, recorded=request.recorded)
        version = None
        while version is None:
            there = at.stands(where)
            if there is None or not there.is_of(holder):
                return there
            if there.decision == text:  # by an earlier sending
                version = there.version
            elif there.decision is not None or not _as_seen(request, there):
                return there
            else:
                version = at.patch(where, _with(there, text), there.version)
        self._finish(at, request.removal, version, recorded=request.recorded)
        return version

    def complete(self, at: GuardedObjects, name: str, there: ObjectState) -> Removal | None:
        """Do what is left of a removal that was decided; None: somebody else has done it."""
        body = at.body(self._names.lock(name), there.version) if there.size else b""
        if body is None:
            return None
        removal = self.told(there, there.holder(name, body))
        recorded = '"recorded": false' not in (there.decision or "")
        self._finish(at, removal, there.version, recorded=recorded)
        return removal

    @staticmethod
    def told(there: ObjectState, holder: Holder) -> Removal:
        """Return the removal that was decided, of this holder."""
        return decided(holder, there.decision or "")

    @staticmethod
    def is_same(found: Removal, request: Remove) -> bool:
        """Tell whether a record is that of this request."""
        return found.value() == in_record(request.removal).value()

    def _finish(
        self, at: GuardedObjects, removal: Removal, version: Version, *, recorded: bool
    ) -> None:
        name, uuid = removal.holder.name, removal.holder.uuid or ""
        if recorded and uuid:
            at.put(self._names.record(name, uuid), *record_written(in_record(removal)))
        at.put(self._names.lock(name), trace(uuid), b"", version)


def _as_seen(request: Remove, there: ObjectState) -> bool:
    """Tell whether nobody has written to the lock since the remover saw it."""
    seen = request.stamp_revisions
    return seen is None or max(seen) == there.version.revision


def _with(there: ObjectState, text: str) -> dict[str, str | None]:
    """Return the change that decides.

    Where it would not fit, as somebody else has written too much there, all else goes but whose
    lock it was, which who has decided knows.
    """
    size = sum(len(_bytes(key)) + len(_bytes(said)) for key, said in there.metadata.items())
    if size + len(_bytes(text)) <= _MOST:
        return {"removing": text}
    uuid = there.uuid or ""
    kept = {"uuid": uuid if len(_bytes(uuid)) <= MAX_UUID else "", "removing": text}
    return {**dict.fromkeys(there.metadata), **kept}


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")
