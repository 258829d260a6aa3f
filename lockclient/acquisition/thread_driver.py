"""Driver: runs the steps of an acquire, a push or a release in the calling thread.

Steps are a generator that yields requests and `NextEvent`s. The driver sends each answer back into
it, or throws the error. `aio.drive_async` does that on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, TypeVar

from lockclient.default_store import defaults
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.mutex_store import MutexStore, WatchEvent
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request
from lockclient.threads.reentrancy import DeputyCall, this_deputy


@dataclass(frozen=True, slots=True)
class NextEvent:
    """Wait for the next event in an inbox; send back None when that took `timeout` seconds."""

    inbox: Any  # the driver's own kind of `Inbox`
    timeout: float


Result = TypeVar("Result")
Steps = Generator[tuple[Request, Deadline] | NextEvent, Any, Result]


class ThreadInbox:
    """The `Inbox` of a waiting thread."""

    waiter_group: Hashable = None

    def __init__(self) -> None:
        # Not SimpleQueue: before Python 3.13 its `get(timeout=…)` may hang in a stopped process.
        self._events: Queue[WatchEvent] = Queue()
        self.put = self._events.put

    def get(self, timeout: float) -> WatchEvent | None:
        """Return the next event, None if there is none for `timeout` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except Empty:
            return None

    def confirm(self, callback: Callable[[], object]) -> None:
        """See `Inbox`."""
        callback()


def drive(steps: Steps[Result], store: MutexStore) -> Result:
    """Run the steps in this thread; return their result, or raise their exception."""
    observer = defaults.observer
    call: DeputyCall | None = getattr(this_deputy, "call", None)
    try:
        want = steps.send(None)
        while True:
            try:
                if isinstance(want, NextEvent):
                    if call is not None:
                        call.until = monotonic() + want.timeout
                    answer: Outcome | WatchEvent | None = want.inbox.get(want.timeout)
                else:
                    if call is not None:
                        call.until = want[1]
                    answer = store.send(*want) if observer is None else observer.send(store, *want)
                    if store.background.failed:
                        store.background.retry()
            except Exception as error:  # noqa: BLE001 - the steps handle it
                want = steps.throw(error)
            else:
                want = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()  # raises GeneratorExit in unfinished steps, which then withdraw
