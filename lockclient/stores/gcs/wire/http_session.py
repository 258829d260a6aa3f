"""HTTP sessions with total deadlines: one for connecting, and one for the whole answer.

A timeout of `requests` counts for each address that is tried and for each piece that arrives. So a
host with twenty silent addresses takes twenty timeouts, and one that sends a byte now and then
takes any number of them.

The session is one of `requests`: google-auth imports that package anyway, and it reads proxies,
NO_PROXY and certificates from the environment.

`_new_conn` of urllib3, which makes a connection's socket, is not public: nothing else lets TLS
begin with the time that connecting has left. So pyproject.toml keeps urllib3 below its next major
version, and `tests/unit/house/test_requirements.py` checks that urllib3 calls it.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping
from http.client import HTTPResponse
from typing import Any, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from lockclient.model.clocks import Deadline


class HttpAnswer(NamedTuple):
    """An answer of the bucket; `json` is empty if the body is no JSON object."""

    status: int
    body: bytes
    json: Mapping[str, Any]


_MAX_CONNECTIONS = 100


def session_with_deadlines() -> requests.Session:
    """Return a session whose timeouts each bound all of connecting, and all of an answer."""
    session = requests.Session()
    # Without any, requests replaces the access token by a user and password from ~/.netrc.
    session.auth = lambda request: request
    for scheme in ("https://", "http://"):
        session.mount(scheme, _Adapter(pool_maxsize=_MAX_CONNECTIONS, max_retries=0))
    return session


class _Adapter(HTTPAdapter):
    def get_connection_with_tls_context(self, *args: Any, **how: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **how)
        pool.ConnectionCls = _TlsConnection if pool.scheme == "https" else _Connection
        return pool


class _DeadlineReader(io.RawIOBase):
    """Reads an answer, all of it within the socket's timeout."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        timeout = sock.gettimeout()
        assert timeout is not None, "each request has a timeout"
        self._deadline = Deadline.after(timeout)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline.expired():
            raise TimeoutError("timed out")
        # The next request on this connection sets its own.
        self._sock.settimeout(self._deadline.remaining())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **how: Any) -> None:
        super().__init__(sock, *args, **how)
        self.fp.close()
        self.fp = io.BufferedReader(_DeadlineReader(sock))


class _Connection(HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        """Connect, with a proxy's tunnel and TLS.

        Raises:
            NewConnectionError, ConnectTimeoutError: for any reason, so that a failure to connect
                is known from a request that was sent.
        """
        try:
            super().connect()
        except (NewConnectionError, ConnectTimeoutError):
            raise
        except Exception as error:
            raise NewConnectionError(self, str(error) or type(error).__name__) from error

    def _new_conn(self) -> socket.socket:
        """Connect to one of the host's addresses within one timeout.

        Each address but the last has half of the time that is left, so that a silent one leaves
        time for the next.
        """
        whole, name = self.timeout, self.host
        assert whole is not None, "each request has a timeout"
        until = Deadline.after(whole)
        try:
            found = socket.getaddrinfo(name, self.port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        except OSError:
            addresses = [name]  # connecting to it raises the reason
        failure: Exception = ConnectTimeoutError(self, f"No connection to {name} in {whole:g} s.")
        try:
            for number, address in enumerate(addresses, 1):
                left = until.remaining()
                if left <= 0:
                    break
                self.host = address
                self.timeout = left if number == len(addresses) else left / 2
                try:
                    sock = super()._new_conn()
                    sock.settimeout(max(until.remaining(), 0.001))  # for TLS
                    return sock
                except Exception as error:  # noqa: BLE001 - the last one is raised
                    failure = error
        finally:
            self.timeout, self.host = whole, name
        raise failure


class _TlsConnection(_Connection, HTTPSConnection):
    """Its `connect` is that of `_Connection`, around that of `HTTPSConnection`."""
