"""Base for stores without a watch: worker threads send requests, also for asyncio; it is polled.

It has no line and no watch. That threads ask for event loops means that there is one place that
knows what was sent and not answered, and a task that is cancelled leaves it to a thread to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from lockclient.errors import StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.common.async_bridge import AsyncBridge
from lockclient.stores.common.background import Background
from lockclient.stores.common.lifecycle import OpenedStore
from lockclient.stores.common.polled_service_store import PolledServiceStore
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import Capabilities, Guard, Subscription, WatchEvent, WatchTarget
from lockclient.stores.requests import Remove, RequestState, Unlock, Withdraw
from lockclient.threads.pool import WorkerPool

MAX_POLLS_IN_FLIGHT = 4
CLEAN_UP_TIMEOUT_S = 0.4
"""Seconds that closing waits for what is to be cleaned up."""


class ThreadedStore(OpenedStore, PolledServiceStore):
    """A base of stores that can do without line, watch, fencing tokens and guard."""

    can: Capabilities

    def _connect(self) -> None:
        self._closing = False
        self._bridge = AsyncBridge(self._name)
        self._pollers = WorkerPool("look", MAX_POLLS_IN_FLIGHT)
        self.background = Background(self)

    # ------------------------------------------------------------ what each store does

    def _do(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do a request."""
        raise NotImplementedError

    def _was_closed(self) -> StoreClosed:
        """Return the exception for who asks it when this program has closed it."""
        raise NotImplementedError

    def _disconnect(self) -> None:
        """End what `_connect` has made besides, when nothing is asked any more."""
        raise NotImplementedError

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Subscription:
        raise NotImplementedError

    # ------------------------------------------------------------ MutexStore

    def send(self, sending: RequestState, deadline: Deadline) -> Outcome:
        # As it closes, what takes back is asked still, and all else not any more.
        if self._closing and not isinstance(sending.request, Withdraw | Unlock):
            raise self._was_closed()
        outcome = self._do(sending, deadline)
        if isinstance(sending.request, Remove):
            self._polling.look_soon()  # whoever removes waits until the picture shows it
        return outcome

    async def send_async(self, sending: RequestState, deadline: Deadline) -> Outcome:
        return await self._bridge.send(sending, partial(self.send, sending, deadline))

    def guard(self, name: str, uuid: str) -> Guard:
        """See `MutexStore.guard`: there is none."""
        raise AssertionError("a store without guards was asked for one")

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        """See `MutexStore.has_ticket_lease`: there are no tickets."""
        return False

    def keep_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        """See `MutexStore.keep_tickets`: there are no tickets."""
        return False

    def close(self) -> None:
        self._closing = True
        self._polling.close()
        self.background.close(CLEAN_UP_TIMEOUT_S)
        self._disconnect()
        self._bridge.close()
        self._pollers.close()
