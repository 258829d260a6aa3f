"""One watch stream a process, shared by everyone who waits, re-opened where it stopped.

A reader thread, started at the first watch, hands each answer to the watch that it is for. When
the stream breaks, it is opened again on another member, about once a second at most, and every
watch goes on at the revision after the last event that it was given, so that nothing is missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.errors import ClusterMutexError
from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.channels import Channels
from lockclient.etcd.faults import reason
from lockclient.etcd.methods import WATCH

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two tries to open the stream."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Events may be lost for good (compaction): the watch has ended, look for yourself."""


@dataclass(frozen=True, slots=True)
class Started:
    """A watch without a revision has begun: it misses nothing that comes after this one."""

    revision: int


Events = list[wire.WatchEvent]
News = Events | Missed | Started
Notify = Callable[[News], None]


class Watch:
    """One registered watch; `close()` ends it."""

    def __init__(
        self, watcher: Watcher, number: int, create: wire.WatchCreate, notify: Notify
    ) -> None:
        self.number = number
        self.create = create
        self.notify = notify
        self._watcher = watcher

    def close(self) -> None:
        """End the watch; nothing is notified any more, except what is on its way."""
        self._watcher.remove(self)


class Watcher:
    """The stream and its reader thread."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._lock = threading.Lock()
        self._watches: dict[int, Watch] = {}
        self._next_number = 1
        self._requests: SimpleQueue[wire.WatchRequest | None] | None = None
        self._call: Any = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._connected = False

    def connected(self) -> bool:
        """Tell whether the stream stands, as far as keepalive knows."""
        return self._connected

    def add(
        self,
        span: tuple[bytes, bytes],
        revision: int,
        notify: Notify,
        *,
        deletes_only: bool = False,
    ) -> Watch:
        """Watch a key (range end empty) or range from `revision` on; 0: from now, see `Started`."""
        with self._lock:
            number, self._next_number = self._next_number, self._next_number + 1
            create = wire.WatchCreate(
                key=span[0],
                range_end=span[1],
                start_revision=revision,
                watch_id=number,
                filters=[wire.WatchCreate.NOPUT] if deletes_only else [],
            )
            watch = self._watches[number] = Watch(self, number, create, notify)
            if self._requests is not None:
                self._requests.put(wire.WatchRequest(create=create))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="clustermutex-watch", daemon=True
                )
                self._thread.start()
        return watch

    def remove(self, watch: Watch) -> None:
        """End one watch."""
        with self._lock:
            known = self._watches.pop(watch.number, None)
            if known is not None and self._requests is not None:
                cancel = wire.WatchCancel(watch_id=watch.number)
                self._requests.put(wire.WatchRequest(cancel=cancel))

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        with self._lock:
            self._watches.clear()
            if self._call is not None:
                self._call.cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        healthy = True
        while not self._closing.is_set():
            cause = self._read_stream(first=healthy)
            if self._closing.is_set():
                break
            if healthy or self._connected:
                log.warning("The watch on etcd broke (%s) and is opened again.", cause)
            healthy, self._connected = False, False
            self._closing.wait(PAUSE)

    def _read_stream(self, *, first: bool) -> str:
        """Open the stream and read it to its end; return why it ended."""
        requests: SimpleQueue[wire.WatchRequest | None] = SimpleQueue()
        ended = threading.Event()
        ended.set()
        try:
            with self._lock:
                for watch in self._watches.values():
                    requests.put(wire.WatchRequest(create=watch.create))
                # In the same step, so that a watch that is added now is sent once, by `add`.
                self._requests = requests
            call = self._channels.open_stream(WATCH, _drain(requests), first)
            with self._lock:
                self._call = call
            ended.clear()
            if not call.add_callback(ended.set):
                ended.set()
            if self._closing.is_set():  # and nobody has cancelled it
                call.cancel()
            for answer in call:
                if not self._connected:
                    log.info("The watch on etcd stands.")
                self._connected = True
                self._dispatch(answer)
        except grpc.RpcError as error:
            return reason(error)
        except (ClusterMutexError, ValueError) as error:  # ValueError: the channel was closed
            return str(error)
        finally:
            with self._lock:
                self._requests = self._call = None
            requests.put(None)
            # Until gRPC's own thread is done with the stream, too. At the interpreter's end that
            # thread may be stopped while it holds the stream's lock, which then nobody gets: not
            # the stream's `__del__` either, and the process would hang.
            ended.wait(1)
        return "etcd ended it"

    def _dispatch(self, answer: wire.WatchAnswer) -> None:
        watch = self._watches.get(answer.watch_id)
        if watch is None:
            return
        if answer.canceled:
            with self._lock:
                self._watches.pop(watch.number, None)
            if answer.compact_revision:  # its cancel_reason is empty
                watch.notify(Missed())
            else:
                # Told at once it would ask again at once: whoever waits looks once a minute.
                log.error("etcd refused to watch: %s", answer.cancel_reason or "no reason given")
            return
        if answer.created and not watch.create.start_revision:
            # A stream that is opened again goes on from here.
            watch.create.start_revision = answer.header.revision + 1
            watch.notify(Started(answer.header.revision))
        if answer.events:
            watch.create.start_revision = answer.events[-1].kv.mod_revision + 1
            watch.notify(list(answer.events))


def _drain(requests: SimpleQueue[wire.WatchRequest | None]) -> Iterator[Message]:
    while (request := requests.get()) is not None:
        yield request
