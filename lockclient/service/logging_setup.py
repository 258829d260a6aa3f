"""Logging of the services: text or JSON, one line for each event, with the fields of a lock."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from lockclient.model.clocks import monotonic
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.service.rate_limits import RateLimits
from lockclient.text.escaping import ascii_json, without_secrets
from lockclient.text.log_format import PlainFormatter

_FIELDS = ("event", "lock", "uuid", "hostname")
MAX_OTHERS_LINES_A_MINUTE = 20
"""Lines that waitress may log in a minute: clients can provoke them."""
MAX_OTHERS_CHARS = 2000
"""Characters of each of them."""
MAX_FIELD_CHARS = 500
"""Characters of a text from outside in a field."""


def log_fields(event: str, holder: Holder, removal: Removal | None = None) -> dict[str, object]:
    """Return the `extra` of a logging call about a lock: its fields in JSON.

    A removal record is logged in full, because the store keeps it for some days only, or not at all
    if it is out of space.
    """
    known = {"lock": holder.name, "uuid": holder.uuid, "hostname": holder.hostname}
    texts = {field: text and text[:MAX_FIELD_CHARS] for field, text in known.items()}
    return {"event": event, **texts, "removal": removal}


class RateFilter(logging.Filter):
    """Passes a few records a minute; the next one has the number of those left out.

    For loggers whose records clients can provoke.

    Args:
        limit: records in a minute.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        limit: int = MAX_OTHERS_LINES_A_MINUTE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__()
        self._limit = limit
        self._passed = RateLimits(clock)
        self._left_out = 0
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        with self._lock:
            if self._passed.hit({(): self._limit}) is None:
                self._left_out += 1
                return False
            left_out, self._left_out = self._left_out, 0
        text = record.getMessage()[:MAX_OTHERS_CHARS]
        more = f" ({left_out} more of this logger were left out before.)" if left_out else ""
        record.msg, record.args = f"{text}{more}", ()
        return True


class _TextFormatter(PlainFormatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        text = super().formatMessage(record)
        removal = getattr(record, "removal", None)
        return text if removal is None else f"{text} The record: {ascii_json(removal.written())}"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        found = {field: getattr(record, field, None) for field in _FIELDS}
        entry |= {field: value for field, value in found.items() if value is not None}
        if (removal := getattr(record, "removal", None)) is not None:
            entry["removal"] = removal.facts()
        if record.exc_info:
            entry["exception"] = without_secrets(self.formatException(record.exc_info))
        return ascii_json(entry)


def configure_logging(level: str, style: str) -> None:
    """Log to stderr, one line for each event, as text or JSON. Only programs call this."""
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Operators do not need their records about each job and each queued request.
    for noisy in ("apscheduler", "waitress"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    # Clients can provoke an error with each malformed request. All of waitress's records go through
    # this logger; a filter applies only to records that are logged to its own logger.
    waitress = logging.getLogger("waitress")
    if not any(isinstance(known, RateFilter) for known in waitress.filters):
        waitress.addFilter(RateFilter())
