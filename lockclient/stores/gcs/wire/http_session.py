"""HTTP sessions with total deadlines: for connecting, and for all of an answer.

A timeout of `requests` counts for each address that is tried and for each piece that arrives: a
host with twenty silent addresses, or one that sends a byte now and then, takes any number of them.

`_new_conn` of urllib3, which makes a connection's socket, is not public: nothing else lets TLS
begin with the time that connecting has left. So pyproject.toml keeps urllib3 below its next major
version, and `tests/unit/house/test_requirements.py` says what breaks without.
"""

from __future__ import annotations

import io
import json
import socket
from http.client import HTTPResponse
from typing import Any, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from lockclient.model.clocks import Deadline


class HttpAnswer(NamedTuple):
    """An answer of the bucket."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return its JSON."""
        found: dict[str, Any] = json.loads(self.body)
        return found


_MAX_CONNECTIONS = 100


def session_with_deadlines() -> requests.Session:
    """Return a session of which each timeout is one for connecting, and one for the answer."""
    session = requests.Session()
    # Without any, requests takes a user and password from ~/.netrc in place of the access token.
    session.auth = lambda request: request
    for scheme in ("https://", "http://"):
        session.mount(scheme, _Adapter(pool_maxsize=_MAX_CONNECTIONS, max_retries=0))
    return session


class _DeadlineReader(io.RawIOBase):
    """Reads an answer, all of it within the time that is given for one piece."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        timeout = sock.gettimeout()
        self._deadline = None if timeout is None else Deadline.after(timeout)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
            if self._deadline.expired():
                raise TimeoutError("timed out")
            # Whoever uses the connection next sets its own.
            self._sock.settimeout(self._deadline.remaining())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _DeadlineResponse(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **how: Any) -> None:
        super().__init__(sock, *args, **how)
        self.fp.close()
        self.fp = io.BufferedReader(_DeadlineReader(sock))


class _DeadlineConnection(HTTPConnection):
    response_class = _DeadlineResponse

    def connect(self) -> None:
        """Connect, with a proxy's tunnel and TLS; all errors of it are of one kind.

        A timeout alone would not tell whether a request was sent.
        """
        try:
            super().connect()
        except (NewConnectionError, ConnectTimeoutError):
            raise
        except Exception as error:
            raise NewConnectionError(self, str(error) or type(error).__name__) from error

    def _new_conn(self) -> socket.socket:
        """Connect to one of the host's addresses within one timeout.

        Each address but the last has half of what is left, so that a silent one leaves time.
        """
        whole, name = self.timeout, self.host
        if not isinstance(whole, float | int):
            return super()._new_conn()
        until = Deadline.after(whole)
        try:
            found = socket.getaddrinfo(name, self.port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        except OSError:
            addresses = [name]  # which says why it can't be found
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
                    sock.settimeout(max(until.remaining(), 0.001))  # TLS has what is left
                    return sock
                except Exception as error:  # noqa: BLE001 - the last one is raised
                    failure = error
        finally:
            self.timeout, self.host = whole, name
        raise failure


class _DeadlineTlsConnection(_DeadlineConnection, HTTPSConnection):
    """Its `connect` is the one above, around that of `HTTPSConnection`."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _DeadlineConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _DeadlineTlsConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **how: Any) -> None:
        super().init_poolmanager(*args, **how)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **how: Any) -> Any:
        manager = super().proxy_manager_for(*args, **how)
        manager.pool_classes_by_scheme = _POOLS
        return manager


_POOLS = {"http": _Pool, "https": _TlsPool}
