"""When a connection to a member is made anew, on a clock of the test's own."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest

from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import channels, failover
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.etcd3_client import Borrowed
from lockclient.stores.etcd.wire.failover import MAX_REASONS, Failover
from lockclient.stores.etcd.wire.rpc_methods import TXN, WATCH

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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (failover, channels):
        monkeypatch.setattr(module, "monotonic", made)
    return made


class Client:
    """What is borrowed of an `etcd3` client."""

    class channel:  # noqa: N801 - as there
        @staticmethod
        def unary_unary(*_: Any, **__: Any) -> object:
            return object()

    stream_stream = None
    metadata = ()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The endpoints to which channels were made."""
    found: list[str] = []

    def note(_api: object, _location: object, endpoint: str, *, again: bool) -> Any:
        assert again is bool(found)
        found.append(endpoint)
        return grpc.insecure_channel(endpoint)

    monkeypatch.setattr(channels, "open_channel", note)
    return found


def failing(channel: Channels, error: Error, method: Any = TXN) -> None:
    """Make a call that ends with this error."""
    connection = channel.connection(channel.failover.members[0], method)
    connection.stub(method)
    connection.note(error)


@pytest.mark.parametrize("method", [TXN, WATCH], ids=["unary", "stream"])
def test_a_connection_that_fails_for_two_seconds_is_made_anew_every_two(
    clock: Clock, made: list[str], method: Any
) -> None:
    channel = Channels(EtcdLocation(("one:1",)))
    moments = []
    for _ in range(80):
        before = len(made)
        failing(channel, UNTRUSTED if clock.now < 102 else REFUSED, method)
        if len(made) > before:
            moments.append(clock.now)
        clock.now += 0.125
    assert moments == [100, 102.125, 104.25, 106.375, 108.5]


def test_one_that_answers_in_between_stays(clock: Clock, made: list[str]) -> None:
    channel = Channels(EtcdLocation(("one:1",)))
    for _ in range(20):
        failing(channel, REFUSED)
        clock.now += 1
        channel.connection(channel.failover.members[0], TXN).failing_since = None
        clock.now += 1
    assert len(made) == 1


@pytest.mark.parametrize("error", [LATE, LEADERLESS], ids=["late", "without a leader"])
def test_a_member_that_is_slow_or_says_no_gets_no_new_connections(
    clock: Clock, made: list[str], error: Error
) -> None:
    channel = Channels(EtcdLocation(("one:1",)))
    for _ in range(60):
        failing(channel, error)
        clock.now += 1
    assert len(made) == 1


def test_one_that_failed_long_ago_is_made_anew_before_the_next_call(
    clock: Clock, made: list[str]
) -> None:
    """Other members have answered meanwhile."""
    channel = Channels(EtcdLocation(("one:1", "two:1")))
    failing(channel, REFUSED)
    clock.now += 60
    channel.connection(channel.failover.members[0], TXN).stub(TXN)
    assert made == ["one:1", "one:1"]


def test_the_connection_of_a_borrowed_client_is_never_made_anew(
    clock: Clock, made: list[str]
) -> None:
    channel = Channels(EtcdLocation(("one:1",)), Borrowed(Client()))
    for _ in range(10):
        failing(channel, REFUSED)
        clock.now += 1
    assert made == []


def test_the_log_says_why_an_outage_goes_on(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    state = Failover(EtcdLocation(("one:1",)))
    for _ in range(3):
        for trouble in ("connection refused", "TLS: it is not trusted"):
            state.report(trouble)
            clock.now += 1
    state.report(None)
    state.report("connection refused")
    assert [record.getMessage() for record in caplog.records] == [
        "etcd at one:1 does not answer (connection refused); retrying.",
        "etcd at one:1 still does not answer (TLS: it is not trusted); retrying.",
        "etcd answers again after 6.0 s.",
        "etcd at one:1 does not answer (connection refused); retrying.",
    ]


def test_a_reason_that_always_changes_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    state = Failover(EtcdLocation(("one:1",)))
    for number in range(1000):
        state.report(f"from port {number}")
    assert len(caplog.records) == MAX_REASONS
