"""When a connection to a member is made anew, on a clock of the test's own.

That a new one finds renewed certificates and a new address is in `integration/test_connections`.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import failover
from lockclient.stores.etcd.wire.etcd3_client import Borrowed
from lockclient.stores.etcd.wire.failover import MAX_REASONS, Connection, Failover
from lockclient.stores.etcd.wire.rpc_methods import TXN
from tests.support.fake_clock import FakeClock

Code = grpc.StatusCode


class Error(grpc.RpcError):
    def __init__(self, code: Code, details: str = "") -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> Code:
        return self._code

    def details(self) -> str:
        return self._details


REFUSED = Error(Code.UNAVAILABLE, "failed to connect to all addresses; Connection refused")
UNTRUSTED = Error(Code.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED")
LATE = Error(Code.DEADLINE_EXCEEDED)
LEADERLESS = Error(Code.UNAVAILABLE, "etcdserver: no leader")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(failover, "monotonic", made)
    return made


@pytest.mark.parametrize(
    ("errors", "made_anew_at"),
    [
        ([REFUSED], [102.125, 104.25, 106.375, 108.5]),
        ([UNTRUSTED, REFUSED], [102.125, 104.25, 106.375, 108.5]),
        ([REFUSED] * 8 + [LEADERLESS], []),  # an answer in between
        ([LATE], []),  # a slow member gets no new connections
        ([LEADERLESS], []),
    ],
    ids=["refused", "untrusted", "answers in between", "late", "without a leader"],
)
def test_one_that_fails_for_two_seconds_is_made_anew_every_two(
    clock: FakeClock, errors: list[Any], made_anew_at: list[float]
) -> None:
    connection, moments = Connection(), list[float]()
    connection.made_at = clock.now
    for call in range(80):
        if connection.is_due():
            connection.made_at = clock.now
            moments.append(clock.now)
        connection.note(errors[call % len(errors)])
        clock.now += 0.125
    assert moments == made_anew_at


def test_a_borrowed_client_keeps_its_channel(clock: FakeClock) -> None:
    """However long it fails: the channel is its owner's, and is neither closed nor replaced."""
    asked: list[str] = []
    channel = SimpleNamespace(unary_unary=lambda path, **_: asked.append(path))
    client = SimpleNamespace(channel=channel, metadata=())
    connection = Borrowed(client)
    for _ in range(3):
        connection.note(REFUSED)
        clock.now += 5
        assert connection.is_due()
        connection.renew(clock.now)
        connection.stub(TXN)
    assert client.channel is channel
    assert asked == [TXN.path] * 3


def test_the_log_says_why_an_outage_goes_on(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    state = Failover(EtcdLocation(("one:1",)))
    for _ in range(3):
        for trouble in ("connection refused", "TLS: it is not trusted"):
            state.report(trouble)
            clock.now += 1
    state.report(None)
    for number in range(1000):  # a reason that always changes does not fill the log
        state.report(f"from port {number}")
    assert [record.getMessage() for record in caplog.records][:4] == [
        "etcd at one:1 does not answer (connection refused); retrying.",
        "etcd at one:1 still does not answer (TLS: it is not trusted); retrying.",
        "etcd answers again after 6.0 s.",
        "etcd at one:1 does not answer (from port 0); retrying.",
    ]
    assert len(caplog.records) == 3 + MAX_REASONS
