"""Which member is asked next, for how long, and what a failure means. No I/O, no waiting.

A try has a deadline much shorter than the caller's; a member that failed is left alone for a
moment and the next one is asked. Every request may be sent twice (see `transactions`). Threads and
asyncio drive the same `Tries`, and share what one of them has learnt about the members.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message

from lockclient.errors import StoreClosed, StoreError
from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.faults import Fault, diagnose, more_telling, reason, refused, unavailable
from lockclient.etcd.methods import Metadata
from lockclient.settings import Settings
from lockclient.timing import Deadline

log = logging.getLogger(__name__)

FIRST_TRY = 1.0
"""Seconds that the first try may take; each later round of tries may take twice as long."""
LONGEST_TRY = 8.0
COOL_DOWN = 1.0
"""Seconds that a member that failed is asked last."""
NEW_TOKENS = 10
"""How often one request may ask for a new token: each change of users or roles makes all tokens
stale, and such changes come in rows."""


class Refusal(Exception):
    """A member answered with something that trying again won't change.

    Attributes:
        fault: what it means.
        error: gRPC's own.
        said: ours; its `unknown` tells whether an earlier sending may have happened.
    """

    def __init__(self, fault: Fault, error: grpc.RpcError, said: StoreError) -> None:
        super().__init__(fault.name)
        self.fault = fault
        self.error = error
        self.said = said


@dataclass(slots=True, eq=False)
class Member:
    """What is known about one member of the cluster."""

    endpoint: str
    cooling_until: float = 0.0
    token: str | None = None
    """Where it was given: a simple one is renewed by use, but only where it is used. Empty: none
    is wanted. None: ask for one."""

    def no_token(self, error: grpc.RpcError) -> None:
        """Go on without a token if none is wanted, else raise the error."""
        if "authentication is not enabled" not in (error.details() or ""):
            raise error
        self.token = ""

    def metadata(self) -> Metadata | None:
        """Return what a request carries."""
        return [("token", self.token)] if self.token else None


class Failover:
    """The members of one cluster, the one that answered last first."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.authentication = wire.Authenticate(
            name=settings.user or "", password=settings.password or ""
        )
        self.members = [Member(each) for each in settings.endpoints]
        self.closed = False
        self._good = self.members[0]
        self._down_since: float | None = None

    def next(self) -> Member:
        """Return the member that last answered, or else the one whose failure is longest ago."""
        if len(self.members) > 1 and self._good.cooling_until > time.monotonic():
            self._good = min(self.members, key=lambda each: each.cooling_until)
        return self._good

    def failed(self, member: Member) -> None:
        """Ask this member last for a moment."""
        member.cooling_until = time.monotonic() + COOL_DOWN

    def report(self, trouble: str | None) -> None:
        """Log the begin and the end of an outage, once each."""
        if trouble is None and self._down_since is not None:
            log.warning("etcd answers again after %.1f s.", time.monotonic() - self._down_since)
            self._down_since = None
        elif trouble is not None and self._down_since is None:
            log.warning(
                "etcd at %s does not answer (%s); trying on.",
                ", ".join(self.settings.endpoints),
                trouble,
            )
            self._down_since = time.monotonic()


class Tries:
    """One request: send it as `next` says, and tell it what came of that, until it is answered."""

    __slots__ = (
        *("_count", "_deadline", "_failover", "_last", "_member", "_new_tokens", "_request"),
        "resent",
    )

    def __init__(self, failover: Failover, request: Message, deadline: Deadline) -> None:
        self._failover = failover
        self._request = request
        self._deadline = deadline
        self._count = 0
        self._last = "the time was up before it could be asked"
        self._member: Member | None = None
        self._new_tokens = 0
        self.resent = False
        """Whether an earlier sending than the last one may have happened as well."""

    def next(self) -> tuple[Member, float]:
        """Return whom to ask, and the seconds that the try may take.

        Raises:
            StoreUnavailable: the time is up.
            StoreClosed: the connections are.
        """
        failover = self._failover
        member = self._member
        if member is None or not self._new_tokens:  # who wants a new token is asked again with it
            member = self._member = failover.next()
        longest = min(LONGEST_TRY, FIRST_TRY * 2 ** (self._count // len(failover.members)))
        timeout = min(longest, self._deadline.remaining())
        if failover.closed:
            raise self.closed()
        if timeout <= 0:
            raise unavailable(failover.settings.endpoints, self._last, unknown=self.resent)
        return member, timeout

    def closed(self) -> StoreClosed:
        """Return what says that the connection was closed, so that no more is tried."""
        where = ", ".join(self._failover.settings.endpoints)
        return StoreClosed(f"The connection to etcd at {where} was closed.", unknown=self.resent)

    def failed(self, error: grpc.RpcError) -> float:
        """Return the seconds to wait before the next try.

        Raises:
            Refusal: the error is an answer.
        """
        failover, member = self._failover, self._member
        assert member is not None
        fault = diagnose(error)
        renewable = bool(failover.authentication.name) and self._new_tokens < NEW_TOKENS
        if fault is Fault.NEW_TOKEN and renewable:
            member.token = None
            self._last = reason(error)
            self._new_tokens += 1
            return min(0.05 * (self._new_tokens - 1), self._deadline.remaining())
        if fault not in (Fault.NOT_SENT, Fault.UNKNOWN):
            said = refused(error, member.endpoint, failover.settings, self._request)
            said.unknown = self.resent
            raise Refusal(fault, error, said)
        self._new_tokens = 0
        self.resent = self.resent or fault is Fault.UNKNOWN
        self._last = more_telling(self._last, reason(error))
        failover.failed(member)
        self._count += 1
        if self._count % len(failover.members):
            return 0.0
        failover.report(self._last)  # all failed: a pause, never a busy loop
        return min(0.05 * 2.0 ** min(self._count, 4), self._deadline.remaining())

    def answered(self) -> None:
        """Take note that the last try was answered."""
        self._failover.report(None)
