"""Network, TLS and local errors: the reason of each, inside any wrapper."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lockclient.stores.common.network_errors import Cause, Reason, reason_in, reason_of
from tests.support.certificates import Authority, Pair


def of_number(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (of_number(errno.ECONNREFUSED), Reason.REFUSED),
        (of_number(errno.EHOSTUNREACH), Reason.NO_ROUTE),
        (of_number(errno.EMFILE), Reason.NO_DESCRIPTORS),
        (of_number(errno.EADDRNOTAVAIL), Reason.NO_PORTS),
        (socket.gaierror(-2, "Name or service not known"), Reason.NO_ADDRESS),
        (ConnectionResetError("closed"), Reason.CLOSED),
        (TimeoutError("timed out"), Reason.NO_ANSWER),
        (RuntimeError("can't start new thread"), Reason.NO_THREADS),
        (ValueError("a job named handshake"), Reason.HANDSHAKE),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "ca.pem"), Reason.FILES),
        (MemoryError(), Reason.NO_MEMORY),
        (ValueError("no JSON"), None),
    ],
)
def test_a_wrapped_error_has_the_reason_of_the_innermost(
    error: Exception, reason: Reason | None
) -> None:
    assert reason_of(error) is reason
    wrapper = OSError("goaway")
    wrapper.__cause__ = error
    assert reason_of(wrapper) is reason
    if isinstance(error, OSError) and error.errno in (errno.ECONNREFUSED, errno.EMFILE):
        assert reason_in(f"connect: {error.strerror} (1)") is reason


def test_each_error_has_words() -> None:
    """A file is named; an error without a text is named by its kind."""
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "ca.pem")
    assert "can't be used: " in Cause.of_error(missing).text
    assert "'ca.pem'" in Cause.of_error(missing).text
    assert "without an answer" in Cause.of_error(StopIteration()).text
    assert Cause.of_error(KeyError()).text == "KeyError()"


def test_tls_errors_are_recognized_by_the_number_of_openssl(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    expired = authority.issue("old.test", until=datetime.now(timezone.utc) - timedelta(days=1))
    for pair, name, trusted, reason in (
        (expired, "old.test", authority, Reason.EXPIRED),
        (authority.issue("a.test"), "b.test", authority, Reason.OTHER_NAME),
        (authority.issue("a.test"), "a.test", stranger, Reason.UNTRUSTED),
    ):
        context = ssl.create_default_context(cafile=trusted.cacert)
        with pytest.raises(ssl.SSLError) as met, closing(served(pair)) as sock:
            context.wrap_socket(sock, server_hostname=name)
        assert reason_of(met.value) is reason


def test_a_key_of_another_certificate_is_recognized(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with pytest.raises(ssl.SSLError) as met:
        ssl.create_default_context().load_cert_chain(
            authority.issue("a.test").cert, authority.issue("b.test").key
        )
    assert reason_of(met.value) is Reason.OTHER_KEY


def served(pair: Pair) -> socket.socket:
    """Return a connection to a server that shakes hands once with that certificate."""
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)

    def serve() -> None:
        with closing(theirs):
            try:
                context.wrap_socket(theirs, server_side=True)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    return ours
