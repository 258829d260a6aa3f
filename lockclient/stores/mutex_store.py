"""The protocol of a mutex's store: send a request, watch a key, keep tickets alive.

A mutex sends a request (`request_types`), a frozen dataclass, and gets an outcome (`outcomes`).
Any store that keeps the promises written at the requests can stand behind `ClusterMutex`. Services
also need `service_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lockclient.errors import StoreError
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request, Withdraw
from lockclient.threads import ending
from lockclient.threads.pool import WorkerPool

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """The holder of lock `name`, or with `ticket` a ticket, as `Queued.predecessor` names it.

    `waiter` is the uuid of the waiting acquisition, empty for a holder's watch. A store without a
    queue may notify the waiters of one process one after the other.
    """

    name: str
    ticket: str | None = None
    waiter: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A target has changed at `revision`; `uuid` is its new value, None: deleted.

    `gap`: events may have been lost (compaction, a lost lease), so the listener must read.
    `started`: no change; the watch has begun, and misses no event after `revision`.
    """

    revision: int
    uuid: str | None = None
    gap: bool = False
    started: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison for the user's own transactions on the store: this key has this value."""

    key: bytes
    value: bytes


class Subscription(Protocol):
    """A running watch."""

    def close(self) -> None:
        """End it; no call comes after this returns, except one already on its way."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of a store; an unsupported operation raises `StoreError` before it acquires.

    Attributes:
        display_name: the store's name in sentences.
        queue: waiters queue, and get the lock in order. Without it they watch the holder and take a
            free lock, in no order; `TakeOrQueue` and `Claim` are not sent, and the answer to
            `GetPosition` has the holder alone.
        watch: `watch` notifies of each change as it happens. Without it the store polls, and may
            notify of the last of two changes only.
        fencing: tokens of one name strictly increase. Without it they only name acquisitions.
        guard: the user's own writes to the store can be bound to the lock.
        pace: the least seconds between two heartbeats of one lock, if the lock's times allow it.
        expires: the store or a waiter removes a silent holder's lock soon after its time: no
            unlocker is needed, and without an unlocker no alert is sent.
        shared: other processes reach the store. A URL leads to shared stores only.
    """

    display_name: str
    queue: bool = True
    watch: bool = True
    fencing: bool = True
    guard: bool = True
    pace: float = 0.0
    expires: bool = False
    shared: bool = True

    def require(self, ability: str, why: str) -> None:
        """Raise `StoreError` if the store lacks an ability: its name, and `why`."""
        if not getattr(self, ability):
            raise StoreError(f"{self.display_name} {why}")


class TicketRenewal(Protocol):
    """Extends the leases of waiters' tickets while the waiters can act: `common.ticket_leases`."""

    def join(self, inbox: Inbox, lock: str, revision: int) -> None:
        """Keep the ticket of this revision alive until its waiter leaves."""

    def leave(self, inbox: Inbox) -> None:
        """Forget this waiter: its acquisition has ended, or has another ticket."""

    def is_next(self, inbox: Inbox) -> bool:
        """Return whether a waiter may replace its lost ticket; else it gets a gap when it may."""


class BackgroundWork(Protocol):
    """`common.background`: the store's own threads."""

    overload: str
    """The reason why no acquisition may begin; empty: one may."""

    @property
    def urgent(self) -> WorkerPool:
        """The threads that push, and read why a lock was lost."""

    @property
    def tickets(self) -> TicketRenewal:
        """The renewal of tickets."""

    def run_shielded(self, work: Callable[..., Result], *args: Any) -> Result:
        """Call `work` in a thread where no signal handler runs; return its result."""

    acquisitions: dict[ending.Part, None]
    """Running acquisitions, and locks until the store has confirmed their release."""

    def ready(self) -> bool:
        """Start the threads that must run; return False if the interpreter starts none."""

    def clean_up(self, withdraw: Withdraw) -> None:
        """Withdraw an acquisition; retry until the store confirms it."""

    @property
    def failed(self) -> Mapping[Any, None]:
        """The clean-ups whose last try failed."""

    def retry(self) -> None:
        """Repeat the failed clean-ups now: a request has succeeded."""

    def unfinished(self) -> bool:
        """Return whether a release or a withdrawal is not confirmed yet."""

    def settle(self, seconds: float) -> None:
        """Wait until nothing is unfinished, at most for `seconds`."""


class MutexStore(Protocol):
    """The store of a `ClusterMutex`."""

    can: Capabilities

    @property
    def background(self) -> BackgroundWork:
        """The store's own threads."""

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        """Do one request; retry, also on other servers, until the deadline.

        Raises:
            StoreUnavailable: no answer by the deadline; the request may have happened.
            StoreError: the store refuses the request, and would refuse a retry.
        """

    def send(self, request: Request, deadline: Deadline) -> Outcome:
        """Do the same in the calling thread; note the tries of a take in its `delivery`."""

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Subscription:
        """Call `notify` for each change of the target from `revision` on, missing none.

        With `revision` 0 it begins now: the first event (`started`) has the revision; older events
        may come, too, or instead. A thread of the store calls `notify`, which must return quickly.
        """

    def guard(self, name: str, uuid: str) -> Guard:
        """Return a comparison that is true in the store exactly while this holder has the lock."""

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        """Tell whether these waiters' tickets have a lease, so that `TakeOrQueue` is one request.

        Args:
            waiters: an event loop, or None for all threads. Each loop has a lease of its own,
                because its tasks can act only while it runs.
        """

    def extend_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        """Extend the lease of these waiters' tickets; False: it is lost, queue again.

        To be called every `TICKET_RENEWAL_S` seconds while there are tickets.
        """


class AsyncMutexStore(MutexStore, Protocol):
    """The store of an `AsyncClusterMutex`."""

    async def send_async(self, request: Request, deadline: Deadline) -> Outcome:
        """Do the same as `send` on an event loop; a cancelled request may still happen."""


class Inbox(Protocol):
    """A waiter's queue of events, from any thread."""

    @property
    def waiter_group(self) -> Hashable:
        """The event loop of the waiter, None in a thread: see `MutexStore.has_ticket_lease`."""

    def put(self, event: WatchEvent) -> None:
        """Add an event."""

    def confirm(self, callback: Callable[[], object]) -> None:
        """Call back from the waiter's loop, or at once; RuntimeError: the loop is closed."""
