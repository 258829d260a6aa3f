"""A program that can write no file, whose HTTP server gives an answer of the largest size."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import Any

from lockclient.service.http_server import MAX_ANSWER_BYTES, HttpServer


def large(_: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [("Content-Length", str(MAX_ANSWER_BYTES))])
    return [b"x" * MAX_ANSWER_BYTES]


resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
server = HttpServer(large, ("127.0.0.1", 0))
server.start()
print(server.url, flush=True)
sys.stdin.read()
server.close()
