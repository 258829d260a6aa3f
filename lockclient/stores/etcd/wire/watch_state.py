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

import itertools
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from lockclient.stores.etcd.wire import messages_pb2 as wire

SILENCE_S = 1.0
"""Seconds without an answer after which a stream is to prove that it lives, and that it has for
that: two such times, and another member, are less than the 3 s that are promised."""
MIN_PAUSE_S = 0.001
"""Seconds from one check of a silent stream to the next at least."""

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


class Watch:
    """One watch, on a key (range end empty) or a range.

    `known` is the revision up to which it was told everything, or was not interested; None: it is
    to begin now, and has not yet.
    """

    def __init__(
        self,
        span: tuple[bytes, bytes],
        revision: int,
        notify: Notify,
        close: Callable[[Watch], None],
        *,
        deletes_only: bool = False,
        tell_start: bool = False,
    ) -> None:
        self.span = span
        self.tell_start = tell_start or not revision
        self.tell_starts = tell_start
        self.known = revision - 1 if revision else None
        self.notify = notify
        self.closed = False
        self.begun_on: OpenStream | None = None
        """The latest stream on which it was begun."""
        self.number = 0
        self.ahead = False
        """Whether it was tried at a revision that may be in the future."""
        self.held: Events = []
        """What has come of a revision that is not complete yet."""
        self._close = close
        self._filters = [wire.WatchCreate.NOPUT] if deletes_only else []

    def close(self) -> None:
        """End it; nothing is notified any more, except what is on its way."""
        self._close(self)

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


Requests = Sequence[wire.WatchRequest]


class OpenStream:
    """The requests and answers of one stream, without a lock.

    Three kinds of threads use it. gRPC's thread takes the requests from `requests`: it alone
    numbers watches. The reader of the stream calls `answered`. Any thread may call the others, also
    in a signal handler or a finalizer: `begin` and `end` put one entry into a queue.

    Args:
        wanted: all watches that are wanted; the caller adds and removes them.
        key: a key that nobody writes, on which `check` watches.
        now: monotonic, as elsewhere.
        believed_until: of the stream before.
    """

    def __init__(
        self,
        wanted: dict[Watch, None],
        key: bytes,
        now: float,
        believed_until: float = -math.inf,
    ) -> None:
        self.believed_until = believed_until
        """When refusals are doubted again."""
        self.heard_at = now
        """When the last answer was handled; infinite while one is."""
        self._wanted = wanted
        self._key = key
        self._opened_at = now
        self._checked_at = -math.inf
        self._queue: SimpleQueue[Callable[[], Requests] | None] = SimpleQueue()
        self._numbers = itertools.count(1)
        self._by_number: dict[int, Watch] = {}
        self._unanswered: deque[int] = deque()

    # ------------------------------------------------------------ any thread

    def begin(self, watch: Watch) -> None:
        """Begin a watch that was added to `wanted`; a second call has no effect."""
        self._queue.put(partial(self._begin, watch))

    def end(self, watch: Watch) -> None:
        """End a watch that was taken out of `wanted`."""
        self._queue.put(partial(self._end, watch))

    def stop(self) -> None:
        """End `requests`."""
        self._queue.put(None)

    def check(self, now: float) -> float | None:
        """Return in how many seconds to call again; None: the stream does not answer any more.

        A stream that was silent for `SILENCE_S` is to answer the creation and the cancellation of a
        watch within as long. Any answer is a proof of life, also a refusal, which has no watch id
        where the user has no right to the key.
        """
        if self._checked_at <= self.heard_at:
            quiet = now - self.heard_at
            if quiet < SILENCE_S:
                # Not less: rounded, a shorter pause might end before `SILENCE_S` again and again.
                return min(max(SILENCE_S - quiet, MIN_PAUSE_S), SILENCE_S)
        elif now - self._checked_at < 2 * SILENCE_S:  # later: this process was stopped meanwhile
            return None
        self._checked_at = now
        self._queue.put(self._prove)
        return SILENCE_S

    # ------------------------------------------------------------ gRPC's thread

    def requests(self) -> Iterator[wire.WatchRequest]:
        """Return all requests, in order: at first those that begin what is wanted already."""
        for watch in list(self._wanted):
            yield from self._begin(watch)
        while (make := self._queue.get()) is not None:
            yield from make()

    def _begin(self, watch: Watch) -> Requests:
        if watch.begun_on is self or watch not in self._wanted:
            return ()
        is_new, watch.begun_on = watch.begun_on is None, self
        return (self._create(watch, ahead=is_new),)

    def _create(self, watch: Watch, *, ahead: bool) -> wire.WatchRequest:
        # A number of its own each time: answers to an earlier one may be on their way.
        number = self._next_number()
        self._by_number[number] = watch
        return watch.request(number, ahead=ahead)

    def _next_number(self) -> int:
        number = next(self._numbers)
        self._unanswered.append(number)
        return number

    def _end(self, watch: Watch) -> Requests:
        if watch.begun_on is not self or self._by_number.pop(watch.number, None) is None:
            return ()
        return (_cancel(watch.number),)

    def _begin_earlier(self, watch: Watch, number: int) -> Requests:
        if watch not in self._wanted:
            return (_cancel(number),)
        return _cancel(number), self._create(watch, ahead=False)

    def _prove(self) -> Requests:
        number = self._next_number()
        create = wire.WatchCreate(key=self._key, watch_id=number)
        return wire.WatchRequest(create=create), _cancel(number)

    # ------------------------------------------------------------ the reader

    def answered(self, answer: wire.WatchAnswer, now: float) -> tuple[Watch, News] | None:
        """Return which watch is to be told what, if any is.

        Raises:
            StaleToken: see there.
        """
        number = answer.watch_id
        if answer.created and self._unanswered:
            # In the order of the requests; not every etcd says which one it is that it refuses.
            number = self._unanswered.popleft()
        watch = self._by_number.get(number)
        if watch is None or watch not in self._wanted:  # a proof of life, or closed meanwhile
            return None
        if answer.canceled:
            if not answer.compact_revision:  # a compaction gives no reason
                self._refused(_reason(answer), now)
            return self._missed(watch, "" if answer.compact_revision else _reason(answer))
        if answer.created:
            return self._created(watch, answer.header.revision)
        known = watch.known or 0
        events = [event for event in answer.events if event.kv.mod_revision > known]
        if watch.held or answer.fragment:
            events = watch.complete(events, more=answer.fragment)
            if sum(event.ByteSize() for event in watch.held) > MAX_HELD_BYTES:
                return self._missed(watch)
        if not events:
            return None
        watch.known = events[-1].kv.mod_revision
        return watch, events

    def _created(self, watch: Watch, revision: int) -> tuple[Watch, News] | None:
        if watch.known is None:
            watch.known = revision
        if watch.ahead and revision > watch.known:
            self._by_number.pop(watch.number, None)
            self._queue.put(partial(self._begin_earlier, watch, watch.number))
            return None
        if not watch.ahead and revision < watch.known:
            # A member that is late, or an etcd that was put back from a backup: what was told does
            # not hold there. Not asked of a new watch, so that this is no endless loop.
            return self._missed(watch)
        told, watch.tell_start = not watch.tell_start, watch.tell_starts
        return None if told else (watch, Started(watch.known))

    def _missed(self, watch: Watch, refused: str = "") -> tuple[Watch, News]:
        self._wanted.pop(watch, None)
        self.end(watch)
        return watch, Missed(refused)

    def _refused(self, why: str, now: float) -> None:
        """Believe a refusal, or else raise `StaleToken`; the watch is begun again with the rest."""
        if now - self._opened_at < FRESH_TOKEN_S:
            self.believed_until = now + REFUSAL_BELIEVED_S
        elif now >= self.believed_until:
            raise StaleToken(why)


def _cancel(number: int) -> wire.WatchRequest:
    return wire.WatchRequest(cancel=wire.WatchCancel(watch_id=number))


def _reason(answer: wire.WatchAnswer) -> str:
    """Return why a watch was refused, without gRPC's internals."""
    return answer.cancel_reason.rpartition("etcdserver: ")[2] or "no reason given"
