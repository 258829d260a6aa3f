"""Failover: which member gets the next try, for how long, what a failure means. No I/O, no waiting.

A try has a deadline much shorter than the caller's. After a failure the next member gets a try, and
the failed one none for a second. Every request may be sent twice (see `etcd.requests`). Threads and
event loops drive `Tries`, and share one `Failover`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

import grpc

from lockclient.errors import ClusterMutexError, StoreClosed, StoreError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.network_errors import (
    NOBODY_THERE,
    Cause,
    Reason,
    no_descriptors,
)
from lockclient.stores.common.store_lifecycle import closed
from lockclient.stores.etcd.errors import (
    ErrorKind,
    cause_of,
    diagnose,
    more_telling,
    refused,
    unavailable,
)
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import Metadata
from lockclient.stores.request_types import Delivery
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

FIRST_TRY_S = 1.0
"""Seconds for the first try; in each later round of tries twice as long."""
MAX_TRY_S = 8.0
"""Seconds for any try."""
COOL_DOWN_S = 1.0
"""Seconds after a failure in which a member is asked last."""
MAX_REASONS = 10
"""Reasons that are logged during one outage."""
_NOT_ASKED = Cause(None, "the time was up before it could be asked")
MAX_NEW_TOKENS = 10
"""New tokens for one request: each change of users or roles makes all tokens stale, and an operator
makes several changes in a row."""


class WireError(Exception):
    """A member's answer that a retry won't change.

    Attributes:
        fault: what it means.
        error: the exception of gRPC.
        store_error: the exception for the program.
    """

    def __init__(self, fault: ErrorKind, error: grpc.RpcError, store_error: StoreError) -> None:
        super().__init__(fault.name)
        self.fault = fault
        self.error = error
        self.store_error = store_error


@contextmanager
def as_store_error() -> Iterator[None]:
    """Raise `WireError.store_error` for a `WireError`."""
    try:
        yield
    except WireError as error:
        raise error.store_error from error.error


@dataclass(slots=True, eq=False)
class Endpoint:
    """The state of one member of the cluster."""

    endpoint: str
    cooling_until: float = 0.0
    token: str | None = None
    """The token for this member: each use extends it there, and only there. Empty: the member wants
    none. None: ask for one."""

    def no_token(self, error: grpc.RpcError) -> None:
        """Note that the member wants no token, or raise the error of the request for one."""
        if "authentication is not enabled" not in (error.details() or ""):
            raise error
        self.token = ""

    def metadata(self) -> Metadata | None:
        """Return the metadata of a request to this member."""
        return [("token", self.token)] if self.token else None


class Failover:
    """The members of one cluster.

    Args:
        location: their endpoints.
        renewable: whether connections may be replaced; those of an `etcd3` client may not.
    """

    def __init__(self, location: EtcdLocation, *, renewable: bool = True) -> None:
        self.location = location
        self.renewable = renewable
        self.members = [Endpoint(endpoint) for endpoint in location.endpoints]
        self.closed = False
        self.good = self.members[0]
        """The member that was asked last."""
        self.down_since: float | None = None
        """The monotonic time since which no member has answered."""
        self.answers = 0
        """A number that changes with each answer."""
        self._reasons: dict[str, object] = {}  # logged during this outage

    def authentication(self) -> wire.Authenticate:
        """Return the request for a token, with the password as it is now.

        Raises:
            StoreError: the file of the password can't be used.
        """
        location = self.location
        return wire.Authenticate(
            name=location.user or "", password=location.current_password() or ""
        )

    def next(self, asked: tuple[Endpoint, ...] = ()) -> Endpoint:
        """Return the member that answered last, or the one whose failure is longest ago.

        Args:
            asked: members that are left out.
        """
        if self.good.cooling_until > monotonic() or self.good in asked:
            others = [member for member in self.members if member not in asked]
            self.good = min(others, key=attrgetter("cooling_until"))
        return self.good

    def failed(self, member: Endpoint) -> None:
        """Ask another member next, and this one last for `COOL_DOWN_S`."""
        member.cooling_until = monotonic() + COOL_DOWN_S
        if member is self.good:
            self.good = min(self.members, key=attrgetter("cooling_until"))

    def report(self, trouble: str | None) -> None:
        """Log the begin and the end of an outage, and each reason why it lasts, once.

        Two threads at the same moment may both log the end. (A lock would hang a signal handler.)
        """
        since = self.down_since
        if trouble is None:
            self.down_since, self._reasons = None, {}
            if since is not None:
                log.warning("etcd answers again after %.1f s.", monotonic() - since)
            return
        mine = object()
        if len(self._reasons) >= MAX_REASONS or self._reasons.setdefault(trouble, mine) is not mine:
            return
        self.down_since = monotonic() if since is None else since
        log.warning(
            "etcd at %s %s not answer (%s); retrying.",
            ", ".join(self.location.endpoints),
            "does" if since is None else "still does",
            trouble,
        )


class Tries:
    """The tries of one request: `next` names the member; `failed` says whether to try again.

    `Delivery` says before and after each try whether the request may still arrive.

    Members that do not answer have until the deadline. If every member refuses the connection, the
    request fails at the time that the caller has given (`Deadline.own`). gRPC remembers a refusal
    for a second, without a new attempt to connect, and etcd may listen again by then. So only a
    connection that was made since the request began counts as refused.
    """

    __slots__ = (
        "_answers",
        "_asked",
        "_deadline",
        "_delivery",
        "_failover",
        "_last",
        "_member",
        "_new_tokens",
        "_refusing",
        "_renewed",
        "_rounds",
        "began_at",
        "metadata",
        "renew",
    )

    def __init__(self, failover: Failover, deadline: Deadline, delivery: Delivery | None) -> None:
        self._failover = failover
        self._deadline = deadline
        self._rounds = 0
        self._asked: tuple[Endpoint, ...] = ()  # in this round
        self._renewed: tuple[Endpoint, ...] = ()
        self._refusing: tuple[Endpoint, ...] = ()
        self._last = _NOT_ASKED
        self._member: Endpoint | None = None
        self._new_tokens = 0
        self._delivery = Delivery() if delivery is None else delivery
        self._answers = 0
        self.metadata: Metadata | None = None
        """The metadata of the last try."""
        self.began_at = 0.0
        """The monotonic time at which the last try began."""
        self.renew = False
        """True: the next try goes to the same member by a connection made since `began_at`."""

    def next(self) -> tuple[Endpoint, float]:
        """Return the member to ask, and the seconds for the try.

        Raises:
            StoreUnavailable: the time is up.
            StoreClosed: the connections are closed.
        """
        failover, delivery, now = self._failover, self._delivery, monotonic()
        member = self._member
        # A member that wants a new token is asked again with it.
        if member is None or not (self._new_tokens or self.renew):
            member = failover.good
            if member.cooling_until > now or self._asked:
                member = failover.next(self._asked)
            self._member = member
        self.began_at, self.renew = now, False
        longest = min(MAX_TRY_S, FIRST_TRY_S * 2**self._rounds)
        timeout = min(longest, self._deadline - now)
        if failover.closed:
            raise self._closed()
        refused = len(self._refusing) == len(failover.members)
        if timeout <= 0 or delivery.is_given_up or refused:
            unknown = delivery.is_unknown
            raise unavailable(
                failover.location.endpoints, self._last, unknown=unknown, refused=refused
            )
        delivery.in_flight = True
        self._answers = failover.answers
        return member, timeout

    def _closed(self) -> StoreClosed:
        return closed(self._failover.location, unknown=self._delivery.is_unknown)

    def failed(self, error: Exception) -> float:
        """Return the seconds to wait before the next try, after one that raised `error`.

        Raises:
            WireError: the error is a member's answer.
            StoreClosed: the connections are closed.
            ClusterMutexError: `error` itself; no member was asked.
        """
        failover, self._delivery.in_flight = self._failover, False
        if isinstance(error, grpc.RpcError):
            return self._rpc_failed(error)
        if isinstance(error, ClusterMutexError):
            raise error
        # The system refuses a thread or a descriptor, or a certificate's file is just being
        # replaced: a failed try. Files are read before a request is sent.
        unknown = not isinstance(error, OSError)
        if isinstance(error, ValueError) and not failover.renewable:  # its owner closed the channel
            self._delivery.is_unknown = True
            raise self._closed() from None
        return self._unanswered(cause_of(error), unknown=unknown)

    def _rpc_failed(self, error: grpc.RpcError) -> float:
        failover, member = self._failover, self._member
        assert member is not None
        fault = diagnose(error)
        renewable = bool(failover.location.user) and self._new_tokens < MAX_NEW_TOKENS
        # A request without a token counts as that of the certificate's user, where there is one.
        other_user = fault is ErrorKind.NO_RIGHT and not self._new_tokens
        if renewable and (fault is ErrorKind.NEW_TOKEN or other_user):
            # Only if the member's token is still the stale one: another request may have got a new
            # one meanwhile, and each costs etcd a bcrypt.
            if member.metadata() == self.metadata:
                member.token = None
            self._last = cause_of(error)
            self._new_tokens += 1
            return min(0.05 * (self._new_tokens - 1), self._deadline.remaining())
        if fault not in (ErrorKind.NOT_EXECUTED, ErrorKind.UNKNOWN):
            store_error = refused(error, member.endpoint, failover.location)
            store_error.unknown = self._delivery.is_unknown
            raise WireError(fault, error, store_error)
        cause = cause_of(error, failover.location)
        return self._unanswered(cause, unknown=fault is ErrorKind.UNKNOWN)

    def _unanswered(self, why: Cause, *, unknown: bool) -> float:
        failover, member = self._failover, self._member
        assert member is not None
        self._delivery.is_unknown |= unknown
        if failover.closed:
            raise self._closed() from None
        self._new_tokens = 0
        if why.reason is Reason.NO_DESCRIPTORS:
            raise no_descriptors(failover.location.url(), unknown=self._delivery.is_unknown)
        self._last = more_telling(self._last, why)
        left = self._deadline.own - monotonic()
        is_refusal = left <= 0 and failover.renewable and why.reason in NOBODY_THERE
        is_new = is_refusal and member not in self._refusing
        if is_new and member not in self._renewed:
            self._renewed += (member,)
            self.renew = True
            return 0.0
        failover.failed(member)
        self._asked += (member,)
        if is_new:
            self._refusing += (member,)
        if len(self._asked) < len(failover.members):
            return 0.0
        # All members failed. One that answered another request meanwhile is slow, not unreachable.
        self._asked = ()
        self._rounds += 1
        if failover.answers == self._answers:
            failover.report(self._last.text)
        if is_new:  # happens once for each member
            return 0.0
        pause = min(0.05 * 2.0 ** min(self._rounds, 4), self._deadline.remaining())
        return min(pause, left) if left > 0 else pause
