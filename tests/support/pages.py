"""HTTP requests with any path and any header, without a client's normalization."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """An answer."""

    status: int
    text: str
    headers: http.client.HTTPMessage

    @property
    def json(self) -> Any:
        """The parsed body; it must be JSON."""
        return json.loads(self.text)


def request(url: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Ask at the address of a URL: GET, or where there is a body, POST of it as JSON."""
    method, words = ("GET", None) if body is None else ("POST", json.dumps(body))
    kind = {} if body is None else {"Content-Type": "application/json"}
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        connection.request(method, path, words, {**kind, **headers})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode(errors="replace"), answer.headers)
