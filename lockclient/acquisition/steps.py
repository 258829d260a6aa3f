"""How what is to be done is told apart from who does it: threads here, asyncio in `aio`.

A generator yields what it wants from the outside, to ask or to hear, and is sent the answer or
thrown the error. So acquiring, pushing and releasing are written once for both drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, TypeVar

from lockclient.default_store import defaults
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import MutexStore, WatchEvent, WatchTarget
from lockclient.stores.requests import Request, RequestState

# ------------------------------------------------------------ what an acquisition is to do next


@dataclass(frozen=True, slots=True)
class Wait:
    """Watch `target` from `revision` on; look after `LOOK_INTERVAL` in any case.

    With `from_now` the watch begins when the store receives it. If that is later than `revision`,
    the waiter looks once more.
    """

    target: WatchTarget
    revision: int
    from_now: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Look again in so many seconds, or at a hint: there is no line that would wake who waits."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lock is had."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock was not had: `holder` (a uuid) has it, or None if only a line stands before it."""

    holder: str | None


@dataclass(frozen=True, slots=True)
class UsedUp:
    """This uuid had the lock and lost it before that was known here: go on with a new one.

    A uuid is used for one acquisition, ever: else the record of its removal would tell of two.
    """


Step = Request | Wait | Pause | Acquired | Busy | UsedUp


# ------------------------------------------------------------ what its driver is to do for it

Ask = tuple[RequestState, Deadline]
"""Ask the store; send back the outcome."""


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


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for the next event in an inbox; send back None when that took `timeout` seconds."""

    inbox: Any  # the driver's own kind of `Inbox`
    timeout: float


Result = TypeVar("Result")
Steps = Generator[Ask | Hear, Any, Result]


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
