"""The present troubles of a table with its store: sentences for pages, and records for the log."""

from __future__ import annotations

import math
import threading

from lockclient.model.clocks import monotonic
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

READ, FOLLOWED = "read", "followed"

FORGOTTEN_AFTER_S = 10.0
"""Seconds without another unforeseen error after which the trouble is over. Announcements come
every 3 s, so an error that persists shows again sooner."""
LOG_INTERVAL_S = 60.0


class Troubles:
    """The present troubles; once the table is `stopping`, no new one is logged."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._sentences: dict[str, str] = {}
        self._unforeseen = ("", -math.inf)  # and when

    def first(self) -> str:
        sentence, at = self._unforeseen
        recent = sentence if monotonic() - at < FORGOTTEN_AFTER_S else ""
        return next(iter(list(self._sentences.values())), recent)

    def failed(self, what: str, why: object) -> None:
        if not self._sentences and not self._stopping.is_set():  # once for an outage
            log.warning("The locks can't be %s; retrying every second: %s", what, why)
        self._sentences[what] = f"The locks can't be {what}, so what is shown is out of date: {why}"

    def succeeded(self, what: str) -> None:
        if self._sentences.pop(what, None) and not self._sentences:
            log.warning("The locks can be read and followed again.")

    def unforeseen(self, error: Exception) -> None:
        now = monotonic()
        if now - self._unforeseen[1] > LOG_INTERVAL_S:  # once, as long as it lasts
            log.error("Following the locks failed; they are read again.", exc_info=error)
        self._unforeseen = (
            f"Changes could not be processed ({type(error).__name__}: {error}): the log "
            "says where. Everything is read again every second.",
            now,
        )
