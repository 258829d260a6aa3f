"""Base for stores without queue and watch: worker threads send requests, services poll.

Threads send the requests of event loops, too. So a cancelled task leaves a thread that receives the
answer, and only threads know which requests are in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator
from functools import partial

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.async_bridge import AsyncBridge
from lockclient.stores.common.background import Background
from lockclient.stores.common.lock_poll import LockPolls
from lockclient.stores.common.polling import Follower, Polling
from lockclient.stores.common.store_lifecycle import OpenedStore
from lockclient.stores.mutex_store import Capabilities, Guard, Subscription, WatchEvent, WatchTarget
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Remove, Request, Take
from lockclient.stores.service_store import Batch, Kind, Tickets, WaitQueue


class PolledStore(OpenedStore):
    """A base of stores without queue, watch, fencing tokens and guard.

    Such a store returns an empty queue, and no backtrace of its own.
    """

    can: Capabilities
    _do: Callable[[Request, Deadline], Outcome]
    """Does a request; raises `StoreUnavailable`, or `StoreError` for a reason that persists."""
    _polling: Polling

    def _connect(self) -> None:
        super()._connect()
        self.background = Background(self)
        pools = self.background.urgent, self.background.patient
        self._bridge = AsyncBridge(*pools)
        self._lock_polls = LockPolls(self.ask, *pools)

    def _disconnect(self) -> None:
        self._polling.close()

    # ------------------------------------------------------------ MutexStore

    def send(self, request: Request, deadline: Deadline) -> Outcome:
        if self._closing:
            self._check_open(request)
        if isinstance(request, Take) and (poll := self._lock_polls.polls.get(request.holder.name)):
            return poll.take(request, partial(self._do, request, deadline))
        outcome = self._do(request, deadline)
        if isinstance(request, Remove):
            self._polling.poll_soon()  # the remover waits until its table shows the removal
        return outcome

    async def send_async(self, request: Request, deadline: Deadline) -> Outcome:
        return await self._bridge.send(request, partial(self.send, request, deadline))

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Subscription:
        """See `MutexStore.watch`, and `lock_poll`."""
        return self._lock_polls.watch(target, notify)

    def guard(self, name: str, uuid: str) -> Guard:
        """See `MutexStore.guard`: no caller gets here, by `Capabilities.guard`."""
        raise AssertionError("a store without guards was asked for one")

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        """See `MutexStore.has_ticket_lease`: there are no tickets."""
        return False

    def extend_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        """See `MutexStore.extend_tickets`: there are no tickets."""
        return False

    # ------------------------------------------------------------ ServiceStore

    @property
    def poll(self) -> float:
        return self._polling.interval_s

    @poll.setter
    def poll(self, seconds: float) -> None:
        self._polling.interval_s = seconds

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        return self._polling.load(kinds, deadline)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Follower:
        return self._polling.follow(revision, notify)

    def connected(self) -> bool:
        return self._polling.is_reachable

    def watch_restarts(self) -> int:
        """See `ServiceStore.watch_restarts`: polls without an answer."""
        return self._polling.failures

    def reopen_watch(self) -> None:
        """See `ServiceStore.reopen_watch`: poll at once."""
        self._polling.poll_soon()

    def clock_offsets(self, timeout: float) -> list[float]:
        """See `ServiceStore.clock_offsets`: by the last answer."""
        polling = self._polling
        return [monotonic() + polling.clock.ahead() - time.time()] if polling.is_reachable else []

    def newest_announcement(self, deadline: Deadline) -> int:
        """Return the revision of now: the next poll shows all that was written by now.

        It sends no request: the last poll was answered.
        """
        if not self._polling.is_reachable:
            raise StoreUnavailable(f"{self.endpoints()[0]} did not answer the last poll.")
        return self._polling.revision_at(monotonic())

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        """See `ServiceStore.backtrace`: each removal record has its own."""
        return None

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        return WaitQueue(0)

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        return Tickets()
