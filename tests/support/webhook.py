"""A web server that receives messages of chats and of Alertmanager."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import Any, TypeVar

from tests.support.web_server import serving

_Its = TypeVar("_Its", bound="Webhook")
_MAX_WAIT_S = 120.0


class Webhook:
    """Remembers the messages that came, JSON objects, if it is to answer 200.

    Args:
        port: where it listens; 0: on a free one.
    """

    def __init__(self, port: int = 0) -> None:
        self.messages: list[dict[str, Any]] = []
        self.status = 200
        self.answers = threading.Event()
        """Cleared: it takes messages, and answers nobody before this is set."""
        self.answers.set()
        self._port = port
        self._running = ExitStack()

    def _answer(self, body: bytes) -> tuple[int, str]:
        if self.status == 200:
            self.messages.append(json.loads(body))
        self.answers.wait(_MAX_WAIT_S)
        return self.status, ""

    def __enter__(self: _Its) -> _Its:
        self.host = self._running.enter_context(serving(self._answer, self._port))
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._running.close()
