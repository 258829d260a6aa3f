"""Removal of another holder's lock, in three writes; any client that finds it half done ends it.

1. **The decision**: a patch of the lock's own metadata, which names generation and metageneration
   as they were seen. If a push came first, the patch is refused. After the patch the holder's push
   and release are refused; both read the decision.
2. **The record**, under a name of its own, if it is not there yet.
3. **The tombstone** over the lock, which names the decision's version: the name is free, and no
   late request of that holder can take it again.

A remover that dies before the first has changed nothing. The decision has all that the rest needs:
a taker, a waiter, the holder or another remover that reads it does the rest. A record before the
decision would call a lock removed that its holder then pushed or released. A tombstone before the
record would leave a moment without a record of the removal. If two clients do the
last two at once, the second upload of each is refused.
"""

from __future__ import annotations

from typing import Final

from lockclient.model.holder import MAX_UUID_BYTES
from lockclient.model.removal import Removal
from lockclient.stores.gcs.conditional_calls import GuardedObjects
from lockclient.stores.gcs.keys import (
    ObjectState,
    Version,
    decided_removal,
    decision,
    tombstone,
)
from lockclient.stores.request_types import Remove

_MAX_METADATA_BYTES: Final = 8000
"""Bytes of metadata: 8 KiB are refused."""


def remove(objects: GuardedObjects, request: Remove) -> Version | ObjectState | None:
    """Remove a lock; return the decision's version, or the object that is there in its place."""
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
            return state  # another client wrote to the lock after the remover read it
        else:
            decided = objects.patch(where, _decision_patch(state, text), state.version)
            version = None if decided is None else decided.version
    _finish(objects, request.removal, version, recorded=request.recorded)
    return version


def complete(objects: GuardedObjects, name: str, state: ObjectState) -> Removal | None:
    """Complete a removal that was decided; None: another client has done it."""
    holder = objects.holder(name, state)
    if holder is None:
        return None
    removal = decided_removal(holder, state.decision or "")
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
    """Return the patch that decides.

    If the metadata would be too large (another program may have written there), all but the uuid is
    deleted: the remover knows the rest.
    """
    size = sum(len(_bytes(key)) + len(_bytes(value)) for key, value in state.metadata.items())
    if size + len(_bytes(text)) <= _MAX_METADATA_BYTES:
        return {"removing": text}
    uuid = state.uuid or ""
    kept = {"uuid": uuid if len(_bytes(uuid)) <= MAX_UUID_BYTES else "", "removing": text}
    return {**dict.fromkeys(state.metadata), **kept}


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")
