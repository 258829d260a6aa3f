"""How what is to be done is told apart from who does it: threads here, asyncio in `aio`.

A generator yields what it wants from the outside, an `Ask` or a `Hear`, and is sent the answer or
thrown the error. So acquiring, pushing and releasing are written once for both drivers.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from lockclient.store import Event, MutexStore, Outcome, Request
from lockclient.timing import Deadline

PATIENCE = 10.0
"""Seconds that a call without a timeout of its own waits for a store that does not answer."""
ONE_TRY = 3.0
"""The same for a call that is asked not to wait."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the store; send back the outcome."""

    request: Request
    deadline: Deadline


class Inbox(Protocol):
    """Where a waiter's events arrive, from any thread."""

    def put(self, event: Event) -> None:
        """Add an event."""


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for the next event in an inbox; send back None when that took `timeout` seconds."""

    inbox: Any  # the driver's own kind of `Inbox`
    timeout: float


Result = TypeVar("Result")
Steps = Generator[Ask | Hear, Any, Result]


def drive(steps: Steps[Result], store: MutexStore) -> Result:
    """Do what the steps want in this thread; return their result, or raise what they raise."""
    try:
        want = steps.send(None)
        while True:
            # Not `try` at once: CPython 3.11 does not protect the first instruction of a loop that
            # begins with one, and it is where an interrupt is raised.
            answer: Outcome | Event | None = None
            try:
                if isinstance(want, Ask):
                    answer = store.ask(want.request, want.deadline)
                else:
                    answer = _hear(want.inbox, want.timeout)
            except Exception as error:  # noqa: BLE001 - it is theirs
                want = steps.throw(error)
            else:
                want = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()  # an interrupt: whatever the steps hold, they let go of it now


def _hear(inbox: SimpleQueue[Event], timeout: float) -> Event | None:
    try:
        return inbox.get(timeout=timeout)
    except Empty:
        return None
