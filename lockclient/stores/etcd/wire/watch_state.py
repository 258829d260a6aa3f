"""Watch state: the watches of a stream, and the revision up to which each was notified. No I/O.

**Where a watch begins.** A watch that begins at the compacted revision gets no event of what was
deleted there (etcd-io/etcd #18089, in all distributions); one that begins a revision earlier gets
"compacted". So a watch begins at the last revision that it knows, and drops events of it. One
number is enough, since all events of a revision come together.

etcd serves a watch that begins in the past from a list that it walks every 100 ms. So a new watch
is first created at its next revision. If that is in the future by etcd's answer, nothing can have
been compacted there, and events come at once. Else it is created again, one revision earlier.

**How much comes at once.** A watch that begins in the past gets up to a thousand revisions in one
answer, which may be a gigabyte. With `fragment` etcd cuts them into answers of about one request's
size. A cut may split a revision: its events are held until the rest has come. If they are more than
`MAX_HELD_BYTES`, the watch ends as after a compaction.

**Rights.** etcd checks each new watch by the token with which its stream was opened. A stale token
refuses new watches on a stream whose older watches continue, and etcd 3.5.1 gives "permission
denied" for that as well. So a refusal is believed on a fresh stream only: an older stream is
opened again with a new token.
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
"""Seconds without an answer after which a stream must prove that it lives, and for that proof. Two
such times, and another member, are less than the 3 s that are promised."""
MIN_PAUSE_S = 0.001
"""Seconds from one check of a silent stream to the next at least."""

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Bytes of an incomplete revision's events."""
FRESH_TOKEN_S = 1.0
"""Seconds for which a new stream's token is valid for certain."""
REFUSAL_BELIEVED_S = 10.0
"""Seconds after a refusal on a fresh stream in which refusals on an older stream are believed: a
watch without the right must not have the stream opened again with each try."""


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """The watch has ended and may have missed events (compaction), so the listener must read.

    `refused` is the reason if etcd does not let this user watch, or the system gives this process
    no descriptor, thread or memory for the stream.
    """

    refused: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """A watch has begun: it misses no event after this revision.

    A watch that begins now is notified once, a watch with `tell_start` on each stream.
    """

    revision: int


Events = list[wire.WatchEvent]
News = Events | WatchEnded | Started
Notify = Callable[[News], None]


class StaleToken(Exception):
    """The stream must be opened again, with a new token; the text is etcd's reason."""


class Watch:
    """One watch, on a key (range end empty) or a range.

    `known` is the revision up to which its listener knows everything; None: it is to begin now.
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
        """True if it was created at a revision that may be in the future."""
        self.held: Events = []
        """The events of an incomplete revision."""
        self._close = close
        self._filters = [wire.WatchCreate.NOPUT] if deletes_only else []

    def close(self) -> None:
        """End it; no call comes after this returns, except one already on its way."""
        self._close(self)

    def request(self, number: int, *, ahead: bool) -> wire.WatchRequest:
        """Return the request that creates it: at `known`, or one revision `ahead`."""
        self.number, self.ahead, self.held = number, ahead, []
        # 0 means "now"; 1 is the revision of an empty etcd, without any event.
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
        """Return the events of complete revisions; with `more` the last one may be incomplete."""
        events = self.held + events
        last = events[-1].kv.mod_revision if more and events else math.inf
        cut = bisect_left(events, last, key=lambda event: event.kv.mod_revision)
        self.held = events[cut:]
        return events[:cut]


Requests = Sequence[wire.WatchRequest]


class OpenStream:
    """The requests and answers of one stream, without a lock.

    gRPC's thread iterates over `requests`, and it alone numbers watches. The reader of the stream
    calls `answered`. Any thread may call the other methods, also in a signal handler or a
    finalizer: `begin` and `end` put one entry into a queue.

    Args:
        wanted: all watches that are wanted; the caller adds and removes them.
        key: a key that no client writes, on which `check` watches.
        now: the monotonic time.
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
        """The monotonic time from which a refusal asks for a new token again."""
        self.heard_at = now
        """The monotonic time at which the last answer was handled; infinite while one is."""
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

        After `SILENCE_S` without an answer it sends the creation and the cancellation of a watch,
        and the stream has as long to answer. Any answer will do, also a refusal.
        """
        if self._checked_at <= self.heard_at:
            quiet = now - self.heard_at
            if quiet < SILENCE_S:
                # Not less: rounded, a shorter pause might end before `SILENCE_S` again and again.
                return min(max(SILENCE_S - quiet, MIN_PAUSE_S), SILENCE_S)
        elif now - self._checked_at < 2 * SILENCE_S:  # later: this process was stopped meanwhile
            return None
        self._checked_at = now
        self._queue.put(self._probe)
        return SILENCE_S

    # ------------------------------------------------------------ gRPC's thread

    def requests(self) -> Iterator[wire.WatchRequest]:
        """Return all requests, in order; the first ones create the watches that are wanted."""
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
        # Each creation has a new number: answers to an earlier one may be on their way.
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

    def _probe(self) -> Requests:
        number = self._next_number()
        create = wire.WatchCreate(key=self._key, watch_id=number)
        return wire.WatchRequest(create=create), _cancel(number)

    # ------------------------------------------------------------ the reader

    def answered(self, answer: wire.WatchAnswer, now: float) -> tuple[Watch, News] | None:
        """Return a watch and its news, if there are any."""
        number = answer.watch_id
        if answer.created and self._unanswered:
            # In the order of the requests: a refusal may lack the number.
            number = self._unanswered.popleft()
        watch = self._by_number.get(number)
        if watch is None or watch not in self._wanted:  # a probe, or closed meanwhile
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
            # A member that lags, or an etcd restored from a backup: there the notified events did
            # not happen. A new watch is not compared, or this could repeat for ever.
            return self._missed(watch)
        tell_start, watch.tell_start = watch.tell_start, watch.tell_starts
        return (watch, Started(watch.known)) if tell_start else None

    def _missed(self, watch: Watch, refused: str = "") -> tuple[Watch, News]:
        self._wanted.pop(watch, None)
        self.end(watch)
        return watch, WatchEnded(refused)

    def _refused(self, why: str, now: float) -> None:
        """Believe a refusal, or raise `StaleToken`: a new stream creates all watches again."""
        if now - self._opened_at < FRESH_TOKEN_S:
            self.believed_until = now + REFUSAL_BELIEVED_S
        elif now >= self.believed_until:
            raise StaleToken(why)


def _cancel(number: int) -> wire.WatchRequest:
    return wire.WatchRequest(cancel=wire.WatchCancel(watch_id=number))


def _reason(answer: wire.WatchAnswer) -> str:
    """Return etcd's reason for a refusal."""
    return answer.cancel_reason.rpartition("etcdserver: ")[2] or "no reason given"
