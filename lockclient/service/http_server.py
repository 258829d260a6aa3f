"""The HTTP server of both services: waitress in a thread of its own, with public settings only.

A few threads answer requests. No thread waits for a client that does not read: waitress buffers the
whole answer, beyond 1 MiB in a temporary file if there is a folder for it. Slow connections up to
the limit delay neither probes nor viewers; beyond the limit waitress accepts no connection until
one ends.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import click
from waitress.server import create_server

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of the largest answer of a service."""

_ABOVE_ANSWERS_BYTES = 4 * MAX_ANSWER_BYTES
"""More than an answer has: a thread waits for the reader of more unread bytes than that."""


class HttpServer:
    """Serves a WSGI application in a thread of its own.

    Args:
        proxied: the application reads `X-Forwarded-…` headers; else waitress removes them.

    Raises:
        click.ClickException: the address can't be listened on.
    """

    def __init__(self, app: Any, listen: tuple[str, int], *, proxied: bool = False) -> None:
        host, port = listen
        try:
            self._server: Any = create_server(
                _closing_after_bodies(app),
                host=host,
                port=port,
                threads=8,
                asyncore_use_poll=True,
                # Of 1,024 open files, which most systems allow a process.
                connection_limit=500,
                channel_timeout=30,
                cleanup_interval=10,
                outbuf_high_watermark=_ABOVE_ANSWERS_BYTES,
                outbuf_overflow=_bytes_in_memory(),
                clear_untrusted_proxy_headers=not proxied,
                max_request_header_size=32 * 1024,
                max_request_body_size=64 * 1024,
                expose_tracebacks=False,
                ident=None,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise click.ClickException(
                f"Can't listen on {host}:{port}: {reason}. End what listens there, or give "
                "another --listen HOST:PORT."
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._port()}"
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def trouble(self) -> str | None:
        """Return a sentence if the thread has ended, else None."""
        return None if self._thread.is_alive() else "The thread that answers HTTP has ended."

    def close(self) -> None:
        """Let running requests end, a second at most; then stop listening. New ones get no answer.

        After its request, a thread of waitress writes to a pipe that `close` of waitress closes. So
        the threads end first. If one still runs, all stays open until the process ends: when that
        thread writes, the pipe's number could belong to another file.
        """
        self._is_closing = True
        dispatcher = self._server.task_dispatcher
        dispatcher.shutdown(timeout=1)
        if not dispatcher.threads:
            self._server.close()

    def _port(self) -> int:
        listening = getattr(self._server, "effective_listen", None)  # a name of several addresses
        return int(listening[0][1] if listening else self._server.effective_port)

    def _serve(self) -> None:
        try:
            self._server.run()
        except OSError:  # it polls a socket that `close` has just closed
            if not self._is_closing:
                raise


def _bytes_in_memory() -> int:
    """Return the bytes beyond which an unread answer is moved to a temporary file."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # no folder for one: a read-only root without /tmp
        return _ABOVE_ANSWERS_BYTES
    return 1 << 20


def _closing_after_bodies(app: Any) -> Any:
    """Wrap a WSGI application: a request with a body is the last one of its connection.

    waitress ends a body by `Transfer-Encoding` where a proxy may end it by `Content-Length`. Then
    the rest of a client's body would follow as a request of the proxy, with any user's name. RFC
    9112 (6.1) has such a connection closed. An application can't see both headers, and waitress
    closes a connection after an answer without a length.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
            return start_response(status, kept, *error)

        if "CONTENT_LENGTH" not in environ:
            found: Iterable[bytes] = app(environ, start_response)
            return found
        return _without_length(app(environ, start))

    return answer


def _without_length(found: Any) -> Iterator[bytes]:
    try:
        yield from found
    finally:
        if hasattr(found, "close"):
            found.close()
