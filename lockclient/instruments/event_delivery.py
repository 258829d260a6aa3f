"""Observer: passes events to the program's instruments, in a thread that does nothing else.

An instrument may take long, wait for a lock of the program's, or fail. So no other thread waits for
it: events wait in a bounded queue without a lock.

All events of one acquisition but `Requested` come in one context, a copy of its caller's from the
beginning of `acquire`. An instrument finds there at the next event what it keeps in a `ContextVar`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from lockclient.errors import ClusterMutexError, LockLost, StoreUnavailable
from lockclient.instruments.events import Acquired, Event, GaveUp, Lost, Released, Requested
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.fields import require_labels
from lockclient.stores.request_types import Request
from lockclient.threads import ending
from lockclient.threads.log_queue import CallQueue, get_logger

if TYPE_CHECKING:
    from lockclient.stores.mutex_store import AsyncMutexStore, MutexStore
    from lockclient.stores.outcomes import Outcome

log = get_logger(__name__)

Instrument = Callable[[Event], object]
"""Called with each event. It may have a method `about()`, as `setup` says, and a method
`dropped(count)`, which is called with the number of events that no instrument got."""
About = Callable[[], Mapping[str, str] | None]


class Observer:
    """Passes to instruments what happens to the locks of this process.

    Args:
        instruments: are called with each event.
        about: is called as a lock is about to be taken, and returns what it is for.
    """

    def __init__(self, instruments: Sequence[Instrument], about: About | None) -> None:
        self.instruments = tuple(instruments)
        self.about = about
        abouts = [about, *(getattr(instrument, "about", None) for instrument in instruments)]
        self.abouts: list[About] = [ask for ask in abouts if ask is not None]
        self._failing: set[int] = set()
        _newest[:] = [self]

    def observe(self, lock: str) -> Observation:
        """Begin to observe an acquisition by the caller, and ask what it is for."""
        return Observation(self, lock)

    def put(self, event: Event, run: Callable[..., object] | None = None) -> None:
        """Queue an event, to be passed on by `run` of a context."""
        if self.instruments:
            pass_on = partial(self._pass_on, event)
            _queue.put(pass_on if run is None else partial(run, pass_on))

    def guarded(self, whose: object, function: Callable[..., Any], *args: object) -> Any:
        """Call the program's function; what it raises is logged, once until it works again."""
        try:
            result = function(*args)
        except Exception:
            if id(whose) not in self._failing:
                self._failing.add(id(whose))
                log.exception("The instrument %r failed; it is called again.", whose)
            return None
        self._failing.discard(id(whose))
        return result

    def send(self, store: MutexStore, request: Request, deadline: Deadline) -> Outcome:
        """Return the outcome of `store.send`, and report the request."""
        began = monotonic()
        try:
            outcome = store.send(request, deadline)
        except Exception as error:
            self._requested(request, began, error)
            raise
        self._requested(request, began, outcome)
        return outcome

    async def send_async(
        self, store: AsyncMutexStore, request: Request, deadline: Deadline
    ) -> Outcome:
        """Return the outcome of `store.send_async`, and report the request."""
        began = monotonic()
        try:
            outcome = await store.send_async(request, deadline)
        except Exception as error:
            self._requested(request, began, error)
            raise
        self._requested(request, began, outcome)
        return outcome

    def _requested(self, request: Request, began: float, outcome: Outcome | Exception) -> None:
        took_s = monotonic() - began
        about: Any = getattr(request, "holder", request)
        error = outcome if isinstance(outcome, Exception) else None
        if error is None:
            answer = _name_of(type(outcome))
        else:
            answer = "unreachable" if isinstance(error, StoreUnavailable) else "error"
        kind = _name_of(type(request))
        self.put(Requested(time.time(), about.name, about.uuid or "", kind, answer, took_s, error))

    def _pass_on(self, event: Event) -> None:
        for instrument in self.instruments:
            self.guarded(instrument, instrument, event)


class Observation:
    """One acquisition as instruments see it, from the call of `acquire` to its end.

    Attributes:
        about: what it is for, as the program said in the same context.
    """

    __slots__ = ("_began_at", "_context", "_lock", "_observer", "_uuid", "about")

    def __init__(self, observer: Observer, lock: str) -> None:
        self._observer = observer
        self._context = copy_context()
        self._lock = lock
        self._uuid: str | None = None  # while it is held
        self._began_at = monotonic()  # to wait, then to hold
        self.about: dict[str, str] = {}
        for ask in observer.abouts:
            self.about = observer.guarded(ask, self._asked, ask) or self.about

    def _asked(self, ask: About) -> dict[str, str]:
        answer = self._context.run(ask)
        # The bound is on all answers together: an answer that exceeds it is left out.
        both = {**self.about, **answer} if isinstance(answer, Mapping) else answer
        return require_labels("about", both)

    def acquired(self, uuid: str, token: int) -> None:
        """Report that the lock is held."""
        now = monotonic()
        waited_s, self._began_at, self._uuid = now - self._began_at, now, uuid
        self._put(Acquired, uuid, waited_s, token)

    def gave_up(self, uuid: str, error: BaseException | None) -> None:
        """Report that the lock was not acquired, for this reason; None: a timeout."""
        reason = error if isinstance(error, ClusterMutexError) else None
        cancelled = error is not None and reason is None
        self._put(GaveUp, uuid, monotonic() - self._began_at, reason, cancelled)

    def lost(self, error: LockLost) -> None:
        """Report the loss, unless the end was reported before."""
        self._end(Lost, error)

    def released(self, *, answered: bool) -> None:
        """Report the release, unless the end was reported before."""
        self._end(Released, answered)

    def _end(self, kind: type[Event], fact: object) -> None:
        uuid, self._uuid = self._uuid, None
        if uuid is not None:
            self._put(kind, uuid, monotonic() - self._began_at, fact)

    def _put(self, kind: type[Event], uuid: str, *facts: Any) -> None:
        self._observer.put(kind(time.time(), self._lock, uuid, *facts), self._context.run)


def _name_of(kind: type) -> str:
    """Return the name in events of a kind of request or outcome: `take_or_queue`."""
    return re.sub("(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


def _count_dropped(count: int) -> None:
    log.warning("%d events were dropped: an instrument was too slow for them.", count)
    for observer in _newest:
        for instrument in observer.instruments:
            if hasattr(instrument, "dropped"):
                observer.guarded(instrument, instrument.dropped, count)


def _start_afresh() -> None:
    """After import, and after fork in the child: what was queued is the parent's."""
    global _queue
    _queue = CallQueue("clustermutex-events", _count_dropped)


def flush(seconds: float = 1.0) -> None:
    """Wait until instruments got all events so far, at most for `seconds`."""
    _queue.flush(seconds)


_newest: list[Observer] = []
"""The observer of the last `setup`, if there was one."""
_queue: CallQueue
_start_afresh()
os.register_at_fork(after_in_child=_start_afresh)
ending.flushes.append(flush)
