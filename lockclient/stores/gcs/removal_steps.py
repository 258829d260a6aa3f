"""Removal of another holder's lock, in three writes; whoever finds it half done completes it.

1. **The decision**: a patch of the lock's own metadata, guarded by generation and metageneration as
   they were seen. A push that got in first wins: the patch is refused. From here on it is the push
   that is refused, and so is the holder's release; both read the decision there, and believe it.
2. **The record**, under a name of its own, if it is not there yet.
3. **The tombstone** over the lock, guarded by the decision's version: the name is free, and nothing
   of that holder which still arrives can take it again.

Who dies before the first has done nothing. After the first the decision stands, and with it all
that is needed for the rest: whoever meets it (a taker, who waits, the holder itself, another
remover) does it. After the second a record stands, of a lock that is being removed. Were the record
first, it would call a lock removed that its holder pushed or released in the meantime; were the
lock deleted first, there would be a moment at which nobody knows why. Done twice, or by two at
once, each of the last two is refused the second time.
"""

from __future__ import annotations

from typing import Final

from lockclient.model.holder import MAX_UUID_BYTES
from lockclient.model.removal import Removal
from lockclient.stores.gcs.guarded_objects import GuardedObjects
from lockclient.stores.gcs.keys import (
    ObjectState,
    Version,
    decided_removal,
    decision,
    tombstone,
)
from lockclient.stores.requests import Remove

_MAX_METADATA_BYTES: Final = 8000
"""Bytes of metadata: 8 KiB are refused."""


def remove(objects: GuardedObjects, request: Remove) -> Version | ObjectState | None:
    """Remove a lock; return the decision's version, or the object that is there instead."""
    holder, where = request.removal.holder, objects.names.lock(request.removal.holder.name)
    text = decision(request.removal, recorded=request.recorded)
    version, seen = None, request.stamp_revisions
    while version is None:
        state = objects.head(where)
        if state is None or not state.is_of(holder):
            return state
        if state.decision == text:  # by an earlier sending
            version = state.version
        elif state.decision is not None or (seen and max(seen) != state.version.revision):
            return state  # somebody has written to the lock since the remover saw it
        else:
            decided = objects.patch(where, _decision_patch(state, text), state.version)
            version = None if decided is None else decided.version
    _finish(objects, request.removal, version, recorded=request.recorded)
    return version


def complete(objects: GuardedObjects, name: str, state: ObjectState) -> Removal | None:
    """Do what is left of a removal that was decided; None: somebody else has done it."""
    body = objects.body(objects.names.lock(name), state.version) if state.size else b""
    if body is None:
        return None
    removal = decided_removal(state.holder(name, body), state.decision or "")
    recorded = '"recorded": false' not in (state.decision or "")
    _finish(objects, removal, state.version, recorded=recorded)
    return removal


def _finish(objects: GuardedObjects, removal: Removal, version: Version, *, recorded: bool) -> None:
    name, uuid = removal.holder.name, removal.holder.uuid or ""
    if recorded and uuid:
        content = objects.names.record_content(removal.without_token())
        objects.put(objects.names.record(name, uuid), *content)
    objects.put(objects.names.lock(name), tombstone(uuid), b"", version)


def _decision_patch(state: ObjectState, text: str) -> dict[str, str | None]:
    """Return the change that decides.

    Where it would not fit, as somebody else has written too much there, all else goes but whose
    lock it was, which who has decided knows.
    """
    size = sum(len(_bytes(key)) + len(_bytes(value)) for key, value in state.metadata.items())
    if size + len(_bytes(text)) <= _MAX_METADATA_BYTES:
        return {"removing": text}
    uuid = state.uuid or ""
    kept = {"uuid": uuid if len(_bytes(uuid)) <= MAX_UUID_BYTES else "", "removing": text}
    return {**dict.fromkeys(state.metadata), **kept}


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")
