"""Requests of a mutex on one bucket: the calls of each, and the outcome that their answers mean.

Each write names the version that it changes: the generation, which belongs to one acquisition for
ever, and the metageneration, which one write made. Metagenerations alone begin at 1 again with
each object: a holder that was taken over would push or delete its successor's lock by them.

| request | call | precondition |
| take | upload | no object under the name; over a tombstone: that version of it |
| push | patch of the two stamps | own generation, and the metageneration of the own last write |
| release | delete, or upload of a tombstone | the same |
| reclaim | upload over the lock | generation and metageneration as seen |
| removal | patch that decides it, record, tombstone | as seen; then the decision's |

**1. Unanswered and repeated requests.** A write that names a version is sent again if it is not
answered. A front end that lost a connection may repeat a request, too, and pass on the second
answer alone: a refusal, though the first sending was done. So after each refusal the client reads
the object. A take finds its uuid, a push its stamps, a removal its decision, a withdrawal its
tombstone or its `late_until`: then it was done; an existing record is the record. A push that finds
other stamps and its own generation still has the lock, unless its removal is decided. A take whose
refusal can't be read has an unknown outcome. A release was done if it finds its own tombstone and
no record, or nothing on its second try. Nothing on its first try is a loss: somebody may have
deleted the object by hand, and another client may have held the lock since.

**2. Late requests.** A write that names a generation changes nothing once that generation was
replaced or deleted. A create names none: an unanswered one could take the lock for an acquisition
that has ended. So an acquisition sends one create, and reads the name if that is not answered. If
it finds its own lock, the create was done, and none may arrive. If it finds nothing, it uploads a
**tombstone**, and then the lock over that version. While any object exists under the name, a late
create is refused.

A tombstone is as good as free: the next taker uploads over it, at its version. `late_until`, the
time until which an object must exist there, is handed on: a taker copies it from the tombstone to
the lock, and a release before that time leaves a tombstone with it. A withdrawal leaves a
tombstone; while another client holds the lock, it patches `late_until` onto that lock instead. The
patch moves the metageneration, so the holder's release, which names the old one, is refused and
reads `late_until`. So no process has to remember it: neither one that releases another's lock, nor
one that took over from a dead holder. It ends after a day (`keys.LATE_REQUEST_S`): the bucket
checks the access token when a request arrives, and by then it has expired.

A late take over a tombstone names its version: a withdrawal uploads another one in its place.

**3. Callers that stop waiting.** If a task is cancelled or a thread interrupted, the thread that
sends its take continues to the end of its try, and a withdrawal waits a moment for it
(`Delivery.answered`). After an answer nothing can arrive late, and no tombstone is left.

**4. Not covered**: a process that is killed between its create and the end of its take, and a front
end that repeats a create after it was done and the lock was released (HTTP forbids that of a POST).
The lock then stays with a dead holder until its auto-unlock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import uuid4

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, format_stamp
from lockclient.model.holder import STAMPS, Holder
from lockclient.model.removal import MAX_RECORD, Removal
from lockclient.stores import outcomes, request_types
from lockclient.stores.gcs import removal_steps
from lockclient.stores.gcs.conditional_calls import ABSENT, GuardedObjects
from lockclient.stores.gcs.expiry import Expiry
from lockclient.stores.gcs.keys import (
    LATE_REQUEST_S,
    ObjectNames,
    ObjectState,
    Version,
    decided_removal,
    lock_content,
    tombstone,
)
from lockclient.stores.gcs.wire.http_client import HttpClient
from lockclient.stores.outcomes import Outcome

MAX_ROUNDS: Final = 5
"""Rounds of a request whose lock changes hands in between; then another client has it."""
SETTLE_TIMEOUT_S: Final = 0.5
"""Seconds that a withdrawal waits for a take that is in flight. The end of a program leaves more,
so that the withdrawal of an unanswered take still writes its tombstone."""


class GcsRequestExecutor:
    """Does the requests of all acquisitions on one bucket.

    `Delivery.memory` of an acquisition is the `ObjectState` of its lock: the version that its
    release names, and the time until which it must leave a tombstone. Without it a release reads
    the lock first.

    Args:
        client: of the bucket.
        expiry: removes silent locks that are wanted; None: unlockers alone do that.
    """

    def __init__(self, client: HttpClient, expiry: Expiry | None = None) -> None:
        self._client = client
        self._remove_if_due = None if expiry is None else expiry.remove_if_due
        self._names = ObjectNames(client.location.root)

    def do(self, request: request_types.Request, deadline: Deadline) -> Outcome:
        """Do a request. Errors: see `HttpClient.ask`."""
        delivery = request_types.delivery_of(request)
        objects = GuardedObjects(
            self._client, self._names, deadline, delivery, delivery.is_unknown, self._remove_if_due
        )
        try:
            outcome = _STEPS[type(request)](objects, request)
        except ClusterMutexError:
            delivery.answered = not (delivery.is_unknown or delivery.in_flight)
            raise
        delivery.answered = not delivery.is_unknown
        return outcome


# ---------------------------------------------------------------- taking


def _take(objects: GuardedObjects, request: request_types.Take) -> Outcome:
    holder = request.holder
    where, uuid = objects.names.lock(holder.name), holder.uuid or ""
    replaced: ObjectState | None = None
    for _ in range(MAX_ROUNDS):
        if (taken := _upload_lock(objects, holder, replaced)) is not None:
            return taken
        replaced, state = None, _read_refused(objects, where)
        if state is None:
            if objects.delivery.is_unknown:  # from now on the unanswered create is refused
                objects.put(where, tombstone(str(uuid4())), b"")
            continue  # else the lock was just released
        if state.decision is not None:
            removal_steps.complete(objects, holder.name, state)
            if state.uuid == uuid:
                return outcomes.Refused(None, state.version.revision, uuid_spent=True)
        elif state.uuid == uuid:
            return _found_taken(objects, state)
        elif state.uuid is not None:
            if not objects.expired(holder.name, state):
                return outcomes.Refused(state.uuid, state.version.revision)
        elif _is_uuid_spent(objects, holder.name, uuid, state):
            return outcomes.Refused(None, state.version.revision, uuid_spent=True)
        else:
            replaced = state
    return outcomes.Refused(None, 0)


def _read_refused(objects: GuardedObjects, where: str) -> ObjectState | None:
    """Read the object under the name after a refused upload (step 1 above).

    Raises:
        StoreUnavailable: it is unknown whether the lock was taken.
    """
    try:
        return objects.head(where)
    except StoreUnavailable as error:
        objects.delivery.is_unknown = error.unknown = True
        raise


def _upload_lock(
    objects: GuardedObjects, holder: Holder, replaced: ObjectState | None
) -> outcomes.Taken | None:
    """Upload a lock in place of that object; None: it was refused, or not answered."""
    is_pending = objects.delivery.is_unknown
    if replaced is None and is_pending:
        return None  # no second create
    where, (metadata, body) = objects.names.lock(holder.name), lock_content(holder)
    now = objects.client.now()
    expires_at = 0.0 if replaced is None else replaced.tombstone_expires_at
    if is_pending:
        expires_at = max(expires_at, now + LATE_REQUEST_S)
    if expires_at > now:
        metadata["late_until"] = f"{expires_at:.0f}"
    if replaced is None:
        taken = objects.put(where, metadata, body, once=True)
    else:  # an upload that names what it replaces changes nothing when it arrives late
        taken = objects.put(where, metadata, body, replaced.version)
    return None if taken is None else _taken(objects, taken)


def _found_taken(objects: GuardedObjects, state: ObjectState) -> outcomes.Taken:
    """Return that a read found the lock of this acquisition."""
    # An unanswered create of this very request wrote the stamps of this request.
    earlier = objects.was_unknown or not objects.delivery.is_unknown
    return _taken(objects, state, by_earlier_send=earlier)


def _taken(
    objects: GuardedObjects, own: ObjectState, *, by_earlier_send: bool = False
) -> outcomes.Taken:
    """Note that no create may arrive any more, or that an object there refuses it."""
    objects.delivery.is_unknown, objects.delivery.memory = False, own
    return outcomes.Taken(own.version.token, by_earlier_send)


def _is_uuid_spent(objects: GuardedObjects, name: str, uuid: str, state: ObjectState) -> bool:
    """Return whether this uuid had the lock and lost it, or was withdrawn."""
    if state.tombstone_uuid == uuid:
        return True
    # After an unanswered create it may have had the lock, and others after it.
    return objects.delivery.is_unknown and _read_record(objects, name, uuid) is not None


def _reclaim(objects: GuardedObjects, request: request_types.Reclaim) -> Outcome:
    holder, previous = request.holder, request.previous
    where, uuid = objects.names.lock(holder.name), holder.uuid or ""
    generation = Version.from_revision(previous.fencing_token).generation
    seen = max(previous.stamp_revisions)
    read = objects.head
    for _ in range(MAX_ROUNDS):
        state = read(where)
        if state is None or state.uuid is None:
            return outcomes.Refused(None, 0)
        now = state.version
        if state.decision is not None:
            removal_steps.complete(objects, holder.name, state)
            continue
        if state.uuid == uuid:
            return _found_taken(objects, state)
        is_same = (state.uuid, now.generation) == (previous.uuid, generation)
        if not is_same or seen not in (0, now.revision):  # it was pushed: that holder lives
            return outcomes.Refused(state.uuid, now.revision)
        if (taken := _upload_lock(objects, holder, state)) is not None:
            return taken
        read = partial(_read_refused, objects)
    return outcomes.Refused(None, 0)


def _get_position(objects: GuardedObjects, request: request_types.GetPosition) -> Outcome:
    state = objects.head(objects.names.lock(request.name))
    if state is None or state.decision is not None:
        return outcomes.Position(False, None, None, 0)
    # A holder names no uuid: it asks whether it still has the lock, and removes nothing.
    if request.uuid and state.uuid and objects.expired(request.name, state):
        return outcomes.Position(False, None, None, 0)
    return outcomes.Position(False, None, state.uuid, state.version.revision)


# ---------------------------------------------------------------- holding


def _push(objects: GuardedObjects, request: request_types.Push) -> Outcome:
    where = objects.names.lock(request.name)
    stamps = zip(STAMPS, request.stamps, strict=True)
    metadata = {part: format_stamp(wall) for part, wall in stamps if wall is not None}
    pushed = objects.patch(where, metadata, Version.from_revision(request.revision))
    state = objects.head(where) if pushed is None else pushed
    if pushed is None:
        if state is None or state.uuid != request.uuid or state.decision is not None:
            return _not_holder(objects, request.name, request.uuid, state)
        if state.metadata.get(STAMPS[0]) == metadata[STAMPS[0]]:  # by an earlier sending
            pushed = state
    assert state is not None, "a patch that was done returns what it patched"
    delivery = request.delivery
    if delivery is not None and delivery.memory is not None:
        delivery.memory = max(delivery.memory, state, key=lambda known: known.version)
    return (outcomes.Conflict if pushed is None else outcomes.Done)(state.version.revision)


def _unlock(objects: GuardedObjects, request: request_types.Unlock) -> Outcome:
    name, uuid, sent = request.name, request.uuid, False
    own: ObjectState | None = None if request.delivery is None else request.delivery.memory
    while True:
        if own is None:
            state = objects.head(objects.names.lock(name))
            if state is None or state.uuid != uuid or state.decision is not None:
                # Only this request leaves a tombstone of this uuid and no record: step 1 above.
                resent = sent and state is not None and state.tombstone_uuid == uuid
                return _not_holder(objects, name, uuid, state, resent=resent)
            own = state
        if _delete_own(objects, name, own):
            return outcomes.Done(own.version.revision)
        own, sent = None, True  # another client wrote to the lock, or it is not there any more


def _delete_own(objects: GuardedObjects, name: str, own: ObjectState) -> bool:
    """Delete the own lock, or replace it by a tombstone; False: it has another version."""
    where = objects.names.lock(name)
    if own.tombstone_expires_at > objects.client.now():
        metadata = tombstone(own.uuid or "", own.tombstone_expires_at)
        return objects.put(where, metadata, b"", own.version) is not None
    return objects.delete(where, own.version)


def _withdraw(objects: GuardedObjects, request: request_types.Withdraw) -> Outcome:
    name, uuid = request.name, request.uuid
    where = objects.names.lock(name)
    may_arrive = request.tombstone and not _was_answered(request.delivery, objects.deadline)
    expires_at = 0  # one time for all rounds, by which this withdrawal recognises its own patch
    while True:
        state = objects.head(where)
        expires_at = expires_at or round(objects.client.now() + LATE_REQUEST_S)
        if state is not None and state.decision is not None:
            removal_steps.complete(objects, name, state)
        elif state is not None and state.uuid == uuid:
            if _delete_own(objects, name, state):
                break
        elif state is not None and state.tombstone_uuid == uuid:
            break  # by a release of this acquisition, or by a removal
        elif not may_arrive or _leave_tombstone(objects, where, uuid, state, expires_at):
            break
    return outcomes.Done(0)


def _was_answered(takes: request_types.Delivery | None, deadline: Deadline) -> bool:
    """Wait a moment for the answer to a take whose caller stopped waiting; False: no answer."""
    if takes is None:
        return False
    until = deadline.within(0.0, SETTLE_TIMEOUT_S)
    while not (takes.answered or takes.is_unknown or until.expired()):
        time.sleep(0.01)
    return takes.answered


def _leave_tombstone(
    objects: GuardedObjects, where: str, uuid: str, state: ObjectState | None, expires_at: int
) -> bool:
    """Make sure that an object exists there for a day; False: it has changed meanwhile."""
    if state is None or state.uuid is None:
        replaced = ABSENT if state is None else state.version
        return objects.put(where, tombstone(uuid), b"", replaced) is not None
    if state.tombstone_expires_at >= expires_at:
        return True  # a refused patch of this withdrawal was done
    return objects.patch(where, {"late_until": f"{expires_at}"}, state.version) is not None


# ---------------------------------------------------------------- others' locks


def _read(objects: GuardedObjects, request: request_types.Read) -> Outcome:
    state = objects.head(objects.names.lock(request.name))
    holder, removal = None, None
    if state is not None and state.uuid is not None:
        # Without a body another client has the lock by now: the metadata held when they were read.
        whole = objects.holder(request.name, state)
        holder = whole or state.holder(request.name)
        if state.decision is not None:  # the lock is free
            removal = None if whole is None else decided_removal(whole, state.decision)
            holder = None
    if request.uuid is None:
        removal = None
    elif removal is None or removal.holder.uuid != request.uuid:
        removal = _read_record(objects, request.name, request.uuid)
    return outcomes.ReadResult(holder, (), removal, 0 if state is None else state.version.revision)


def _remove(objects: GuardedObjects, request: request_types.Remove) -> Outcome:
    name, uuid = request.removal.holder.name, request.removal.holder.uuid or ""
    removed = removal_steps.remove(objects, request)
    if isinstance(removed, Version):
        return outcomes.Done(removed.revision)
    outcome = _not_holder(objects, name, uuid, removed)
    # With the record of this very request, an earlier sending of it removed the lock.
    found, record = outcome.removal, request.removal.without_token().value()
    return outcomes.Done(0) if found is not None and found.value() == record else outcome


def _not_holder(
    objects: GuardedObjects,
    name: str,
    uuid: str,
    state: ObjectState | None,
    *,
    resent: bool = False,
) -> outcomes.NotHolder:
    """Return that this uuid has the lock no more; `resent`: this request may have ended it."""
    resent |= objects.delivery.is_unknown
    if state is not None and state.decision is not None:
        removal = removal_steps.complete(objects, name, state)
        if state.uuid == uuid and removal is not None:
            return outcomes.NotHolder(None, removal, resent)
        state = None
    holder = None if state is None else state.uuid
    return outcomes.NotHolder(holder, _read_record(objects, name, uuid), resent)


def _read_record(objects: GuardedObjects, name: str, uuid: str) -> Removal | None:
    value = objects.body(objects.names.record(name, uuid), max_bytes=MAX_RECORD)
    return None if value is None else Removal.read(name, uuid, value)


_STEPS: Final[dict[type[request_types.Request], Callable[[GuardedObjects, Any], Outcome]]] = {
    request_types.Take: _take,
    request_types.Reclaim: _reclaim,
    request_types.GetPosition: _get_position,
    request_types.Push: _push,
    request_types.Unlock: _unlock,
    request_types.Withdraw: _withdraw,
    request_types.Read: _read,
    request_types.Remove: _remove,
}
"""The calls of each request, and the outcome that they read; a bucket has no queue."""
