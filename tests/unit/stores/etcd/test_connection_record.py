"""Failed requests of a member: they renew its connection and its token, and are logged.

That a new one finds renewed certificates and a new address is in `integration/test_connections`.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from lockclient.errors import StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import connection, failover
from lockclient.stores.etcd.wire.channels import Borrowed
from lockclient.stores.etcd.wire.connection import Connection
from lockclient.stores.etcd.wire.failover import COOL_DOWN_S, MAX_REASONS, Failover, Tries
from lockclient.stores.etcd.wire.rpc_methods import TXN
from tests.simulation.members import Failed as Error
from tests.support.fake_clock import FakeClock

Code = grpc.StatusCode

REFUSED = Error(Code.UNAVAILABLE, "failed to connect to all addresses; Connection refused")
UNTRUSTED = Error(Code.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED")
LATE = Error(Code.DEADLINE_EXCEEDED)
STALE = Error(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")
LEADERLESS = Error(Code.UNAVAILABLE, "etcdserver: no leader")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    for module in (connection, failover):
        monkeypatch.setattr(module, "monotonic", made)
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
def test_a_failing_connection_is_renewed_every_two_seconds(
    clock: FakeClock, errors: list[Any], made_anew_at: list[float]
) -> None:
    moments = list[float]()

    class Renewed(Connection):
        made_at = clock.now

        def renew(self, since: float) -> None:
            self.made_at = since
            moments.append(since)

    connection = Renewed()
    for call in range(80):
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
        connection.renew(clock.now)
        connection.stub(TXN)
    assert client.channel is channel
    assert asked == [TXN.path] * 3


def test_each_reason_of_an_outage_is_logged_once(
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


def tries(failover: Failover, number: int) -> list[Tries]:
    """Return so many requests, each of which has been sent."""
    sent = [Tries(failover, Deadline.after(60), None) for _ in range(number)]
    for request in sent:
        member, _ = request.next()
        request.metadata = member.metadata()
    return sent


def test_a_request_with_a_stale_token_does_not_discard_the_new_token() -> None:
    failover = Failover(EtcdLocation(("one:2379",), user="ann", password="secret"))
    member = failover.members[0]
    member.token = "of yesterday"
    first, second = tries(failover, 2)
    first.failed(STALE)
    assert member.token is None, "so that it is asked for another"
    member.token = "of today"
    second.failed(STALE)
    assert member.token == "of today"


def test_after_a_failure_another_member_is_next_however_late(clock: FakeClock) -> None:
    """A stream is opened again after a pause as long as the time in which a member cools down."""
    failover = Failover(EtcdLocation(("one:2379", "two:2379")))
    for number in (0, 1, 0):
        assert failover.next() is failover.members[number]
        failover.failed(failover.members[number])
        clock.now += COOL_DOWN_S + 0.1


def test_a_request_cancelled_by_close_has_an_unknown_outcome() -> None:
    failover = Failover(EtcdLocation(("one:2379",)))
    (request,) = tries(failover, 1)
    failover.closed = True
    with pytest.raises(StoreClosed) as raised:
        request.failed(Error(Code.CANCELLED, "Channel closed!"))
    assert raised.value.unknown


@pytest.mark.parametrize("answered", [True, False])
def test_an_etcd_that_answers_other_requests_is_not_called_unreachable(
    answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    failover = Failover(EtcdLocation(("one:2379",)))
    (late,) = tries(failover, 1)
    failover.answers += answered
    late.failed(LATE)
    assert ("does not answer" in caplog.text) is not answered
