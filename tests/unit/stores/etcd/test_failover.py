"""What one request's failed tries mean for the others."""

from __future__ import annotations

import logging

import grpc
import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.failover import Failover, Tries
from tests.unit.stores.etcd.test_errors import Error

STALE = Error(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
LATE = Error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def tries(failover: Failover, number: int) -> list[Tries]:
    """Return so many requests, each of which has been sent."""
    sent = [Tries(failover, wire.Txn(), Deadline.after(60), None) for _ in range(number)]
    for each in sent:
        member, _ = each.next()
        each.metadata = member.metadata()
    return sent


def test_a_new_token_outlives_the_last_request_with_the_stale_one() -> None:
    failover = Failover(EtcdLocation(("one:2379",), user="ann", password="secret"))
    member = failover.members[0]
    member.token = "of yesterday"
    first, second = tries(failover, 2)
    first.failed(STALE)
    assert member.token is None, "so that it is asked for another"
    member.token = "of today"
    second.failed(STALE)
    assert member.token == "of today"


@pytest.mark.parametrize("answered", [True, False])
def test_an_etcd_that_answers_others_is_not_called_away(
    answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    failover = Failover(EtcdLocation(("one:2379",)))
    (late,) = tries(failover, 1)
    failover.answers += answered
    late.failed(LATE)
    assert ("does not answer" in caplog.text) is not answered
