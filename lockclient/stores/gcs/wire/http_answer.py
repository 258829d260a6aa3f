"""One HTTP answer of the bucket: status, body, JSON."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class HttpAnswer(NamedTuple):
    """What the bucket answered."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return its JSON."""
        found: dict[str, Any] = json.loads(self.body)
        return found
