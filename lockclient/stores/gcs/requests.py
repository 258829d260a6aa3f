"""Mutex requests on one bucket: the steps of each request, and why they are safe in any order.

Each write names what it changes: the generation, which belongs to one acquisition for ever, and the
metageneration, which one write made. Metagenerations alone begin at 1 again with each object: a
holder that was taken over, and goes by them, would push or delete its successor's lock.

| step | request | only if |
| take | upload | nothing stands there; over a tombstone: that very one stands there |
| push | patch of the two stamps | own generation, and the metageneration of the own last write |
| release | delete, or a tombstone uploaded over it | the same |
| reclaim | upload over it | generation and metageneration as seen |
| removal | patch that decides it, record, tombstone over it | as seen; then the decision's |

**1. Unanswered requests.** A write that names a version is sent again. A refused upload reads what
stands there: with the own uuid it was done. A refused push reads it, too: the own generation is
still the own lock, unless its removal is decided; with the stamps that were sent an earlier sending
did it. A release that finds nothing on its second try was done by its first. A create names no
version, and is never sent twice: step 3.

**2. Repeated requests.** A front end that lost its connection to the next one may send a request
there twice, and pass on the second answer alone: a refusal of what the first sending did. So a
refusal is read in the same way after a first try: a take finds its uuid, a push its stamps, a
removal its decision, a withdrawal its tombstone or its `late_until`; an existing record is the
record. A take whose refusal can't be read has an unknown outcome. A refused release that finds its
own tombstone, and no record, was done. One that finds nothing counts as a loss: somebody may have
deleted the object by hand, and another client may have had the lock since.

**3. Late requests.** A write that names a generation does nothing once that is gone, for ever. A
create names none: one that was never answered could take the lock when nobody expects it any more.
So an acquisition sends one create, and reads the name if that is not answered. The own lock stands
there: it was done, and nothing is left that may arrive. Nothing stands there: a **tombstone** is
put in its place, and the lock is then uploaded over that one. While anything stands under the name,
a late create is refused.

A tombstone is as good as free: the next taker uploads over it, at its generation. The time until
which something must stand, `late_until`, goes from hand to hand: a taker copies it from the
tombstone to the lock, and a release before that time leaves a tombstone with it. A withdrawal
leaves a tombstone, too; while another client has the lock it patches `late_until` onto that one's
lock, which moves the metageneration, so that a release, which names it, can't overlook it. So no
process has to remember it: neither one that releases another's lock, nor one that took over from a
dead holder. It ends after a day (`keys.LATE_REQUEST_S`): a request is authorised when it arrives,
by an access token that is too old by then.

A late *take over a tombstone* names that very one: a withdrawal uploads another in its place.

**4. Answers that nobody heard.** If a task is cancelled or a thread interrupted, the thread that
sends its take goes on to the end of its try, and a withdrawal waits a moment for it
(`Delivery.answered`). After an answer nothing can come late, and no tombstone is left.

**5. Not covered**: a process that is killed between its create and the end of its take, and a front
end that sends a create once more after it has answered it (HTTP forbids that of a POST), and after
the release. The lock then stands for a dead holder until its auto-unlock.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final
from uuid import uuid4

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, format_stamp
from lockclient.model.holder import STAMPS, Holder
from lockclient.model.removal import MAX_RECORD, Removal
from lockclient.stores import outcomes, requests
from lockclient.stores.common.dispatch import dispatch
from lockclient.stores.gcs import removal_steps
from lockclient.stores.gcs.expiry import Expiry
from lockclient.stores.gcs.guarded_objects import ABSENT, GuardedObjects
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
"""How often it is begun anew because the lock changed hands in the middle; then somebody has it."""
SETTLE_TIMEOUT_S: Final = 0.5
"""Seconds that a withdrawal waits for a take that is in flight: less than the end of a program
leaves for it, so that a tombstone is left in time where the take is not answered."""


class GcsRequestExecutor:
    """Does the requests of all acquisitions on one bucket.

    An acquisition's `Delivery.memory` is its lock's `ObjectState`: the version that its release
    names, and until when it must leave a tombstone. So a release is one request; without that it
    looks.

    Args:
        client: of the bucket.
        expiry: removes silent locks that are wanted; None: that is an unlocker's to do.
    """

    def __init__(self, client: HttpClient, expiry: Expiry | None = None) -> None:
        self._client = client
        self._expiry = expiry
        self._names = ObjectNames(client.location.root)

    def do(self, request: requests.Request, deadline: Deadline) -> Outcome:
        """Do a request. Errors: see `HttpClient.ask`."""
        delivery = requests.delivery_of(request)
        objects = GuardedObjects(
            self._client, self._names, deadline, delivery, was_ambiguous=delivery.ambiguous
        )
        try:
            outcome: Outcome = dispatch(self, request, objects)
        except ClusterMutexError:
            delivery.answered = not (delivery.ambiguous or delivery.in_flight)
            raise
        delivery.answered = not delivery.ambiguous
        return outcome

    # ------------------------------------------------------------ getting it

    def take(self, request: requests.Take, objects: GuardedObjects) -> Outcome:
        holder = request.holder
        name, uuid = self._names.lock(holder.name), holder.uuid or ""
        replaced: ObjectState | None = None
        for _ in range(MAX_ROUNDS):
            taken = self._upload_lock(objects, name, holder, replaced)
            if taken is not None:
                return outcomes.Taken(taken.version.token)
            replaced, state = None, self._read_refused(objects, name)
            if state is None:
                if objects.create_is_pending:  # from now on it is refused
                    objects.put(name, tombstone(str(uuid4())), b"")
                continue  # else it was just released
            if state.decision is not None:
                removal_steps.complete(objects, holder.name, state)
                if state.uuid == uuid:
                    return outcomes.Refused(None, state.version.revision, uuid_spent=True)
            elif state.uuid == uuid:
                return self._found_taken(objects, state)
            elif state.uuid is not None:
                if not self._expired(objects, holder.name, state):
                    return outcomes.Refused(state.uuid, state.version.revision)
            elif self._is_uuid_spent(objects, holder.name, uuid, state):
                return outcomes.Refused(None, state.version.revision, uuid_spent=True)
            else:
                replaced = state
        return outcomes.Refused(None, 0)

    @staticmethod
    def _read_refused(objects: GuardedObjects, name: str) -> ObjectState | None:
        """Read what stands there after a refused upload (step 2 above).

        Raises:
            StoreUnavailable: it is unknown whether the lock was taken.
        """
        try:
            return objects.head(name)
        except StoreUnavailable as error:
            objects.delivery.ambiguous = error.unknown = True
            raise

    def _upload_lock(
        self, objects: GuardedObjects, name: str, holder: Holder, replaced: ObjectState | None
    ) -> ObjectState | None:
        if replaced is None and objects.create_is_pending:
            return None  # no second create
        metadata, body = lock_content(holder)
        now = objects.client.now()
        expires_at = 0.0 if replaced is None else replaced.tombstone_expires_at
        if objects.create_is_pending:
            expires_at = max(expires_at, now + LATE_REQUEST_S)
        if expires_at > now:
            metadata["late_until"] = f"{expires_at:.0f}"
        if replaced is None:
            taken = objects.put(name, metadata, body, once=True)
        else:  # an upload that names what it replaces does nothing, late
            taken = objects.put(name, metadata, body, replaced.version)
        if taken is not None:
            self._note_taken(objects, taken)
        return taken

    def _found_taken(self, objects: GuardedObjects, state: ObjectState) -> outcomes.Taken:
        # Unanswered tries of this very request have its stamps.
        earlier = objects.was_ambiguous or not objects.create_is_pending
        self._note_taken(objects, state)
        return outcomes.Taken(state.version.token, by_earlier_send=earlier)

    @staticmethod
    def _note_taken(objects: GuardedObjects, own: ObjectState) -> None:
        """Note a lock that was taken: by the only create, or with what a late one meets."""
        objects.delivery.ambiguous, objects.delivery.memory = False, own

    def _is_uuid_spent(
        self, objects: GuardedObjects, name: str, uuid: str, state: ObjectState
    ) -> bool:
        """Tell whether this uuid had the lock and lost it, or was withdrawn."""
        if state.tombstone_uuid == uuid:
            return True
        # Others may have had it since. Only who was not answered can have had it unawares.
        is_pending = objects.create_is_pending
        return is_pending and self._read_record(objects, name, uuid) is not None

    def get_position(self, request: requests.GetPosition, objects: GuardedObjects) -> Outcome:
        state = objects.head(self._names.lock(request.name))
        if state is None or state.decision is not None:
            return outcomes.Position(False, None, None, 0)
        # By who waits, and not by a holder that looks whether it still has the lock.
        if request.uuid and state.uuid and self._expired(objects, request.name, state):
            return outcomes.Position(False, None, None, 0)
        return outcomes.Position(False, None, state.uuid, state.version.revision)

    def _expired(self, objects: GuardedObjects, name: str, state: ObjectState) -> bool:
        """Remove a silent lock, with `expire=1`; True: what stands there is to be read again."""
        return self._expiry is not None and self._expiry.remove_if_due(objects, name, state)

    def reclaim(self, request: requests.Reclaim, objects: GuardedObjects) -> Outcome:
        holder, previous = request.holder, request.previous
        name, uuid = self._names.lock(holder.name), holder.uuid or ""
        generation = Version.from_revision(previous.fencing_token).generation
        seen = max(previous.stamp_revisions)  # a push since then wins: it is not dead
        read = objects.head
        for _ in range(MAX_ROUNDS):
            state = read(name)
            if state is None or state.uuid is None:
                return outcomes.Refused(None, 0)
            now = state.version
            if state.decision is not None:
                removal_steps.complete(objects, holder.name, state)
                continue
            if state.uuid == uuid:
                return self._found_taken(objects, state)
            same = (state.uuid, now.generation) == (previous.uuid, generation)
            if not same or seen not in (0, now.revision):
                return outcomes.Refused(state.uuid, now.revision)
            if (taken := self._upload_lock(objects, name, holder, state)) is not None:
                return outcomes.Taken(taken.version.token)
            read = partial(self._read_refused, objects)
        return outcomes.Refused(None, 0)

    # ------------------------------------------------------------ having it

    def push(self, request: requests.Push, objects: GuardedObjects) -> Outcome:
        name = self._names.lock(request.name)
        metadata: dict[str, str | None] = {
            part: format_stamp(wall)
            for part, wall in zip(STAMPS, request.stamps, strict=True)
            if wall is not None
        }
        state = objects.patch(name, metadata, Version.from_revision(request.revision))
        if state is not None:
            self._pushed(request, state)
            return outcomes.Done(state.version.revision)
        state = objects.head(name)
        if state is None or state.uuid != request.uuid or state.decision is not None:
            return self._not_holder(objects, request.name, request.uuid, state)
        self._pushed(request, state)
        done = state.metadata.get(STAMPS[0]) == metadata[STAMPS[0]]  # by an earlier sending
        return (outcomes.Done if done else outcomes.Conflict)(state.version.revision)

    @staticmethod
    def _pushed(request: requests.Push, state: ObjectState) -> None:
        """Note a later version of a held lock."""
        takes = request.delivery
        if takes is not None and takes.memory is not None and takes.memory.version < state.version:
            takes.memory = state

    def unlock(self, request: requests.Unlock, objects: GuardedObjects) -> Outcome:
        uuid, sent = request.uuid, False
        own: ObjectState | None = None if request.delivery is None else request.delivery.memory
        while True:
            if own is None:
                state = objects.head(self._names.lock(request.name))
                if state is None or state.uuid != uuid or state.decision is not None:
                    # Our own tombstone is nobody else's doing: step 2 above.
                    resent = sent and state is not None and state.tombstone_uuid == uuid
                    return self._not_holder(objects, request.name, uuid, state, resent=resent)
                own = state
            if self._delete_own(objects, request.name, uuid, own):
                return outcomes.Done(own.version.revision)
            own, sent = None, True  # somebody has written to it, or it is not there any more

    def _delete_own(self, objects: GuardedObjects, name: str, uuid: str, own: ObjectState) -> bool:
        """Delete a lock of ours, or leave a tombstone; False: it is not as it was known."""
        where = self._names.lock(name)
        if own.tombstone_expires_at > objects.client.now():
            metadata = tombstone(uuid, own.tombstone_expires_at)
            return objects.put(where, metadata, b"", own.version) is not None
        return objects.delete(where, own.version)

    def withdraw(self, request: requests.Withdraw, objects: GuardedObjects) -> Outcome:
        name, uuid = request.name, request.uuid
        where = self._names.lock(name)
        may_arrive = request.tombstone and not _was_answered(request.delivery, objects.deadline)
        expires_at = 0  # one time for all rounds, by which ours is known again
        while True:
            state = objects.head(where)
            expires_at = expires_at or round(objects.client.now() + LATE_REQUEST_S)
            if state is not None and state.decision is not None:
                removal_steps.complete(objects, name, state)
            elif state is not None and state.uuid == uuid:
                if self._delete_own(objects, name, uuid, state):
                    break
            elif state is not None and state.tombstone_uuid == uuid:
                break  # it stands already, by our own release or by a removal
            elif not may_arrive or self._leave_tombstone(objects, where, uuid, state, expires_at):
                break
        return outcomes.Done(0)

    @staticmethod
    def _leave_tombstone(
        objects: GuardedObjects, where: str, uuid: str, state: ObjectState | None, expires_at: int
    ) -> bool:
        """See to it that something stands there for a day; False: it has changed meanwhile."""
        if state is None or state.uuid is None:
            replaced = ABSENT if state is None else state.version
            return objects.put(where, tombstone(uuid), b"", replaced) is not None
        if state.tombstone_expires_at >= expires_at:
            return True  # we have, though the answer was that we may not
        return objects.patch(where, {"late_until": f"{expires_at}"}, state.version) is not None

    # ------------------------------------------------------------ reading, removing

    def read(self, request: requests.Read, objects: GuardedObjects) -> Outcome:
        where = self._names.lock(request.name)
        holder, removal = None, None
        for _ in range(MAX_ROUNDS):
            state = objects.head(where)
            if state is None or state.uuid is None:
                break
            body = objects.body(where, state.version) if state.size else b""
            if body is None:  # another one has it by now
                continue
            holder = state.holder(request.name, body)
            if state.decision is not None:  # it has nobody any more
                removal, holder = decided_removal(holder, state.decision), None
            break
        if request.uuid is not None and (removal is None or removal.holder.uuid != request.uuid):
            removal = self._read_record(objects, request.name, request.uuid)
        at_revision = 0 if state is None else state.version.revision
        return outcomes.ReadResult(
            holder, (), removal if request.uuid is not None else None, at_revision
        )

    def remove(self, request: requests.Remove, objects: GuardedObjects) -> Outcome:
        name, uuid = request.removal.holder.name, request.removal.holder.uuid or ""
        gone = removal_steps.remove(objects, request)
        if isinstance(gone, Version):
            return outcomes.Done(gone.revision)
        outcome = self._not_holder(objects, name, uuid, gone)
        # The record is that of this request: an earlier sending of it did it.
        found, record = outcome.removal, request.removal.without_token().value()
        return outcomes.Done(0) if found is not None and found.value() == record else outcome

    def _not_holder(
        self,
        objects: GuardedObjects,
        name: str,
        uuid: str,
        state: ObjectState | None,
        *,
        resent: bool = False,
    ) -> outcomes.NotHolder:
        """Return that a lock is not this uuid's any more; `resent`: by this request, perhaps."""
        resent |= objects.delivery.ambiguous
        if state is not None and state.decision is not None:
            removal = removal_steps.complete(objects, name, state)
            if state.uuid == uuid and removal is not None:
                return outcomes.NotHolder(None, removal, resent)
            state = None
        holder = None if state is None else state.uuid
        return outcomes.NotHolder(holder, self._read_record(objects, name, uuid), resent)

    def _read_record(self, objects: GuardedObjects, name: str, uuid: str) -> Removal | None:
        value = objects.body(self._names.record(name, uuid), max_bytes=MAX_RECORD)
        return None if value is None else Removal.read(name, uuid, value)


def _was_answered(takes: requests.Delivery | None, deadline: Deadline) -> bool:
    """Tell whether a take was answered whose caller has gone; wait a moment for the answer."""
    if takes is None:
        return False
    until = deadline.within(0.0, SETTLE_TIMEOUT_S)
    while not (takes.answered or takes.ambiguous or until.expired()):
        time.sleep(0.01)
    return takes.answered
