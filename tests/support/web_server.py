"""A web server of a test, which answers by a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any

Answering = Callable[[bytes], tuple[int, Any]]
"""From the body of a request, which is empty with GET, to the status and the body: text or JSON."""


@contextmanager
def serving(
    answering: Answering, port: int = 0, headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Run one, which adds these headers; yield where it listens, `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, said = answering(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            kind = "text/html" if isinstance(said, str) else "application/json"
            body = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - as its base class wants it

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
