"""Watch state: which watches there are, and up to where each was notified. No I/O, no lock.

Where a watch begins. etcd takes a watch that begins at the very revision up to which it was
compacted, and tells it nothing of what was deleted there (etcd-io/etcd #18089, mended in none of
today's distributions): whoever waited for that deletion would wait in vain. A watch that begins
one revision earlier is told "compacted" instead. So every watch begins at the revision up to which
it knows everything, and what it is told again is dropped. One number is enough for that, since
all events of a revision are told at once.

How much comes at once. To a watch that begins in the past etcd tells up to a thousand revisions in
one answer, whatever was written in them: more than a gigabyte, if somebody means it. With
`fragment` it cuts that into answers of about one request's size. A cut may go through a revision:
what there is of the last one is held back until the rest has come, and where that is more than
`MAX_HELD_BYTES` bytes (a deletion of very many keys), the watch ends as after a compaction, and
whoever has it looks for himself.

That has a price: a watch that begins in the past is served from a list that etcd looks through
every 100 ms. So a new one is tried at its next revision first. If etcd's answer says that this is
in the future still, nothing can have been compacted there, and all that comes is told at once; else
it is begun once more, one revision earlier.

Rights. etcd checks each new watch by the token with which its stream was opened. A stale token
refuses new watches on a stream that goes on serving those before, and 3.5.1 and its likes give the
reason "permission denied" for that as well. So a refusal is believed on a fresh stream only: an
older one is to be opened again, with a new token.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lockclient.stores.etcd.wire import messages_pb2 as wire

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Bytes of one revision's events that are waited for."""
FRESH_TOKEN_S = 1.0
"""Seconds for which a stream's token is beyond doubt."""
REFUSAL_BELIEVED_S = 10.0
"""Seconds for which other refusals are believed on an older stream, too, after one on a fresh one:
a watch without the right must not have the stream opened again with each try."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The watch has ended, look for yourself: events may be lost for good (compaction).

    With `refused`, a reason, etcd does not let this user watch.
    """

    refused: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """A watch has begun: it misses nothing that comes after this revision.

    Told once where the watch has no revision of its own, and to whoever wants to know each time
    that it begins, on whichever stream.
    """

    revision: int


Events = list[wire.WatchEvent]
News = Events | Missed | Started
Notify = Callable[[News], None]


class StaleToken(Exception):
    """A new token is needed: open the stream again. The reason is the text."""


class Wanted:
    """One watch that is wanted, on a key (range end empty) or a range.

    `known` is the revision up to which it was told everything, or was not interested; None: it is
    to begin now, and has not yet.
    """

    def __init__(
        self,
        span: tuple[bytes, bytes],
        revision: int,
        notify: Notify,
        *,
        deletes_only: bool = False,
        tell_start: bool = False,
    ) -> None:
        self.span = span
        self.tell_start = tell_start or not revision
        self.tell_starts = tell_start
        self.known = revision - 1 if revision else None
        self.notify = notify
        self.number = 0
        self.ahead = False
        """Whether it was tried at a revision that may be in the future."""
        self.held: Events = []
        """What has come of a revision that is not complete yet."""
        self._filters = [wire.WatchCreate.NOPUT] if deletes_only else []

    def request(self, number: int, *, ahead: bool) -> wire.WatchRequest:
        """Return what begins it, under this number, where it stands or one revision `ahead`."""
        self.number, self.ahead, self.held = number, ahead, []
        # Revision 1 is that of an empty etcd: nothing ever happened there. 0 would mean "now".
        start = 0 if self.known is None else max(self.known + ahead, 1)
        return wire.WatchRequest(
            create=wire.WatchCreate(
                key=self.span[0],
                range_end=self.span[1],
                start_revision=start,
                watch_id=number,
                filters=self._filters,
                fragment=True,
            )
        )

    def complete(self, events: Events, *, more: bool) -> Events:
        """Return the events of whole revisions; with `more` the last one's may go on."""
        events = self.held + events
        last = events[-1].kv.mod_revision if more and events else math.inf
        cut = bisect_left(events, last, key=lambda event: event.kv.mod_revision)
        self.held = events[cut:]
        return events[:cut]


Answered = tuple[list[wire.WatchRequest], Wanted | None, News | None]
"""What to send after an answer, and which watch is to be told what, if any is."""


class Watches:
    """All watches of one stream. Each request that a method returns is to be sent, in order."""

    def __init__(self) -> None:
        self._by_number: dict[int, Wanted] = {}
        self._unanswered: deque[int] = deque()
        self._last_number = 0
        self._opened_at = -math.inf
        self._believed_until = -math.inf

    def add(self, watch: Wanted) -> wire.WatchRequest:
        """Begin a watch."""
        return self._begin(watch, ahead=True)

    def remove(self, watch: Wanted) -> list[wire.WatchRequest]:
        """End a watch; one that has ended already is left at that."""
        if self._by_number.pop(watch.number, None) is None:
            return []
        return [wire.WatchRequest(cancel=wire.WatchCancel(watch_id=watch.number))]

    def empty(self) -> bool:
        """Tell whether there is no watch."""
        return not self._by_number

    def clear(self) -> None:
        """Forget all watches."""
        self._by_number.clear()

    def opened(self, now: float) -> list[wire.WatchRequest]:
        """Begin all watches, on a new stream; `now` is monotonic."""
        self._opened_at = now
        self._unanswered.clear()
        watches = list(self._by_number.values())
        self._by_number.clear()
        return [self._begin(watch, ahead=False) for watch in watches]

    def answered(self, answer: wire.WatchAnswer, now: float) -> Answered:
        """Return what to send after an answer, and which watch is to be told what.

        Raises:
            StaleToken: see there.
        """
        number = answer.watch_id
        if answer.created and self._unanswered:
            # In the order of the requests; not every etcd says which one it is that it refuses.
            number = self._unanswered.popleft()
        watch = self._by_number.get(number)
        if watch is None:  # closed in the meantime
            return [], None, None
        if answer.canceled:
            if not answer.compact_revision:  # a compaction gives no reason
                self._refused(_reason(answer), now)
            del self._by_number[number]
            return [], watch, Missed("" if answer.compact_revision else _reason(answer))
        if answer.created:
            return self._created(watch, answer.header.revision)
        known = watch.known or 0
        events = [event for event in answer.events if event.kv.mod_revision > known]
        if watch.held or answer.fragment:
            events = watch.complete(events, more=answer.fragment)
            if sum(event.ByteSize() for event in watch.held) > MAX_HELD_BYTES:
                return self.remove(watch), watch, Missed()
        if not events:
            return [], None, None
        watch.known = events[-1].kv.mod_revision
        return [], watch, events

    def _created(self, watch: Wanted, revision: int) -> Answered:
        if watch.known is None:
            watch.known = revision
        if watch.ahead and revision > watch.known:
            return [*self.remove(watch), self._begin(watch, ahead=False)], None, None
        if not watch.ahead and revision < watch.known:
            # A member that is late, or an etcd that was put back from a backup: what was told does
            # not hold there. Not asked of a new watch, so that this is no endless loop.
            return self.remove(watch), watch, Missed()
        told, watch.tell_start = not watch.tell_start, watch.tell_starts
        return [], watch, None if told else Started(watch.known)

    def _begin(self, watch: Wanted, *, ahead: bool) -> wire.WatchRequest:
        # A number of its own each time: answers to an earlier one may be on their way.
        self._last_number += 1
        self._by_number[self._last_number] = watch
        self._unanswered.append(self._last_number)
        return watch.request(self._last_number, ahead=ahead)

    def _refused(self, why: str, now: float) -> None:
        """Believe a refusal, or else raise `StaleToken`; the watch is begun again with the rest."""
        if now - self._opened_at < FRESH_TOKEN_S:
            self._believed_until = now + REFUSAL_BELIEVED_S
        elif now >= self._believed_until:
            raise StaleToken(why)


def _reason(answer: wire.WatchAnswer) -> str:
    """Return why a watch was refused, without gRPC's internals."""
    return answer.cancel_reason.rpartition("etcdserver: ")[2] or "no reason given"
