"""Watch streams of the simulated etcd: each gets its events with its own delay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from lockclient.stores.etcd.wire import messages_pb2 as wire
from tests.simulation.etcd import Refusal, as_event
from tests.simulation.hub import Thread
from tests.simulation.members import DELAY_S, Failed, Member, no_leader, nobody_there
from tests.simulation.virtual_modules import Queue

if TYPE_CHECKING:
    from tests.simulation.network import Network

PING_TIMEOUT_S = 15.0
"""Seconds after which a connection to a frozen member is given up."""


class Watcher:
    """One watch of a stream: what it is on, and the next revision that it is to be told."""

    def __init__(self, create: Any, after: int) -> None:
        self.create = create
        self.next = create.start_revision or after + 1
        self.synced = self.next > after


class Stream:
    """A watch stream: an iterator of answers."""

    def __init__(self, network: Network, member: Member) -> None:
        self._network, self._member = network, member
        self._hub, self.process = network.hub, network.hub.process
        self._answers = Queue()
        self._watchers: dict[int, Watcher] = {}
        self._error: Failed | None = None
        self._ended: list[Callable[[], object]] = []
        self._over = False
        self._arrives_at = 0.0
        self._alive_at = network.hub.now
        self._telling = False

    def begin(self, requests: Iterator[Any]) -> None:
        """Open it, and go on with what is asked."""
        self._member.streams.append(self)
        self._hub.at(self._hub.now + DELAY_S, self.look, self.process)
        Thread(target=partial(self._ask, requests), name="stream").start()

    def _ask(self, requests: Iterator[Any]) -> None:
        for request in requests:
            if self._over:
                return
            # In order: a stream is one connection.
            self._arrives_at = max(self._arrives_at, self._hub.now) + DELAY_S * self._draw()
            self._hub.at(self._arrives_at, partial(self._arrive, request))

    def _draw(self) -> float:
        return self._hub.draw_for(self.process)

    def _stuck_until(self) -> float:
        member = self._member
        return max(member.frozen_until, self.process.cut_off_until)

    def _arrive(self, request: Any) -> None:
        if self._over:
            return
        if self._stuck_until() > self._hub.now:
            self._hub.at(self._stuck_until() + DELAY_S, partial(self._arrive, request))
            return
        self._network.settle()
        etcd = self._network.etcd
        if request.HasField("cancel"):
            self._watchers.pop(request.cancel.watch_id, None)
            self._say(wire.WatchAnswer(watch_id=request.cancel.watch_id, canceled=True))
        elif request.HasField("create"):
            create = wire.WatchCreate.FromString(request.create.SerializeToString())
            watch = Watcher(create, etcd.revision)
            self._say(wire.WatchAnswer(watch_id=create.watch_id, created=True))
            self._watchers[create.watch_id] = watch
            self._hub.happened(self.process.name, "watch", watch.next - etcd.revision)
            self.tell_soon()

    def _say(self, answer: Any) -> None:
        answer.header.CopyFrom(self._network.etcd.header())
        self._answers.put(answer)

    def tell_soon(self) -> None:
        """Have this stream's watches told, after as long as it lags behind."""
        if self._telling or self._over:
            return
        revision = self._network.etcd.revision
        if not any(watch.next <= revision for watch in self._watchers.values()):
            return
        self._telling = True
        lag = self._network.lag_s if self._member.behind_until > self._hub.now else DELAY_S
        self._hub.at(self._hub.now + lag * self._draw(), self._tell)

    def _tell(self) -> None:
        self._telling = False
        if self._over:
            return
        if self._stuck_until() > self._hub.now:
            self._telling = True
            self._hub.at(self._stuck_until() + DELAY_S, self._tell)
            return
        etcd = self._network.etcd
        for number, watch in list(self._watchers.items()):
            try:
                span = (watch.create.key, watch.create.range_end)
                found = etcd.events(watch.next, *span, synced=watch.synced)
            except Refusal:
                del self._watchers[number]
                gone = wire.WatchAnswer(watch_id=number, canceled=True)
                gone.compact_revision = etcd.compacted
                self._say(gone)
                continue
            watch.next, watch.synced = max(watch.next, etcd.revision + 1), True
            if wire.WatchCreate.NOPUT in watch.create.filters:
                found = [write for write in found if write.value is None]
            if found:
                self._hub.happened(self.process.name, "told", found[-1].revision)
                told = wire.WatchAnswer(watch_id=number, events=[as_event(one) for one in found])
                self._say(told)

    def look(self) -> None:
        """End, if the connection did, or the member says that it has no leader."""
        hub, member = self._hub, self._member
        if member.down_until > hub.now:
            self._end(nobody_there())
        elif member.without_leader_until > hub.now + 1.0:
            self._end(no_leader())
        elif self._stuck_until() <= hub.now:
            self._alive_at = hub.now
        elif self._alive_at + PING_TIMEOUT_S < hub.now:
            self._end(Failed(grpc.StatusCode.UNAVAILABLE, "ping timeout"))

    def _end(self, error: Failed) -> None:
        if not self._over:
            self._over, self._error = True, error
            if self in self._member.streams:
                self._member.streams.remove(self)
            self._answers.put(None)
            for call in self._ended:
                call()

    # ------------------------------------------------------------ gRPC's interface

    def cancel(self) -> None:
        """See gRPC."""
        self._end(Failed(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))

    def add_callback(self, call: Callable[[], object]) -> bool:
        """See gRPC."""
        if self._over:
            return False
        self._ended.append(call)
        return True

    def __iter__(self) -> Iterator[Any]:
        while (answer := self._answers.get()) is not None:
            yield answer
        assert self._error is not None
        raise self._error
