"""The network between clients and the simulated etcd: delays, losses, late requests.

A channel here has the interface of one of grpcio's, or of grpc.aio's. A request arrives when it
arrives: its sender may have given up, may be frozen, or may have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc

from lockclient.stores.etcd.wire import messages_pb2 as wire
from tests.simulation.etcd import Refusal, SimulatedEtcd
from tests.simulation.hub import Event, Hub, Process
from tests.simulation.members import DELAY_S, Failed, Member, nobody_there
from tests.simulation.streams import Stream

LAG_S = 0.3
"""Seconds by which a watch lags at most, while a member is behind."""
LATEST_S = 60.0
"""Seconds after which a request that is late arrives at the latest."""


class Network:
    """The members of one etcd, and the ways to them.

    Args:
        hub: the run.
        etcd: what they all have.
        trouble: says by how much the messages of a process are in trouble now: the part of its
            requests that is lost, of its answers that are, and of what is late.
    """

    def __init__(
        self,
        hub: Hub,
        etcd: SimulatedEtcd,
        members: int,
        trouble: Callable[[Process], tuple[float, float, float]],
    ) -> None:
        self.hub, self.etcd = hub, etcd
        self.members = {f"m{number}:2379": Member(f"m{number}:2379") for number in range(members)}
        self.lag_s = LAG_S
        self.unanswered = b""
        """Part of the requests that are lost."""
        self.at_request: dict[str, Callable[[], object]] = {}
        """Called while the next request of a process is on its way, or soon after it."""
        self.at_claim: dict[str, Callable[[], object]] = {}
        """Called so with the next claim, whose answer is lost."""
        self.requests = 0
        self.faults = 0
        self.under_way = 0
        self._trouble = trouble

    def open_channel(
        self, api: Any, _location: object, endpoint: str, *, again: bool = False
    ) -> Channel:
        """Stand for `rpc_methods.open_channel`."""
        return Channel(self, self.members[endpoint], on_a_loop=api is grpc.aio)

    # ------------------------------------------------------------ single requests

    def send(
        self, member: Member, path: str, request: Any, answered: Callable[[Any], object]
    ) -> None:
        """Send a request for the process that runs; what comes of it comes later, or never."""
        hub, process = self.hub, self.hub.process
        if process.name in self.at_request:
            soon = hub.now + 2 * DELAY_S * hub.draw("at request", process.name)
            hub.at(soon, self.at_request.pop(process.name), process)
        lost, unanswered, late = self._trouble(process)
        # All of it now, whatever of it is needed: as many numbers for each request.
        pause, back, is_lost, is_late, how_late, is_silent = (
            hub.draw_for(process) for _ in range(6)
        )
        pause *= DELAY_S
        if member.down_until > hub.now or process.cut_off_until > hub.now:
            self.faults += 1
            hub.at(hub.now + pause, lambda: answered(nobody_there()), process)
            return
        if is_lost < lost:
            self.faults += 1
            return
        if is_late < late:
            self.faults += 1
            pause = 0.5 + LATEST_S * how_late**3
        message, silent = request.SerializeToString(), is_silent < unanswered
        if process.name in self.at_claim and _is_claim(request):
            hub.at(hub.now + 2 * DELAY_S * back, self.at_claim.pop(process.name), process)
            silent = True
        if self.unanswered and self.unanswered in message:
            return

        def arrive() -> None:
            held_back = max(member.frozen_until, member.without_leader_until, member.down_until)
            if held_back > hub.now:  # it is in the member's buffers until then
                hub.at(held_back + DELAY_S * back, arrive)
                return
            self.under_way -= 1
            answer = self._apply(process, path, type(request).FromString(message))
            if silent:
                self.faults += 1
                return
            hub.at(hub.now + DELAY_S * back, lambda: answered(answer), process)

        self.under_way += 1
        hub.at(hub.now + pause, arrive)

    def _apply(self, process: Process, path: str, request: Any) -> Any:
        self.requests += 1
        self.hub.happened(process.name, path.rpartition("/")[2])
        self.settle()
        method = path.rpartition("/")[2]
        do = {
            "Txn": self.etcd.txn,
            "Range": self.etcd.range,
            "LeaseGrant": self.etcd.grant,
            "LeaseKeepAlive": self.etcd.keep_alive,
            "LeaseRevoke": self.etcd.revoke,
        }[method]
        try:
            answer = do(request)
        except Refusal as refusal:
            answer = _refused(str(refusal))
        self.publish()
        return answer

    def settle(self) -> None:
        """Bring etcd to this moment."""
        self.etcd.now = self.hub.now
        self.etcd.expire()

    # ------------------------------------------------------------ watches

    def hang_up(self, process: Process) -> None:
        """Forget the streams of a process that has ended."""
        for member in self.members.values():
            member.streams = [each for each in member.streams if each.process is not process]

    def publish(self) -> None:
        """Tell all watches what is new, each when it comes to it."""
        for member in self.members.values():
            for stream in member.streams:
                stream.tell_soon()

    def tick(self) -> None:
        """Let leases end, and streams that have been silent for too long."""
        self.settle()
        self.publish()
        for member in self.members.values():
            for stream in list(member.streams):
                stream.look()
        self.hub.at(self.hub.now + 0.5, self.tick)


def _is_claim(request: Any) -> bool:
    """Return whether a request takes a lock for a ticket, which it deletes."""
    if not isinstance(request, wire.Txn):
        return False
    kinds = {operation.WhichOneof("kind") for operation in request.success}
    deleted = [operation.delete.key for operation in request.success]
    return "put" in kinds and any(b"/queue/" in key for key in deleted)


def _refused(text: str) -> Failed:
    codes = {
        "compacted": grpc.StatusCode.OUT_OF_RANGE,
        "lease": grpc.StatusCode.NOT_FOUND,
        "space": grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    return Failed(next(code for word, code in codes.items() if word in text), text)


class Channel:
    """A channel to one member."""

    def __init__(self, network: Network, member: Member, *, on_a_loop: bool) -> None:
        self._network, self._member, self._on_a_loop = network, member, on_a_loop
        self._streams: list[Stream] = []

    def unary_unary(self, path: str, **_how: object) -> Callable[..., Any]:
        """See gRPC."""
        return partial(self._on_loop if self._on_a_loop else self._in_thread, path)

    def stream_stream(self, path: str, **_how: object) -> Callable[..., Any]:
        """See gRPC."""
        if path.endswith("LeaseKeepAlive"):
            return partial(self._keep_alive, path)
        return self._watch

    def _in_thread(
        self, path: str, request: Any, timeout: float | None = None, metadata: object = None
    ) -> Any:
        heard, said = Event(), []

        def answered(answer: Any) -> None:
            said.append(answer)
            heard.set()

        self._network.send(self._member, path, request, answered)
        heard.wait(timeout)
        if not said:
            raise Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if isinstance(said[0], Failed):
            raise said[0]
        return said[0]

    async def _on_loop(
        self, path: str, request: Any, timeout: float | None = None, metadata: object = None
    ) -> Any:
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[Any] = loop.create_future()

        def settle(answer: Any) -> None:
            if not heard.done():
                heard.set_result(answer)

        def answered(answer: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, answer)

        self._network.send(self._member, path, request, answered)
        late = Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        alarm = None if timeout is None else loop.call_later(timeout, settle, late)
        try:
            answer = await heard
        finally:
            if alarm is not None:
                alarm.cancel()
        if isinstance(answer, Failed):
            raise answer
        return answer

    def _keep_alive(
        self, path: str, requests: Iterator[Any], timeout: float | None = None, metadata: Any = None
    ) -> Iterator[Any]:
        return iter((self._in_thread(path, next(requests), timeout),))

    def _watch(self, requests: Iterator[Any], metadata: object = None) -> Stream:
        stream = Stream(self._network, self._member)
        self._streams.append(stream)
        stream.begin(requests)
        return stream

    def close(self) -> None:
        """End all of it."""
        for stream in self._streams:
            stream.cancel()
