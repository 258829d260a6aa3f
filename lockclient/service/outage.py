"""Logs an outage once when it begins and once when it ends, not at each retry."""

from __future__ import annotations

import logging


class Outage:
    """One kind of failure that is retried. Threads that race may log twice.

    Args:
        log: gets both records.
        ended: text of the record that is logged at the first success.
        extra: of both records.
    """

    def __init__(self, log: logging.Logger, ended: str, **extra: str) -> None:
        self._log = log
        self._ended = ended
        self._extra = extra
        self.is_on = False
        """True if the last attempt failed."""

    def failed(self, text: str, *args: object, error: BaseException | None = None) -> None:
        """Log the first failure: as a warning, or with the traceback of an unforeseen `error`."""
        if not self.is_on:
            level = logging.WARNING if error is None else logging.ERROR
            self._log.log(level, text, *args, exc_info=error, extra=self._extra)
        self.is_on = True

    def succeeded(self) -> None:
        """Log the end of the outage, if there was one."""
        if self.is_on:
            self._log.warning("%s", self._ended, extra=self._extra)
        self.is_on = False
