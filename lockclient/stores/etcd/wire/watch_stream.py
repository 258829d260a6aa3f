"""The watch stream of a process on one store, shared by all watches, reopened where it stopped.

A thread, started at the first watch, reads the stream and hands each answer to the watch that it is
for. When the stream breaks, it is opened again on another member, once a second at most, and every
watch goes on where it stopped, so that nothing is missed: `watch_state` says how.

A stream on a frozen member says nothing, and gRPC's pings show that after 15 s at the soonest. And
some etcds have streams that fall silent for good (#15402, #17529). So a silent stream has to prove
that it lives (`OpenStream.check`); without a proof it is opened again on another member.
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
from lockclient.stores.etcd.errors import cause_of
from lockclient.stores.etcd.wire import fork_safety
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import Endpoint
from lockclient.stores.etcd.wire.rpc_methods import WATCH
from lockclient.stores.etcd.wire.watch_state import (
    SILENCE_S,
    Missed,
    News,
    Notify,
    OpenStream,
    StaleToken,
    Watch,
)
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import IDLE_S, WorkerPool
from lockclient.threads.reentry import mark_thread

log = get_logger(__name__)

RETRY_PAUSE_S = 1.0
"""Seconds from one try to open the stream to the next, and for which a refusal is kept back: told
at once, whoever waits would look and ask for a watch again at once."""
STEADY_STREAM_S = 10.0
"""Seconds for which a stream must have stood for its end to be worth a warning again."""
QUIET_REFUSALS_S = 60.0
"""Seconds without a refusal after which the next one is worth a warning again."""

JOIN_TIMEOUT_S = 0.5
"""Seconds that closing waits for the thread."""


@dataclass(eq=False)
class _Opened:
    """A stream that is open, or being opened."""

    stream: OpenStream
    used_at: float
    """When a watch was last ended."""
    call: Any = None
    stopped: str | None = None
    """Why we end it; empty: it is opened again at once, and that is no trouble."""
    renew: bool = False
    """True: open the next one by a new connection, on another member if there is one."""


class WatchStream:
    """The watch stream of a store, and the thread that reads it.

    No caller's thread takes a lock here, so that a signal handler and a finalizer may begin and end
    watches on top of any line.

    Args:
        channels: how to reach etcd.
        key: a key that nobody writes: see `OpenStream`.
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
        self._stop("", renew=False)

    def renew(self) -> None:
        """Open the stream anew, by a new connection and on another member if there is one.

        For one that has fallen silent. It goes on where it stopped.
        """
        self._stop("", renew=True)

    def _stop(self, why: str, *, renew: bool) -> None:
        if (opened := self._open) is not None:
            opened.stopped, opened.renew = why, renew
            if opened.call is not None:
                opened.call.cancel()

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        self._watches.clear()
        self._stop("", renew=False)
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
                # A connection that is slow to be made, and has not answered yet, is kept.
                self._stop(f"no answer within {SILENCE_S:g} s", renew=self.connected)
            return again
        if now - opened.used_at < IDLE_S:
            return SILENCE_S
        self._stop("", renew=False)
        return None

    # ------------------------------------------------------------ the stream's thread

    def _run(self) -> None:
        self._running, self._warned = True, False
        try:
            while self._has_work():
                opened_at = monotonic()
                try:
                    at_once = self._open_once(opened_at)
                except Exception:  # a thread that ends would leave all watches as they are
                    log.exception("The watch on etcd failed, and is opened again.")
                    at_once = self.connected = False
                if not at_once:
                    self._closing.wait(max(0.0, opened_at + RETRY_PAUSE_S - monotonic()))
        finally:
            self._running = self.connected = False
            if self._has_work():
                self._worker.submit(self._run)

    def _has_work(self) -> bool:
        return bool(self._watches) and not self._closing.is_set()

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
            cause = opened.stopped
        if not self._has_work():
            return True
        if opened.renew:
            self._channels.renew_stream(member)
        if cause or opened.renew:
            failover.failed(member)
        if not cause:
            return True
        self.restarts += self.connected
        lasted = monotonic() - opened_at
        if not self._warned or (self.connected and lasted > STEADY_STREAM_S):  # once an outage
            log.warning("The watch on etcd broke (%s) and is opened again.", cause)
        self._warned, self.connected = True, False
        return False

    def _read_stream(self, opened: _Opened, member: Endpoint) -> str:
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
            if self._closing.is_set() or opened.stopped is not None:  # and nobody has cancelled it
                call.cancel()
            stream.heard_at = monotonic()
            scheduler.shared.after(SILENCE_S, partial(self._check, opened))
            for answer in call:
                connection.failing_since = None
                stream.heard_at = math.inf
                self._take(stream, answer)
                stream.heard_at = monotonic()
        except grpc.RpcError as error:
            connection.note(error)
            return cause_of(error).text
        except StaleToken:
            raise
        except Exception as error:  # noqa: BLE001 - what the system refuses, or a closed channel
            return cause_of(error).text
        finally:
            self._open = None
            stream.stop()
            if call is not None:
                call.cancel()  # where it was left for the sake of a new token
            # Until gRPC's own thread is done with the stream, too. At the interpreter's end that
            # thread may be stopped while it holds the stream's lock, which then nobody gets: not
            # the stream's `__del__` either, and the process would hang.
            ended.wait(1)
            fork_safety.leave()
        return "etcd ended it"

    def _take(self, stream: OpenStream, answer: wire.WatchAnswer) -> None:
        if not self.connected:
            log.info("The watch on etcd stands.")
        self.connected = True
        found = stream.answered(answer, monotonic())
        if found is None:
            return
        watch, news = found
        if isinstance(news, Missed) and news.refused:
            self._keep_back(watch, self._explained(watch, news.refused))
        else:
            _tell(watch, news)

    # ------------------------------------------------------------ refusals

    def _explained(self, watch: Watch, why: str) -> Missed:
        user = self._channels.location.user
        key = watch.span[0].decode(errors="replace")
        return Missed(
            f"etcd refuses the watch on {'all keys from' if watch.span[1] else 'the key'} {key}: "
            f"{why}. Give {f'the user {user!r}' if user else 'this client, which names no user,'} "
            "the right to read that."
        )

    def _keep_back(self, watch: Watch, news: Missed) -> None:
        """Tell a refusal in a while, and warn of the first of them."""
        now = monotonic()
        if now - self._refused_at > QUIET_REFUSALS_S:
            log.warning("%s Until then, waiters look once a second.", news.refused)
        self._refused_at = now
        scheduler.shared.after(RETRY_PAUSE_S, partial(_tell, watch, news))


def _requests(stream: OpenStream) -> Iterator[wire.WatchRequest]:
    mark_thread()  # it is gRPC's, and waits for none of ours
    yield from stream.requests()


def _tell(watch: Watch, news: News) -> None:
    if watch.closed:
        return
    try:
        watch.notify(news)
    except Exception:  # one listener's mistake must not stop what all others are told
        log.exception("A listener of a watch failed.")
