"""What a mutex asks, as requests to the bucket; and why they are safe, however they are ordered.

Each write names the state that it changes: the generation, which is one acquisition's for ever,
and where it matters the metageneration, which is one write's of it. Metagenerations alone are
those of any object: they begin at 1 again with each, so that a holder that was taken over, and goes
by them, refreshes or deletes its successor's lock.

| step | request | only if |
| take | upload | nothing stands there; over a trace: that very trace stands there |
| push | patch of the two stamps | own generation, and the metageneration of the own last write |
| release | delete, or a trace uploaded over it | the same |
| reclaim | upload over it | generation and metageneration as seen |
| removal | patch that decides it, record, trace uploaded over it | as seen; then the decision's |

**Answers that never came.** An upload that is refused reads what stands there: the own uuid means
that it was had. A refused push reads it, too: the same generation is ours still, whatever the
metageneration, unless its removal is decided; with the stamps that were sent an earlier sending did
it. A release that finds nothing, on its second try, was done by its first.

**Requests that are repeated on the way.** A front end that lost its connection to the next one may
send a request there twice, and tell the second answer alone: a refusal, of what the first time has
done. (HTTP lets it do so with a deletion; some do so with all.) So a refusal is read in the same
way where nothing of ours was sent twice: a take finds its uuid, a push its stamps, a removal its
decision, a withdrawal its trace or its `late_until`, and a record that stands is the record. A
release that was refused and finds its own trace, and no record, was done. One that finds nothing at
all may have been, or somebody has deleted the object by hand, and another one may have had the lock
since: that is called a loss, for a word too many harms nobody.

**Requests that come late.** Whatever names a generation does nothing once that is gone, for ever.
What is left is the upload that asks for *nothing*: a create that was sent, never answered and given
up, or sent twice and released, would take the lock for nobody. So nobody who is unsure leaves the
name empty: in place of its lock, or where there is nothing, stands its **trace**, and while
anything stands there a late create is refused. A trace is as good as free: the next taker uploads
over it, at its generation. What must stand goes on from hand to hand: `late_until`, in the bucket's
own time, is copied by who takes over a trace, and who releases before that leaves a trace again and
deletes nothing. Who withdraws while somebody else has the lock writes it onto that one's lock; that
moves its metageneration, so that a release, which names it, can't overlook it.
Who takes the lock by a create that was sent again says so on the lock: the second sending has
`late_until`, and where it was the first that did it the push that follows writes it. So nobody has
to remember it: whoever releases the lock, another process, or one that took over from a dead one.
That ends after a day (`objects.LATE`). It can't be for ever, as a bucket compares nothing but the
object itself; but a request is authorised as it arrives, and its access token is too old by then.

A *take over a trace* that comes late names that trace: who withdraws uploads another in its place.

Nobody is unsure of what was answered, even if its caller did not stay to hear it (a task that was
cancelled, a thread that was interrupted): the thread that asked goes on to the end of its try, and
who withdraws waits a moment for it (`_is_settled`). Then there is nothing late, and no trace.

Not covered are a process that is killed between the create that it sends and the end of its take,
with the request on its way, and a front end that sends a create on once more after it has answered
it (of a POST HTTP forbids that), and after the release: the lock stands then for a holder that is
dead, as if it had been killed a moment later, until its auto-unlock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, format_stamp
from lockclient.model.holder import STAMPS, Holder
from lockclient.model.removal import MAX_RECORD, Removal
from lockclient.stores.gcs.guarded_objects import NOTHING, GuardedObjects
from lockclient.stores.gcs.keys import A_DAY, LATE, Names, ObjectState, Version, trace, written
from lockclient.stores.gcs.removal import RemovalSteps
from lockclient.stores.gcs.wire.http_client import HttpClient
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Outcome,
    Position,
    ReadResult,
    Refused,
    Taken,
)
from lockclient.stores.requests import (
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    RequestState,
    Take,
    Unlock,
    Withdraw,
)

SETTLING: Final = 0.5
"""Seconds that who withdraws waits for a take that is under way: less than the end of a program
leaves for it, so that a trace is left in time where it is not answered."""
_REMEMBERED: Final = 1000
"""Takes that were answered, of which the last are known: who withdraws does so in a moment."""
ROUNDS: Final = 5
"""How often it is begun anew because the lock changed hands in the middle; then somebody has it."""


class Own(NamedTuple):
    """What is known of a lock that this process holds: what a release must name, and must leave."""

    version: Version
    late_until: float


class RequestExecutor:
    """Does the requests of all acquisitions on one bucket.

    It remembers of each lock that it took what its release will name, so that a release is one
    request; without that it looks.
    """

    def __init__(self, calls: HttpClient) -> None:
        self._calls = calls
        self._names = Names(calls.place.root)
        self._removing = RemovalSteps(self._names)
        self._own: dict[str, Own] = {}
        self._unsure: dict[str, None] = {}  # uuids of which a create may still arrive
        self._under_way: set[str] = set()  # those of takes that a thread is at
        self._answered: dict[str, None] = {}  # those whose last take was answered
        self._noting = threading.Lock()

    def do(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do a request. Errors: see `HttpClient.ask`."""
        request = sending.request
        step = _STEPS.get(type(request))
        if step is None:
            raise AssertionError(f"a store without a line was asked {request}")
        asking = GuardedObjects(self._calls, sending, deadline)
        if not isinstance(request, Take | Reclaim):
            return step(self, request, asking)
        with self._taking(request.holder.uuid or "", sending):
            return step(self, request, asking)

    @contextmanager
    def _taking(self, uuid: str, sending: RequestState) -> Iterator[None]:
        """Take note of what is known afterwards of a take."""
        self._answered.pop(uuid, None)  # of an earlier one
        self._under_way.add(uuid)
        answered = False
        try:
            yield
            answered = not sending.ambiguous
        except ClusterMutexError:
            answered = not (sending.ambiguous or sending.in_flight)
            raise
        finally:
            # First what is known, then that it is over: who waits for that looks then.
            if sending.ambiguous:
                self._unsure[uuid] = None
            if sending.abandoned:  # whoever withdraws looks for itself
                self._own.pop(uuid, None)
            if answered:
                with self._noting:
                    self._answered[uuid] = None
                    if len(self._answered) > _REMEMBERED:
                        del self._answered[next(iter(self._answered))]
            self._under_way.discard(uuid)

    def _is_settled(self, uuid: str, deadline: Deadline) -> bool:
        """Tell whether all that this process has sent to take a lock by that uuid was answered."""
        until = Deadline(min(deadline, Deadline.after(SETTLING)))
        while uuid in self._under_way and not until.expired():
            time.sleep(0.01)
        known = uuid in self._answered and uuid not in self._under_way
        return known and uuid not in self._unsure

    # ------------------------------------------------------------ getting it

    def _take(self, request: Take, at: GuardedObjects) -> Outcome:
        holder = request.holder
        name, uuid = self._names.lock(holder.name), holder.uuid or ""
        over: ObjectState | None = None
        for _ in range(ROUNDS):
            if (version := self._put_lock(at, name, holder, over)) is not None:
                return Taken(version.token, late_safe=True)
            over, there = None, at.stands(name)
            if there is None:
                continue  # it was just let go of
            if there.decision is not None:
                self._removing.complete(at, holder.name, there)
                if there.uuid == uuid:
                    return Refused(None, there.version.revision, uuid_spent=True)
            elif there.uuid == uuid:
                return self._had(uuid, there)
            elif there.uuid is not None:
                return Refused(there.uuid, there.version.revision)
            elif self._is_used_up(at, holder.name, uuid, there):
                return Refused(None, there.version.revision, uuid_spent=True)
            else:
                over = there
        return Refused(None, 0)

    def _put_lock(
        self, at: GuardedObjects, name: str, holder: Holder, over: ObjectState | None
    ) -> Version | None:
        metadata, body = written(holder)
        uuid, late_until = holder.uuid or "", over.late_until if over is not None else 0.0
        if late_until > at.calls.now():
            metadata["late_until"] = f"{late_until:.0f}"
        unsure = {**metadata, "late_until": A_DAY}
        if at.sending.ambiguous or uuid in self._unsure:  # of a create
            metadata = unsure
        if over is None:
            version = at.put(name, metadata, body, again=unsure)
            if at.sending.ambiguous:
                metadata = unsure
        else:  # an upload that names what it is over does nothing, late
            version = at.put(name, metadata, body, over.version)
        if version is not None:
            if metadata is unsure:
                late_until = at.calls.now() + LATE
            self._own[uuid] = Own(version, late_until)
            at.sending.ambiguous = False
            self._unsure.pop(uuid, None)
        return version

    def _had(self, uuid: str, there: ObjectState) -> Taken:
        """An earlier sending did it, one of perhaps many: the push that follows says so."""
        self._own[uuid] = Own(there.version, there.late_until)
        return Taken(there.version.token, by_earlier_send=True, late_safe=True)

    def _is_used_up(self, at: GuardedObjects, name: str, uuid: str, there: ObjectState) -> bool:
        """Tell whether this uuid had the lock and lost it, or was withdrawn."""
        if there.gone == uuid:
            return True
        # Others may have had it since. Only who was not answered can have had it unawares.
        unsure = at.sending.ambiguous or uuid in self._unsure
        return unsure and self._record(at, name, uuid) is not None

    def _look(self, request: GetPosition, at: GuardedObjects) -> Outcome:
        there = at.stands(self._names.lock(request.name))
        if there is None or there.decision is not None:
            return Position(False, None, None, 0)
        return Position(False, None, there.uuid, there.version.revision)

    def _reclaim(self, request: Reclaim, at: GuardedObjects) -> Outcome:
        holder, previous = request.holder, request.previous
        name, uuid = self._names.lock(holder.name), holder.uuid or ""
        generation = Version.of(previous.fencing_token).generation
        seen = max(previous.stamp_revisions)  # a push since then wins: it is not dead
        for _ in range(ROUNDS):
            there = at.stands(name)
            if there is None or there.uuid is None:
                return Refused(None, 0)
            now = there.version
            if there.decision is not None:
                self._removing.complete(at, holder.name, there)
                continue
            if there.uuid == uuid:
                return self._had(uuid, there)
            same = (there.uuid, now.generation) == (previous.uuid, generation)
            if not same or seen not in (0, now.revision):
                return Refused(there.uuid, now.revision)
            if (version := self._put_lock(at, name, holder, there)) is not None:
                return Taken(version.token, late_safe=True)
        return Refused(None, 0)

    # ------------------------------------------------------------ having it

    def _push(self, request: Push, at: GuardedObjects) -> Outcome:
        name = self._names.lock(request.name)
        said: dict[str, str | None] = {
            part: format_stamp(wall)
            for part, wall in zip(STAMPS, request.stamps, strict=True)
            if wall is not None
        }
        late_until = 0.0
        if request.uuid in self._unsure:
            late_until = at.calls.now() + LATE
            said["late_until"] = f"{late_until:.0f}"
        version = at.patch(name, said, Version.of(request.revision))
        if version is not None:
            self._note(request.uuid, version, late_until)
            self._unsure.pop(request.uuid, None)
            return Done(version.revision)
        there = at.stands(name)
        if there is None or there.uuid != request.uuid or there.decision is not None:
            return self._gone(at, request.name, request.uuid, there)
        self._note(request.uuid, there.version, there.late_until)
        done = there.metadata.get(STAMPS[0]) == said[STAMPS[0]]  # by an earlier sending
        if done:
            self._unsure.pop(request.uuid, None)
        return (Done if done else Conflict)(there.version.revision)

    def _note(self, uuid: str, version: Version, late_until: float = 0.0) -> None:
        own = self._own.get(uuid)
        if own is not None:
            self._own[uuid] = Own(max(own.version, version), max(own.late_until, late_until))

    def _unlock(self, request: Unlock, at: GuardedObjects) -> Outcome:
        uuid, own, sent = request.uuid, self._own.get(request.uuid), False
        while True:
            if own is None:
                there = at.stands(self._names.lock(request.name))
                if there is None or there.uuid != uuid or there.decision is not None:
                    self._forget(uuid)
                    left = there is not None and there.gone == uuid  # our own trace: nobody else's
                    return self._gone(at, request.name, uuid, there, resent=sent and left)
                own = Own(there.version, there.late_until)
            if self._end(at, request.name, uuid, own):
                self._forget(uuid)
                return Done(own.version.revision)
            own, sent = None, True  # somebody has written to it, or it is not there any more

    def _end(self, at: GuardedObjects, name: str, uuid: str, own: Own) -> bool:
        """End a lock of ours; False: it is not as it was known."""
        where = self._names.lock(name)
        unsure = uuid in self._unsure
        if unsure or own.late_until > at.calls.now():
            left = trace(uuid, None if unsure else own.late_until)
            return at.put(where, left, b"", own.version) is not None
        return at.delete(where, own.version)

    def _forget(self, uuid: str) -> None:
        self._own.pop(uuid, None)
        self._unsure.pop(uuid, None)
        with self._noting:
            self._answered.pop(uuid, None)

    def _withdraw(self, request: Withdraw, at: GuardedObjects) -> Outcome:
        name, uuid = request.name, request.uuid
        where = self._names.lock(name)
        if request.tombstone and not self._is_settled(uuid, at.deadline):
            self._unsure[uuid] = None
        until = 0
        while True:
            there = at.stands(where)
            until = until or round(at.calls.now() + LATE)  # one time: it is known again
            if there is not None and there.decision is not None:
                self._removing.complete(at, name, there)
            elif there is not None and there.uuid == uuid:
                if self._end(at, name, uuid, Own(there.version, there.late_until)):
                    break
            elif there is not None and there.gone == uuid:
                break  # it stands already, by our own release or by a removal
            elif uuid not in self._unsure or self._leave_trace(at, where, uuid, there, until):
                break
        self._forget(uuid)
        return Done(0)

    @staticmethod
    def _leave_trace(
        at: GuardedObjects, where: str, uuid: str, there: ObjectState | None, until: int
    ) -> bool:
        """See to it that something stands there for a day; False: it has changed meanwhile."""
        if there is None or there.uuid is None:
            over = NOTHING if there is None else there.version
            return at.put(where, trace(uuid), b"", over) is not None
        if there.late_until >= until:  # we have, though the answer was that we may not
            return True
        return at.patch(where, {"late_until": f"{until}"}, there.version) is not None

    # ------------------------------------------------------------ reading, removing

    def _read(self, request: Read, at: GuardedObjects) -> Outcome:
        where = self._names.lock(request.name)
        holder, removal = None, None
        for _ in range(ROUNDS):
            there = at.stands(where)
            if there is None or there.uuid is None:
                break
            body = at.body(where, there.version) if there.size else b""
            if body is None:  # another one has it by now
                continue
            holder = there.holder(request.name, body)
            if there.decision is not None:  # it has nobody any more
                removal, holder = self._removing.told(there, holder), None
            break
        if request.uuid is not None and (removal is None or removal.holder.uuid != request.uuid):
            removal = self._record(at, request.name, request.uuid)
        at_revision = 0 if there is None else there.version.revision
        return ReadResult(holder, (), removal if request.uuid is not None else None, at_revision)

    def _remove(self, request: Remove, at: GuardedObjects) -> Outcome:
        name, uuid = request.removal.holder.name, request.removal.holder.uuid or ""
        gone = self._removing.remove(at, request)
        if isinstance(gone, Version):
            return Done(gone.revision)
        outcome = self._gone(at, name, uuid, gone)
        ours = outcome.removal is not None and self._removing.is_same(outcome.removal, request)
        return Done(0) if ours else outcome

    def _gone(
        self,
        at: GuardedObjects,
        name: str,
        uuid: str,
        there: ObjectState | None,
        *,
        resent: bool = False,
    ) -> NotHolder:
        """Return that a lock is not this uuid's any more; `resent`: by this request, perhaps."""
        resent |= at.sending.ambiguous
        if there is not None and there.decision is not None:
            removal = self._removing.complete(at, name, there)
            if there.uuid == uuid and removal is not None:
                return NotHolder(None, removal, resent)
            there = None
        holder = None if there is None else there.uuid
        return NotHolder(holder, self._record(at, name, uuid), resent)

    def _record(self, at: GuardedObjects, name: str, uuid: str) -> Removal | None:
        value = at.body(self._names.record(name, uuid), cut=MAX_RECORD)
        return None if value is None else Removal.read(name, uuid, value)


_STEPS: Final[dict[type[Request], Callable[[RequestExecutor, Any, GuardedObjects], Outcome]]] = {
    Take: RequestExecutor._take,
    GetPosition: RequestExecutor._look,
    Reclaim: RequestExecutor._reclaim,
    Push: RequestExecutor._push,
    Unlock: RequestExecutor._unlock,
    Withdraw: RequestExecutor._withdraw,
    Read: RequestExecutor._read,
    Remove: RequestExecutor._remove,
}
