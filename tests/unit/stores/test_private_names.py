"""What the stores use of libraries though it is not public: what breaks when it goes."""

from __future__ import annotations

import socket

import pytest
from urllib3.connection import HTTPConnection, HTTPSConnection
from valkey.connection import Connection as PlainConnection

from tests.unit.house.test_requirements import requirements


@pytest.mark.parametrize(("extra", "name"), [("gcs", "urllib3"), ("valkey", "valkey")])
def test_the_next_major_version_is_not_allowed(extra: str, name: str) -> None:
    allowed = requirements(extra)[name].specifier
    assert not [major for major in ("3.0", "7.0", "8.0") if major in allowed]


@pytest.mark.parametrize("kind", [HTTPConnection, HTTPSConnection])
def test_urllib3_makes_its_sockets_by_new_conn(kind: type[HTTPConnection]) -> None:
    """Without it a host with addresses that nobody answers takes a timeout for each of them:
    see faults/bucket/test_tries.py."""

    class Refusing(kind):  # type: ignore[valid-type, misc]
        def _new_conn(self) -> socket.socket:
            raise OSError("asked for a socket")

    with pytest.raises(OSError, match="asked for a socket"):
        Refusing("localhost", 1).connect()


def test_valkey_has_its_socket_as_sock() -> None:
    """Who waits for several servers at once has to have it."""
    assert PlainConnection(host="127.0.0.1", port=1)._sock is None  # type: ignore[no-untyped-call]
