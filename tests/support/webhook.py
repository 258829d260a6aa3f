"""A web server that gets messages, as chats and Alertmanager send them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any, TypeVar

from tests.support.web_server import serving

_Its = TypeVar("_Its", bound="Webhook")


class Webhook:
    """Remembers the messages that came, JSON objects, if it is to answer 200."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.status = 200
        self._running = ExitStack()

    def _answer(self, body: bytes) -> tuple[int, str]:
        if self.status == 200:
            self.messages.append(json.loads(body))
        return self.status, ""

    def __enter__(self: _Its) -> _Its:
        self.host = self._running.enter_context(serving(self._answer))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
