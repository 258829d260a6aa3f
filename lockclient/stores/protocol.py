"""What a mutex needs of a store: send a request, watch a key, keep tickets alive.

A mutex asks by a request (`requests`), a frozen dataclass, and gets an outcome (`outcomes`).
Any store that keeps the promises written at the requests can stand behind `ClusterMutex`. What
services need besides is `service_protocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lockclient.errors import StoreError
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome
from lockclient.stores.requests import Request, RequestState, Withdraw
from lockclient.threads.pool import WorkerPool

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """What to watch: the holder of lock `name`, or with `ticket` that waiter's ticket."""

    name: str
    ticket: str | None = None
    """As the store names it: `Queued.predecessor`."""
    waiter: str = ""
    """The acquisition that waits, in a store without a line: it may serve those of one process one
    after the other."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Something happened to a target at `revision`; `uuid` is its new value, None: deleted.

    `gap` tells that events may have been lost (compaction, a lost lease): look for yourself.
    `started` is no event of the target: the watch has begun, and misses nothing after `revision`.
    """

    revision: int
    uuid: str | None = None
    gap: bool = False
    started: bool = False


TICKET_TTL_S = 10
"""Seconds after the last `keep_tickets` at which tickets go."""
TICKET_RENEWAL_S = TICKET_TTL_S / 4


@dataclass(frozen=True, slots=True)
class Guard:
    """A key that has a value: a comparison for the user's own transactions on the store."""

    key: bytes
    value: bytes


class Subscription(Protocol):
    """A running watch."""

    def close(self) -> None:
        """End it; no call-back comes after this returns, except one already on its way."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. Who asks for what it can't is told so, before anything is taken.

    Attributes:
        display_name: the store's name in sentences.
        queue: waiters stand in a line, which the lock goes along. Without one they look whether it
            is free, in no order; `TakeOrQueue` and `Claim` are not asked, and a `GetPosition`
            tells the holder alone.
        watch: a change is told when it happens. Without that `watch` tells of it when the store
            looks the next time, and of two changes perhaps the last one alone.
        fencing: tokens of one name strictly increase. Without that they are names of acquisitions.
        guard: the user's own writes to the store can be bound to the lock.
        hints: without a line, `watch` from now on tells who waits of most releases: look then.
        pace: seconds that it wants between two writes of one lock: `alive()` leaves them, as far as
            the lock's own times allow it.
        expires: a lock whose holder is silent goes by itself soon after its time, or by who wants
            it: no unlocker is needed, and where none runs nobody is alerted.
        shared: other processes reach it. No URL leads to a store that is not.
    """

    display_name: str
    queue: bool = True
    watch: bool = True
    fencing: bool = True
    guard: bool = True
    hints: bool = False
    pace: float = 0.0
    expires: bool = False
    shared: bool = True

    def require(self, ability: str, why: str) -> None:
        """Raise `StoreError` if the store lacks an ability; `why` says so behind its name."""
        if not getattr(self, ability):
            raise StoreError(f"{self.display_name} {why}")


class TicketRenewal(Protocol):
    """Keeps the tickets of waiters alive, for as long as these can act."""

    def join(self, inbox: Inbox) -> None:
        """Keep this waiter's ticket alive as long as it is in line."""

    def leave(self, inbox: Inbox) -> None:
        """Forget this waiter."""


class BackgroundWork(Protocol):
    """What goes on beside the callers of one store; done by `common.background`."""

    @property
    def pushes(self) -> WorkerPool:
        """The threads that push, and look why a lock was lost."""

    @property
    def tickets(self) -> TicketRenewal:
        """What renews tickets."""

    def run_shielded(self, work: Callable[..., Result], *args: Any) -> Result:
        """Do what asks the store, where no signal can land; return its result."""

    def ready(self) -> None:
        """See to it that what is to go on in the background will."""

    def clean_up(self, withdraw: Withdraw) -> None:
        """Leave nothing of an acquisition, for as long as that takes."""

    def unfinished(self) -> bool:
        """Tell whether something is to be cleaned up, or done for the main thread, still."""

    def settle(self, seconds: float) -> None:
        """Wait until nothing is unfinished, but not longer than that."""


class MutexStore(Protocol):
    """What `ClusterMutex` needs."""

    can: Capabilities
    """What can be asked of it."""

    @property
    def background(self) -> BackgroundWork:
        """The threads of this store, and what they do beside its callers."""

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        """Do one request, trying again and elsewhere until the deadline.

        Raises:
            StoreUnavailable: no answer by the deadline; the request may have happened.
            StoreError: the store refuses the request for a reason that trying again won't cure.
        """

    def send(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do what `ask` does, and note in the sending what is not known of it."""

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Subscription:
        """Call `notify` for each change of the target from `revision` on, missing none.

        With `revision` 0 it begins now, and says by a first event (`started`) since when that is;
        older events may come, too, or instead.

        The calls come from a thread of the store and must return quickly.
        """

    def guard(self, name: str, uuid: str) -> Guard:
        """Return what holds in the store exactly as long as this holder has the lock."""

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        """Tell whether a `TakeOrQueue` costs one request: what tickets need is there already.

        Args:
            waiters: whose tickets: an event loop's, or None for those of all threads. Each loop
                has a lease of its own, because its tasks can act only while it runs.
        """

    def keep_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        """Keep these waiters' tickets alive; False: they are gone, queue again.

        To be called every `TICKET_RENEWAL_S` seconds while there are tickets.
        """


class AsyncMutexStore(MutexStore, Protocol):
    """What `AsyncClusterMutex` needs besides."""

    async def send_async(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do what `send` does without blocking the event loop; cancelling it may leave it done."""


STORE_TIMEOUT_S = 10.0
"""Seconds that a call without a timeout of its own waits for a store that does not answer."""

ONE_ANSWER_S = 3.0
"""Seconds that there are for an answer in any case, however short a timeout is."""


class Inbox(Protocol):
    """Where a waiter's events arrive, from any thread."""

    @property
    def waiters(self) -> Hashable:
        """Who can act only together with this waiter; see `MutexStore.has_ticket_lease`."""

    def put(self, event: WatchEvent) -> None:
        """Add an event."""

    def prove(self, tell: Callable[[], object]) -> None:
        """Call `tell` as soon as the waiter can act; raise RuntimeError if it never will."""
