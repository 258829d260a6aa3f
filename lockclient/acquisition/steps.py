"""Steps of a thread or an event loop: acquiring, pushing and releasing, written once for both.

They are generators. Such a generator yields a request, or an inbox to wait at. Its driver, `drive`
here or `drive_async` in `aio`, sends back the answer or throws the error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, TypeVar

from lockclient.default_store import defaults
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import MutexStore, WatchEvent
from lockclient.stores.requests import RequestState


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for the next event in an inbox; send back None when that took `timeout` seconds."""

    inbox: Any  # the driver's own kind of `Inbox`
    timeout: float


Result = TypeVar("Result")
Steps = Generator[tuple[RequestState, Deadline] | Hear, Any, Result]


class ThreadInbox:
    """The inbox of a waiting thread, which can act at any time."""

    waiters: Hashable = None

    def __init__(self) -> None:
        self._events: Queue[WatchEvent] = Queue()  # no `SimpleQueue`: see `threads.scheduler`
        self.put = self._events.put

    def get(self, timeout: float) -> WatchEvent | None:
        """Return the next event, None if there is none for `timeout` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except Empty:
            return None

    def prove(self, tell: Callable[[], object]) -> None:
        """See `Inbox`."""
        tell()


def drive(steps: Steps[Result], store: MutexStore) -> Result:
    """Do what the steps want in this thread; return their result, or raise what they raise."""
    observer = defaults.observer
    try:
        want = steps.send(None)
        while True:
            try:
                if isinstance(want, Hear):
                    answer: Outcome | WatchEvent | None = want.inbox.get(want.timeout)
                elif observer is None:
                    answer = store.send(*want)
                else:
                    answer = observer.send(store, *want)
            except Exception as error:  # noqa: BLE001 - it is theirs
                want = steps.throw(error)
            else:
                want = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()
