"""Mutex requests on one bucket: the step of each request, and why they are safe in any order.

Each write names the state that it changes: the generation, which is one acquisition's for ever,
and where it matters the metageneration, which is one write's of it. Metagenerations alone are
those of any object: they begin at 1 again with each, so that a holder that was taken over, and goes
by them, refreshes or deletes its successor's lock.

| step | request | only if |
| take | upload | nothing stands there; over a tombstone: that very one stands there |
| push | patch of the two stamps | own generation, and the metageneration of the own last write |
| release | delete, or a tombstone uploaded over it | the same |
| reclaim | upload over it | generation and metageneration as seen |
| removal | patch that decides it, record, tombstone over it | as seen; then the decision's |
(With `expire=1` a taker does the last one, too: `expiry`.)

**1. Answers that never came.** An upload that is refused reads what stands there: the own uuid
means that it was had. A refused push reads it, too: the same generation is ours still, whatever the
metageneration, unless its removal is decided; with the stamps that were sent an earlier sending did
it. A release that finds nothing, on its second try, was done by its first.

**2. Requests that are repeated on the way.** A front end that lost its connection to the next one
may send a request there twice, and tell the second answer alone: a refusal, of what the first time
has done. (HTTP lets it do so with a deletion; some do so with all.) So a refusal is read in the
same way where nothing of ours was sent twice: a take finds its uuid, a push its stamps, a removal
its decision, a withdrawal its tombstone or its `late_until`, and a record that stands is the
record. A release that was refused and finds its own tombstone, and no record, was done. One that
finds nothing at all may have been, or somebody has deleted the object by hand, and another one may
have had the lock since: that is called a loss, for a word too many harms nobody.

**3. Requests that come late.** Whatever names a generation does nothing once that is gone, for
ever. What is left is the upload that asks for *nothing*: a create that was sent, never answered and
given up, or sent twice and released, would take the lock for nobody. So nobody who is unsure leaves
the name empty: in place of its lock, or where there is nothing, stands its **tombstone**, and while
anything stands there a late create is refused. A tombstone is as good as free: the next taker
uploads over it, at its generation. What must stand goes on from hand to hand: `late_until`, in the
bucket's own time, is copied by who takes over a tombstone, and who releases before that leaves a
tombstone again and deletes nothing. Who withdraws while somebody else has the lock writes it onto
that one's lock; that moves its metageneration, so that a release, which names it, can't overlook
it. Who takes the lock by a create that was sent again says so on the lock: the second sending has
`late_until`, and where it was the first that did it the push that follows writes it. So nobody has
to remember it: whoever releases the lock, another process, or one that took over from a dead one.
That ends after a day (`keys.LATE_REQUEST_S`). It can't be for ever, as a bucket compares nothing
but the object itself; but a request is authorised as it arrives, and its access token is too old by
then.

A *take over a tombstone* that comes late names that very one: who withdraws uploads another in its
place.

**4. Takes that were answered.** Nobody is unsure of what was answered, even if its caller did not
stay to hear it (a task that was cancelled, a thread that was interrupted): the thread that asked
goes on to the end of its try, and who withdraws waits a moment for it (`OwnTakes.is_answered`).
Then there is nothing late, and no tombstone.

**5. Not covered** are a process that is killed between the create that it sends and the end of its
take, with the request on its way, and a front end that sends a create on once more after it has
answered it (of a POST HTTP forbids that), and after the release: the lock stands then for a holder
that is dead, as if it had been killed a moment later, until its auto-unlock.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from lockclient.model.clocks import Deadline, format_stamp
from lockclient.model.holder import STAMPS, Holder
from lockclient.model.removal import MAX_RECORD, Removal
from lockclient.stores import outcomes, requests
from lockclient.stores.common.dispatch import dispatch
from lockclient.stores.gcs import removal_steps
from lockclient.stores.gcs.expiry import Expiry
from lockclient.stores.gcs.guarded_objects import ABSENT, GuardedObjects
from lockclient.stores.gcs.keys import (
    COUNTED_FROM_UPLOAD,
    LATE_REQUEST_S,
    ObjectNames,
    ObjectState,
    Version,
    decided_removal,
    lock_content,
    tombstone,
)
from lockclient.stores.gcs.own_takes import OwnObject, OwnTakes
from lockclient.stores.gcs.wire.http_client import HttpClient
from lockclient.stores.outcomes import Outcome

MAX_ROUNDS: Final = 5
"""How often it is begun anew because the lock changed hands in the middle; then somebody has it."""


class GcsRequestExecutor:
    """Does the requests of all acquisitions on one bucket.

    It remembers of each lock that it took what its release will name, so that a release is one
    request; without that it looks.

    Args:
        client: of the bucket.
        expiry: removes silent locks that are wanted; None: that is an unlocker's to do.
    """

    def __init__(self, client: HttpClient, expiry: Expiry | None = None) -> None:
        self._client = client
        self._expiry = expiry
        self._names = ObjectNames(client.location.root)
        self._own = OwnTakes()

    def do(self, sending: requests.RequestState, deadline: Deadline) -> Outcome:
        """Do a request. Errors: see `HttpClient.ask`."""
        request, objects = (
            sending.request,
            GuardedObjects(self._client, self._names, sending, deadline),
        )
        tracked: AbstractContextManager[None] = nullcontext()
        if isinstance(request, requests.Take | requests.Reclaim):
            tracked = self._own.track(request.holder.uuid or "", sending)
        with tracked:
            outcome: Outcome = dispatch(self, request, objects)
        return outcome

    # ------------------------------------------------------------ getting it

    def take(self, request: requests.Take, objects: GuardedObjects) -> Outcome:
        holder = request.holder
        name, uuid = self._names.lock(holder.name), holder.uuid or ""
        replaced: ObjectState | None = None
        for _ in range(MAX_ROUNDS):
            if (version := self._upload_lock(objects, name, holder, replaced)) is not None:
                return outcomes.Taken(version.token, late_safe=True)
            replaced, state = None, objects.head(name)
            if state is None:
                continue  # it was just let go of
            if state.decision is not None:
                removal_steps.complete(objects, holder.name, state)
                if state.uuid == uuid:
                    return outcomes.Refused(None, state.version.revision, uuid_spent=True)
            elif state.uuid == uuid:
                return self._taken_earlier(uuid, state)
            elif state.uuid is not None:
                if not self._expired(objects, holder.name, state):
                    return outcomes.Refused(state.uuid, state.version.revision)
            elif self._is_uuid_spent(objects, holder.name, uuid, state):
                return outcomes.Refused(None, state.version.revision, uuid_spent=True)
            else:
                replaced = state
        return outcomes.Refused(None, 0)

    def _upload_lock(
        self, objects: GuardedObjects, name: str, holder: Holder, replaced: ObjectState | None
    ) -> Version | None:
        metadata, body = lock_content(holder)
        uuid = holder.uuid or ""
        expires_at = 0.0 if replaced is None else replaced.tombstone_expires_at
        if expires_at > objects.client.now():
            metadata["late_until"] = f"{expires_at:.0f}"
        ambiguous = {**metadata, "late_until": COUNTED_FROM_UPLOAD}  # step 3 above
        if objects.sending.ambiguous or uuid in self._own.ambiguous:  # of a create
            metadata = ambiguous
        if replaced is None:
            version = objects.put(name, metadata, body, resend_metadata=ambiguous)
            if objects.sending.ambiguous:
                metadata = ambiguous
        else:  # an upload that names what it replaces does nothing, late
            version = objects.put(name, metadata, body, replaced.version)
        if version is not None:
            if metadata is ambiguous:
                expires_at = objects.client.now() + LATE_REQUEST_S
            self._own.held[uuid] = OwnObject(version, expires_at)
            objects.sending.ambiguous = False
            self._own.ambiguous.pop(uuid, None)
        return version

    def _taken_earlier(self, uuid: str, state: ObjectState) -> outcomes.Taken:
        """An earlier sending did it, one of perhaps many: the push that follows says so."""
        self._own.held[uuid] = OwnObject.of(state)
        return outcomes.Taken(state.version.token, by_earlier_send=True, late_safe=True)

    def _is_uuid_spent(
        self, objects: GuardedObjects, name: str, uuid: str, state: ObjectState
    ) -> bool:
        """Tell whether this uuid had the lock and lost it, or was withdrawn."""
        if state.tombstone_uuid == uuid:
            return True
        # Others may have had it since. Only who was not answered can have had it unawares.
        ambiguous = objects.sending.ambiguous or uuid in self._own.ambiguous
        return ambiguous and self._read_record(objects, name, uuid) is not None

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
        for _ in range(MAX_ROUNDS):
            state = objects.head(name)
            if state is None or state.uuid is None:
                return outcomes.Refused(None, 0)
            now = state.version
            if state.decision is not None:
                removal_steps.complete(objects, holder.name, state)
                continue
            if state.uuid == uuid:
                return self._taken_earlier(uuid, state)
            same = (state.uuid, now.generation) == (previous.uuid, generation)
            if not same or seen not in (0, now.revision):
                return outcomes.Refused(state.uuid, now.revision)
            if (version := self._upload_lock(objects, name, holder, state)) is not None:
                return outcomes.Taken(version.token, late_safe=True)
        return outcomes.Refused(None, 0)

    # ------------------------------------------------------------ having it

    def push(self, request: requests.Push, objects: GuardedObjects) -> Outcome:
        name = self._names.lock(request.name)
        metadata: dict[str, str | None] = {
            part: format_stamp(wall)
            for part, wall in zip(STAMPS, request.stamps, strict=True)
            if wall is not None
        }
        expires_at = 0.0
        if request.uuid in self._own.ambiguous:
            expires_at = objects.client.now() + LATE_REQUEST_S
            metadata["late_until"] = f"{expires_at:.0f}"
        version = objects.patch(name, metadata, Version.from_revision(request.revision))
        if version is not None:
            self._own.update(request.uuid, version, expires_at)
            self._own.ambiguous.pop(request.uuid, None)
            return outcomes.Done(version.revision)
        state = objects.head(name)
        if state is None or state.uuid != request.uuid or state.decision is not None:
            return self._not_holder(objects, request.name, request.uuid, state)
        self._own.update(request.uuid, state.version, state.tombstone_expires_at)
        done = state.metadata.get(STAMPS[0]) == metadata[STAMPS[0]]  # by an earlier sending
        if done:
            self._own.ambiguous.pop(request.uuid, None)
        return (outcomes.Done if done else outcomes.Conflict)(state.version.revision)

    def unlock(self, request: requests.Unlock, objects: GuardedObjects) -> Outcome:
        uuid, own, sent = request.uuid, self._own.held.get(request.uuid), False
        while True:
            if own is None:
                state = objects.head(self._names.lock(request.name))
                if state is None or state.uuid != uuid or state.decision is not None:
                    self._own.forget(uuid)
                    # Our own tombstone is nobody else's doing: step 2 above.
                    resent = sent and state is not None and state.tombstone_uuid == uuid
                    return self._not_holder(objects, request.name, uuid, state, resent=resent)
                own = OwnObject.of(state)
            if self._delete_own(objects, request.name, uuid, own):
                self._own.forget(uuid)
                return outcomes.Done(own.version.revision)
            own, sent = None, True  # somebody has written to it, or it is not there any more

    def _delete_own(self, objects: GuardedObjects, name: str, uuid: str, own: OwnObject) -> bool:
        """Delete a lock of ours, or leave a tombstone; False: it is not as it was known."""
        where = self._names.lock(name)
        ambiguous = uuid in self._own.ambiguous
        if ambiguous or own.tombstone_expires_at > objects.client.now():
            metadata = tombstone(uuid, None if ambiguous else own.tombstone_expires_at)
            return objects.put(where, metadata, b"", own.version) is not None
        return objects.delete(where, own.version)

    def withdraw(self, request: requests.Withdraw, objects: GuardedObjects) -> Outcome:
        name, uuid = request.name, request.uuid
        where = self._names.lock(name)
        if request.tombstone and not self._own.is_answered(uuid, objects.deadline):
            self._own.ambiguous[uuid] = None
        expires_at = 0  # one time for all rounds, by which ours is known again
        while True:
            state = objects.head(where)
            expires_at = expires_at or round(objects.client.now() + LATE_REQUEST_S)
            if state is not None and state.decision is not None:
                removal_steps.complete(objects, name, state)
            elif state is not None and state.uuid == uuid:
                if self._delete_own(objects, name, uuid, OwnObject.of(state)):
                    break
            elif state is not None and state.tombstone_uuid == uuid:
                break  # it stands already, by our own release or by a removal
            elif uuid not in self._own.ambiguous or self._leave_tombstone(
                objects, where, uuid, state, expires_at
            ):
                break
        self._own.forget(uuid)
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
        resent |= objects.sending.ambiguous
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
