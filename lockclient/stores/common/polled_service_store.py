"""The services' half of a store without a watch: `ServiceStore` by polling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.ticket import Ticket
from lockclient.stores.common.polling import Following, Polling
from lockclient.stores.diagnosis_protocol import History, Member
from lockclient.stores.service_protocol import Batch, Kind, WaitQueue


class PolledServiceStore:
    """A base of stores that are polled: what they answer to services.

    What is not there (a line, backtraces that stand apart, a past) is told as empty, and nobody
    asks for it who has asked the store what it `can` do.
    """

    _polling: Polling
    _name: str
    """Of its threads."""

    # ------------------------------------------------------------ what each store does

    def endpoints(self) -> tuple[str, ...]:
        raise NotImplementedError

    # ------------------------------------------------------------ ServiceStore

    @property
    def poll(self) -> float:
        return self._polling.every

    @poll.setter
    def poll(self, seconds: float) -> None:
        self._polling.every = seconds

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        return self._polling.load(kinds, deadline)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Following:
        return self._polling.follow(revision, notify)

    def connected(self) -> bool:
        return self._polling.fine

    def watch_restarts(self) -> int:
        """See `ServiceStore.watch_restarts`: looks that were not answered."""
        return self._polling.failures

    def renew_watch(self) -> None:
        """See `ServiceStore.renew_watch`: each look is a new one."""
        self._polling.look_soon()

    def clock_offsets(self, timeout: float) -> list[float]:
        """See `ServiceStore.clock_offsets`: by the last answer."""
        return self._ahead()

    def newest_announcement(self, deadline: Deadline) -> int:
        """Return the revision of now: what was written by now, whatever that is, `follow` shows by
        its next look. That the store answers, looks prove, and no request besides.
        """
        if not self._polling.fine:
            raise StoreUnavailable(f"{self.endpoints()[0]} did not answer the last look.")
        return self._polling.revision_at(monotonic())

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        """See `ServiceStore.backtrace`: no backtrace stands apart."""
        return None

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        return WaitQueue(0)

    def tickets(self, limit: int, deadline: Deadline) -> Sequence[Ticket]:
        return ()

    def history(self, deadline: Deadline) -> History:
        """See `ServiceStore.history`: no past is kept."""
        now = self._polling.revision_at(monotonic())
        return History(now, now)

    def probe_permissions(self, deadline: Deadline) -> Mapping[str, bool]:
        return {}

    def members(self, timeout: float) -> list[Member]:
        """See `ServiceStore.members`: whoever answers for the store is one."""
        return [Member(self.endpoints()[0], ahead=next(iter(self._ahead()), None))]

    def votes(self) -> Mapping[str, str]:
        """See `ServiceStore.votes`: who answers speaks for all."""
        return {}

    def warnings_for_display(self) -> Sequence[str]:
        """See `ServiceStore.warnings_for_display`: who answers is one, and says all there is."""
        return ()

    def _ahead(self) -> list[float]:
        polling = self._polling
        return [monotonic() + polling.clock.ahead() - time.time()] if polling.fine else []
