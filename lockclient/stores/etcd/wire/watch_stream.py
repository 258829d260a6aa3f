"""The watch stream of a process on one store, shared by all watches, reopened where it stopped.

A thread, started at the first watch, reads the stream and notifies the watch of each answer. When
the stream breaks, the thread opens it again on another member, once a second at most, and every
watch continues where it stopped (`watch_state`).

A stream on a frozen member is silent, which gRPC's pings notice after 15 s at the soonest. In some
etcds streams fall silent for good (#15402, #17529). So a silent stream has to prove that it lives
(`OpenStream.check`), or it is opened again on another member.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from lockclient.model.clocks import monotonic
from lockclient.stores.common.network_errors import OF_THIS_PROCESS, Cause
from lockclient.stores.etcd.errors import cause_of
from lockclient.stores.etcd.wire import fork_safety
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import Endpoint
from lockclient.stores.etcd.wire.rpc_methods import WATCH
from lockclient.stores.etcd.wire.watch_state import (
    SILENCE_S,
    News,
    Notify,
    OpenStream,
    StaleToken,
    Watch,
    WatchEnded,
)
from lockclient.threads import ending, scheduler
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import IDLE_S, WorkerPool
from lockclient.threads.reentrancy import mark_thread

log = get_logger(__name__)

RETRY_PAUSE_S = 1.0
"""Seconds from one try to open the stream to the next, and from a refusal to its notification: a
waiter that is notified at once would read and create a watch again at once."""
STEADY_STREAM_S = 10.0
"""Seconds that a stream must have lasted for a new warning about its end."""
QUIET_REFUSALS_S = 60.0
"""Seconds without a refusal before a new warning about one."""
JOIN_TIMEOUT_S = 0.5
"""Seconds that closing waits for the thread."""


@dataclass(eq=False)
class _Opened:
    """A stream that is open, or being opened."""

    stream: OpenStream
    used_at: float
    """The monotonic time at which a watch was last ended."""
    call: Any = None
    stopped: str | None = None
    """Why this process ends it; empty: without a warning, and it is opened again at once."""
    reconnect: bool = False
    """True: open the next one by a new connection, on another member if there is one."""


class WatchStream:
    """The watch stream of a store, and the thread that reads it.

    No caller's thread takes a lock here, so that a signal handler and a finalizer may begin and end
    watches on top of any line.

    Args:
        channels: how to reach etcd.
        key: a key that no client writes: see `OpenStream`.
    """

    def __init__(self, channels: Channels, key: bytes) -> None:
        self._channels = channels
        self._key = key
        self._worker = WorkerPool("watch", 1)
        self._watches: dict[Watch, None] = {}
        self._open: _Opened | None = None
        self._running = False
        self._closing = threading.Event()
        self.connected = False
        """True if the stream has answered since it was opened."""
        self.restarts = 0
        """The number of streams that had answered and then broke."""
        self._refused_at = self._believed_until = -math.inf
        self._warned = False
        fork_safety.add(self)

    def watch(self, span: tuple[bytes, bytes], revision: int, notify: Notify, **how: bool) -> Watch:
        """Begin a watch and return it; for the arguments see `Watch`."""
        watch = Watch(span, revision, notify, self._end, **how)
        # The caller adds the watch, then reads `_open` and `_running`. The thread publishes a
        # stream, or that it ends, then reads the watches. So at least one of them sees the other.
        self._watches[watch] = None
        if (opened := self._open) is not None:
            opened.stream.begin(watch)
        if not self._running:
            self._worker.submit(self._run)
        return watch

    def _end(self, watch: Watch) -> None:
        watch.closed = True
        self._watches.pop(watch, None)
        if (opened := self._open) is not None:
            opened.used_at = monotonic()
            opened.stream.end(watch)

    def pause(self) -> None:
        """End the stream before a fork; its thread opens it again."""
        self._stop("")

    def reopen(self) -> None:
        """Reopen the stream, by a new connection and on another member if there is one."""
        self._stop("", reconnect=True)

    def _stop(self, why: str, *, reconnect: bool = False) -> None:
        if (opened := self._open) is not None:
            opened.stopped, opened.reconnect = why, reconnect
            if opened.call is not None:
                opened.call.cancel()

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        self._watches.clear()
        self._stop("")
        self._worker.close()
        for thread in self._worker.threads():
            if thread.ident not in (None, threading.get_ident()):  # started, and not this one
                thread.join(JOIN_TIMEOUT_S)

    # ------------------------------------------------------------ the scheduler's thread

    def _check(self, opened: _Opened) -> float | None:
        """End the stream if it is silent, or was without a watch for a while."""
        if self._open is not opened:
            return None
        now = monotonic()
        if self._watches:
            again = opened.stream.check(now)
            if again is None:
                # A connection without any answer yet may be slow: it is used again.
                self._stop(f"no answer within {SILENCE_S:g} s", reconnect=self.connected)
            return again
        if now - opened.used_at < IDLE_S:
            return SILENCE_S
        self._stop("")
        return None

    # ------------------------------------------------------------ the stream's thread

    def _run(self) -> None:
        self._running, self._warned = True, False
        try:
            while self._has_work():
                opened_at = monotonic()
                try:
                    at_once = self._open_once(opened_at)
                except Exception:  # the thread must not end: all watches need it
                    log.exception("The watch on etcd failed, and is opened again.")
                    at_once = self.connected = False
                if not at_once:
                    self._closing.wait(max(0.0, opened_at + RETRY_PAUSE_S - monotonic()))
        finally:
            self._running = self.connected = False
            if self._has_work():
                self._worker.submit(self._run)
            elif not ending.can_watch():
                for watch in list(self._watches):  # the listeners poll from now on
                    _notify(watch, WatchEnded())

    def _has_work(self) -> bool:
        return bool(self._watches) and not self._closing.is_set() and ending.can_watch()

    def _open_once(self, opened_at: float) -> bool:
        """Open the stream and read it to its end; return whether to open it again at once."""
        failover = self._channels.failover
        member = failover.next()
        stream = OpenStream(self._watches, self._key, opened_at, self._believed_until)
        opened = _Opened(stream, used_at=opened_at)
        try:
            cause = self._read_stream(opened, member)
        except StaleToken as stale:
            log.info("etcd refuses a watch (%s); trying again with a new token.", stale)
            return False
        finally:
            self._believed_until = stream.believed_until
        if opened.stopped is not None:
            cause = Cause(None, opened.stopped)
        if not self._has_work():
            return True
        if opened.reconnect:
            self._channels.reconnect_stream(member)
        if cause.text or opened.reconnect:
            failover.failed(member)
        if not cause.text:
            return True
        self.restarts += self.connected
        lasted = monotonic() - opened_at
        if not self._warned or (self.connected and lasted > STEADY_STREAM_S):  # once an outage
            log.warning("The watch on etcd broke (%s) and is opened again.", cause.text)
        self._warned, self.connected = True, False
        if cause.reason in OF_THIS_PROCESS:
            # That may last, while requests are answered by their own connection, which is open.
            for watch in list(self._watches):  # the listeners poll, at each try to open the stream
                self._watches.pop(watch, None)
                _notify(watch, WatchEnded(cause.text))
        return False

    def _read_stream(self, opened: _Opened, member: Endpoint) -> Cause:
        """Open the stream and read it to its end; return why it ended."""
        stream = opened.stream
        ended = threading.Event()
        ended.set()
        call: Any = None
        self._open = opened
        fork_safety.enter()
        try:
            connection = self._channels.streams[member.endpoint]
            call = opened.call = self._channels.open_stream(WATCH, _requests(stream), member)
            ended.clear()
            if not call.add_callback(ended.set):
                ended.set()
            if self._closing.is_set() or opened.stopped is not None:  # before `call` was published
                call.cancel()
            stream.heard_at = monotonic()
            scheduler.shared.after(SILENCE_S, partial(self._check, opened))
            for answer in call:
                connection.failing_since = None
                stream.heard_at = math.inf
                self._handle(stream, answer)
                stream.heard_at = monotonic()
        except grpc.RpcError as error:
            connection.note(error)
            return cause_of(error)
        except StaleToken:
            raise
        except Exception as error:  # noqa: BLE001 - the system refuses, or the channel is closed
            return cause_of(error)
        finally:
            self._open = None
            stream.stop()
            if call is not None:
                call.cancel()  # still open after a `StaleToken`
            # Wait until gRPC's thread is done with the stream. At the interpreter's end that thread
            # may be stopped while it holds the stream's lock, for which the stream's `__del__`
            # would wait for ever.
            ended.wait(1)
            fork_safety.leave()
        return Cause(None, "etcd ended it")

    def _handle(self, stream: OpenStream, answer: wire.WatchAnswer) -> None:
        if not self.connected:
            log.info("The watch on etcd stands.")
        self.connected = True
        found = stream.answered(answer, monotonic())
        if found is None:
            return
        watch, news = found
        if isinstance(news, WatchEnded) and news.refused:
            self._notify_later(watch, self._explained(watch, news.refused))
        else:
            _notify(watch, news)

    # ------------------------------------------------------------ refusals

    def _explained(self, watch: Watch, why: str) -> WatchEnded:
        user = self._channels.location.user
        key = watch.span[0].decode(errors="replace")
        return WatchEnded(
            f"etcd refuses the watch on {'all keys from' if watch.span[1] else 'the key'} {key}: "
            f"{why}. Give {f'the user {user!r}' if user else 'this client, which names no user,'} "
            "the right to read that."
        )

    def _notify_later(self, watch: Watch, news: WatchEnded) -> None:
        """Notify of a refusal in `RETRY_PAUSE_S`; warn of the first of several."""
        now = monotonic()
        if now - self._refused_at > QUIET_REFUSALS_S:
            log.warning("%s Until then, waiters poll once a second.", news.refused)
        self._refused_at = now
        scheduler.shared.after(RETRY_PAUSE_S, partial(_notify, watch, news))


def _requests(stream: OpenStream) -> Iterator[wire.WatchRequest]:
    mark_thread()  # called by gRPC's thread
    yield from stream.requests()


def _notify(watch: Watch, news: News) -> None:
    if watch.closed:
        return
    try:
        watch.notify(news)
    except Exception:  # other listeners are still notified
        log.exception("A listener of a watch failed.")
