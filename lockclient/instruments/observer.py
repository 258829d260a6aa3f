"""Observer: notes what happens to locks and tells the program's instruments, in its own thread.

What an instrument does may take long, wait for a lock of the program's, or fail. So nothing of ours
waits for it: an event is put into a bounded queue, which takes no lock, and one thread that does
nothing else hands it to one instrument after the other. `on_lost` and the log have threads of their
own.

All events of one acquisition come in one context, a copy of its caller's as it asked. What an
instrument keeps there in a `ContextVar` it finds again at the next event of that acquisition.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from lockclient.errors import ClusterMutexError, LockLost, StoreUnavailable
from lockclient.instruments.events import (
    Acquired,
    Asked,
    Event,
    EventsDropped,
    GaveUp,
    LockEvent,
    Lost,
    Pushed,
    PushFailed,
    Released,
    Requested,
    StoreSlow,
    StoreUnreachable,
    Waiting,
)
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.fields import require_labels
from lockclient.stores.common.dispatch import METHODS, snake_case
from lockclient.stores.requests import RequestState
from lockclient.threads.log_queue import AT_EXIT_S, CallQueue, get_logger

if TYPE_CHECKING:
    from lockclient.stores.outcomes import Outcome
    from lockclient.stores.protocol import AsyncMutexStore, Look, MutexStore

log = get_logger(__name__)

Instrument = Callable[[Event], object]
"""Called with each event. One that has a method `about()` is asked by it, too, as `setup` says."""
About = Callable[[], Mapping[str, str] | None]

SLOW_S: Final = 1.0
"""Seconds after which an answer of the store was slow."""


class Observer:
    """Tells instruments what happens to the locks of this process.

    Args:
        instruments: are called with each event.
        about: what is asked, as a lock is about to be taken, what it is for.
    """

    def __init__(self, instruments: Sequence[Instrument], about: About | None) -> None:
        self.instruments = tuple(instruments)
        self.said = about
        abouts = [about, *(getattr(instrument, "about", None) for instrument in instruments)]
        self._abouts: list[About] = [ask for ask in abouts if ask is not None]
        self._failing: set[tuple[int, str]] = set()
        self._queue = self._new_queue()
        _observers.add(self)

    def observe(self, lock: str) -> Observation:
        """Begin to observe an acquisition by the caller, and ask what it is for."""
        return Observation(self, lock, self._abouts)

    def flush(self, seconds: float) -> None:
        """Wait until all that has happened so far is told, but not longer than that."""
        self._queue.flush(seconds)

    def put(self, handle: Callable[[], object]) -> None:
        """Have something told after what was put before."""
        if self.instruments:
            self._queue.put(handle)

    def tell(self, event: Event) -> None:
        """Tell all instruments; for the queue's thread alone."""
        for instrument in self.instruments:
            self.guarded(instrument, instrument, event)

    def guarded(self, whose: object, function: Callable[..., Any], *args: object) -> Any:
        """Call what is the program's; what it raises is logged, once until it works again."""
        failed = (id(whose), getattr(function, "__name__", ""))
        try:
            result = function(*args)
        except Exception:
            if failed not in self._failing:
                self._failing.add(failed)
                log.exception("%r failed, which is told of locks; it is called again.", whose)
            return None
        self._failing.discard(failed)
        return result

    # ------------------------------------------------------------ what is asked of the store

    def send(self, store: MutexStore, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do what `store.send` does."""
        began = monotonic()
        try:
            outcome = store.send(sending, deadline)
        except Exception as error:
            self._requested(sending, began, error)
            raise
        self._requested(sending, began, outcome)
        return outcome

    async def send_async(
        self, store: AsyncMutexStore, sending: RequestState, deadline: Deadline
    ) -> Outcome:
        """Do what `store.send_async` does."""
        began = monotonic()
        try:
            outcome = await store.send_async(sending, deadline)
        except Exception as error:
            self._requested(sending, began, error)
            raise
        self._requested(sending, began, outcome)
        return outcome

    def _requested(self, sending: RequestState, began: float, outcome: Outcome | Exception) -> None:
        took_s, request = monotonic() - began, sending.request
        lock = getattr(request, "name", None) or request.holder.name  # type: ignore[union-attr]
        if isinstance(outcome, StoreUnavailable):
            answer = "unreachable"
        elif isinstance(outcome, Exception):
            answer = "error"
        else:
            answer = snake_case(type(outcome))
        facts = time.time(), lock, METHODS[type(request)], answer, took_s
        self.put(partial(self.tell, Requested(*facts)))
        if isinstance(outcome, StoreUnavailable):
            self.put(partial(self.tell, StoreUnreachable(*facts, outcome)))
        elif took_s > SLOW_S:
            self.put(partial(self.tell, StoreSlow(*facts)))

    # ------------------------------------------------------------ inside

    def _new_queue(self) -> CallQueue:
        return CallQueue("clustermutex-events", self._dropped)

    def _dropped(self, count: int) -> None:
        log.warning("%d events were dropped: an instrument was too slow for them.", count)
        self.tell(EventsDropped(time.time(), count))

    def start_afresh(self) -> None:
        """After fork, in the child: what was queued is the parent's."""
        self._queue = self._new_queue()


class Observation:
    """One acquisition as instruments see it, from being asked for to its end.

    Attributes:
        uuid: its own; another one if that is used up (`steps.UsedUp`).
        about: what it is for: what the program said in the same context.
    """

    __slots__ = (
        *("_asked_at", "_context", "_had", "_had_at", "_observer", "_over"),
        *("about", "lock", "uuid"),
    )

    def __init__(self, observer: Observer, lock: str, abouts: Sequence[About]) -> None:
        self._observer = observer
        self._context = copy_context()
        self.lock = lock
        self.uuid = ""
        self._asked_at = self._had_at = monotonic()
        self._had = False  # has been told that it was acquired, or given up
        self._over = False
        self.about: dict[str, str] = {}
        for ask in abouts:
            answer = observer.guarded(ask, self._context.run, ask)
            # Bounded is what all say together: one that says more is not listened to at all.
            both = {**self.about, **answer} if isinstance(answer, Mapping) else answer
            bounded = observer.guarded(ask, require_labels, "about", both)
            self.about = bounded or self.about

    def asked(self, uuid: str, *, blocking: bool) -> None:
        """It is asked for, by this uuid."""
        self.uuid = uuid
        self._put(Asked, blocking)

    def waits(self, store: MutexStore) -> None:
        """It has to wait: tell behind whom, as soon as that is known."""

        def tell(look: Look | None) -> None:  # in another thread
            holder, places = (None, {}) if look is None else (look.holder, look.places)
            self._put(Waiting, holder, places.get(self.uuid), len(places))

        if self._observer.instruments:
            store.background.looks.ask(self.lock, tell)

    def acquired(self, token: int) -> None:
        """It is had."""
        self._had_at = monotonic()
        self._put(Acquired, self._had_at - self._asked_at, token)

    def gave_up(self, error: BaseException | None) -> None:
        """It was not had, for this reason, or because the time was up."""
        reason = error if isinstance(error, ClusterMutexError) else None
        cancelled = error is not None and reason is None
        self._put(GaveUp, monotonic() - self._asked_at, reason, cancelled)

    def pushed(self) -> None:
        """Its stamps were pushed."""
        self._put(Pushed)

    def push_failed(self, error: ClusterMutexError, deadline: float) -> None:
        """Its stamps could not be pushed; it stays held until then, on the monotonic clock."""
        self._put(PushFailed, error, deadline - monotonic())

    def lost(self, error: LockLost) -> None:
        """It was lost: the end, if that has not come before."""
        self._end(Lost, error)

    def released(self, *, answered: bool) -> None:
        """It was released: the end, if that has not come before."""
        self._end(Released, answered)

    def _end(self, kind: type[LockEvent], fact: object) -> None:
        if not self._over:
            self._over = True
            self._put(kind, monotonic() - self._had_at, fact)

    def _put(self, kind: type[LockEvent], *facts: Any) -> None:
        event = kind(time.time(), self.lock, self.uuid, *facts)
        self._observer.put(partial(self._context.run, self._deliver, event))

    def _deliver(self, event: LockEvent) -> None:
        """In the queue's thread, which alone knows what has been told."""
        if isinstance(event, Waiting) and self._had:
            return  # the look at the lock took longer than the wait
        self._had = self._had or isinstance(event, Acquired | GaveUp)
        self._observer.tell(event)


_observers: WeakSet[Observer] = WeakSet()


def flush(seconds: float = 1.0) -> None:
    """Wait until instruments were told all that has happened so far, but no longer than that."""
    for observer in list(_observers):
        observer.flush(seconds)


def _start_afresh() -> None:
    for observer in list(_observers):
        observer.start_afresh()


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(flush, AT_EXIT_S)
