"""Wait report: a waiting `acquire` logs who holds the lock, after 2 s and then each minute."""

from __future__ import annotations

import logging

from lockclient.acquisition.thread_driver import Steps
from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.request_types import Read
from lockclient.text.durations import period
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

FIRST_AFTER_S = 2.0
INTERVAL_S = 60.0
READ_TIMEOUT_S = 3.0


class WaitReport:
    """The log lines of one wait; where INFO is off, none, and no request.

    Args:
        name: of the lock.
        begun_at: when the wait began, on the monotonic clock.
    """

    def __init__(self, name: str, begun_at: float) -> None:
        self._name = name
        self._begun_at = begun_at
        self.due_at = Deadline(begun_at + FIRST_AFTER_S)
        self._is_reported = False

    def log_holder(self, uuid: str, deadline: Deadline) -> Steps[None]:
        """Read the lock's holder and log it, for the waiter of this uuid."""
        self.due_at = Deadline.after(INTERVAL_S)
        if not log.isEnabledFor(logging.INFO):
            return
        self._is_reported = True
        limit = min(Deadline.after(READ_TIMEOUT_S), deadline)
        try:
            seen = yield Read(self._name), limit
        except ClusterMutexError:
            why = "its holder could not be read"
        else:
            assert isinstance(seen, ReadResult)
            holder = seen.holder
            why = f"it is held by {holder.describe()}" if holder else "it is free at the moment"
        self._log("Waiting for the lock %r for %s now; %s.", uuid, why)

    def log_end(self, uuid: str) -> None:
        """Log that the waiter of this uuid has the lock, if its wait was logged."""
        if self._is_reported:
            self._log("Got the lock %r after %s.", uuid)

    def _log(self, text: str, uuid: str, *facts: str) -> None:
        waited = period(round(monotonic() - self._begun_at))
        log.info(text, self._name, waited, *facts, extra={"lock": self._name, "uuid": uuid})
