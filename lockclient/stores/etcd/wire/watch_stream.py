"""Watch streams, shared by everyone who waits, re-opened where they stopped.

A thread, started at the first watch, reads a stream and hands each answer to the watch that it is
for. When the stream breaks, it is opened again on another member, once a second at most, and every
watch goes on where it stopped, so that nothing is missed: `watch_state` says how.

A stream on a frozen member says nothing, and that it does so shows after 15 s at the soonest, since
etcd allows no more pings. And some etcds have streams that fall silent for good (#15402, #17529).
So where there are several members a lock is watched by two streams, on two members, and the first
to tell something tells it: that one of them is silent delays nobody.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from queue import SimpleQueue
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
    Missed,
    News,
    Notify,
    StaleToken,
    Started,
    Wanted,
    Watches,
)
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import IDLE_S, WorkerPool

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

_choosing = threading.Lock()
_Requests = SimpleQueue[wire.WatchRequest | None]


class Watch:
    """One registered watch, by as many streams as there are; `close()` ends it.

    Args:
        streams: by which.
        span, revision, notify, how: see `watch_state.Wanted`.
    """

    def __init__(
        self,
        streams: Sequence[WatchStream],
        span: tuple[bytes, bytes],
        revision: int,
        notify: Notify,
        **how: bool,
    ) -> None:
        self._notify = notify
        self._told = self._begun = 0
        self._lock = threading.Lock()
        # Each stream has its own, for it may be told the same later; who hears it twice is us.
        tell = notify if len(streams) == 1 else self._tell_once
        self._wanted = [(stream, Wanted(span, revision, tell, **how)) for stream in streams]
        for stream, wanted in self._wanted:
            stream.add(wanted)

    def close(self) -> None:
        """End the watch; nothing is notified any more, except what is on its way."""
        for stream, wanted in self._wanted:
            stream.remove(wanted)

    def _tell_once(self, news: News) -> None:
        """Pass on what no stream has told yet.

        A stream that begins at a later revision than the other one says so, too: it misses what
        came in between, and the other one may have frozen before it told that. So the listener
        looks if its own answer is older. But that stream must not count as having told what came
        before its begin: it may be still to come by the other one. That a stream has missed
        something is always told, for the listener then looks, and watches anew.
        """
        if isinstance(news, Missed):
            self._notify(news)
            return
        # Two streams are two threads. One that tells a later revision waits until the listener has
        # heard the earlier one.
        with self._lock:
            if isinstance(news, Started):
                fresh = news.revision > self._begun
                self._begun = max(self._begun, news.revision)
                self._told = self._told or news.revision
            else:
                news = [event for event in news if event.kv.mod_revision > self._told]
                fresh = bool(news)
                self._told = max(self._told, *(event.kv.mod_revision for event in news), 0)
            if fresh:
                self._notify(news)


class WatchStream:
    """A stream and the thread that reads it.

    Args:
        channels: how to reach etcd.
        other: a stream on whose member this one must not be, if there is another one.
    """

    def __init__(self, channels: Channels, other: WatchStream | None = None) -> None:
        self._channels = channels
        self._other = other
        self._beside: WatchStream | None = None
        if other is not None:
            other._beside = self
        self.member: Endpoint | None = None
        self._worker = WorkerPool("watch", 1)
        self._lock = threading.Lock()  # of all that follows
        self._watches = Watches()
        self._requests: _Requests | None = None
        self._call: Any = None
        self._running = False
        self._idle_check = False
        self._late: list[tuple[Wanted, Missed]] = []
        self._closing = threading.Event()
        self.connected = False
        """Whether the stream stands, as far as keepalive knows."""
        self._refused_at = -math.inf
        self._paused = self._silent = False
        self._first, self._told = True, False  # the thread's own: the next is the first try; warned
        self.restarts = 0
        """How often a stream that stood has broken, and was to be opened again."""
        fork_safety.add(self)

    def pause(self) -> None:
        """End the stream before a fork, or to go elsewhere; its thread opens it again."""
        self._paused = True
        call = self._call
        if call is not None:
            call.cancel()

    def renew(self) -> None:
        """Open the stream anew, by a new connection and on another member if there is one.

        For one that has fallen silent. It goes on where it stopped.
        """
        member = self.member
        if member is not None:
            self._channels.failover.failed(member)
        self._silent = True
        self.pause()

    def add(self, wanted: Wanted) -> None:
        """Begin a watch."""
        with self._lock:
            self._send([self._watches.add(wanted)])
            if not self._running and not self._closing.is_set():
                self._running = True
                self._worker.submit(self._run)

    def remove(self, wanted: Wanted) -> None:
        """End one watch; when it is the last for a while, the stream ends, too."""
        with self._lock:
            self._late = [late for late in self._late if late[0] is not wanted]
            self._send(self._watches.remove(wanted))
            if not self._watches.empty() or self._idle_check:
                return
            self._idle_check = True
        scheduler.shared.after(IDLE_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        with self._lock:
            self._idle_check = False
            if self._watches.empty() and self._call is not None:
                self._call.cancel()

    def _send(self, requests: list[wire.WatchRequest]) -> None:
        if self._requests is not None:  # otherwise they are made anew when the stream is opened
            for request in requests:
                self._requests.put(request)

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        with self._lock:
            self._watches.clear()
            if self._call is not None:
                self._call.cancel()
        self._worker.close()
        for thread in self._worker.threads():
            if thread.ident not in (None, threading.get_ident()):  # started, and not this one
                thread.join(JOIN_TIMEOUT_S)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._first, self._told = True, False
        while self._wanted():
            opened_at = monotonic()
            try:
                at_once = self._open_once(opened_at)
            except Exception:  # a thread that ends would leave all watches as they are, for ever
                log.exception("The watch on etcd failed, and is opened again.")
                at_once = self.connected = False
            if not at_once:
                self._closing.wait(max(0.0, opened_at + RETRY_PAUSE_S - monotonic()))
        self.connected = False

    def _open_once(self, opened_at: float) -> bool:
        """Open the stream and read it to its end; return whether to open it again at once."""
        try:
            cause = self._read_stream(first=self._first)
        except StaleToken as stale:
            log.info("etcd refuses a watch (%s); trying again with a new token.", stale)
            self._first = True
            return False
        with self._lock:
            if self._closing.is_set() or self._watches.empty():
                return True
        if self._paused:
            if self._silent and self.member is not None:
                self._silent = False
                self._channels.renew_stream(self.member)
            self._paused, self._first = False, True
            return True
        self.restarts += self.connected
        lasted = monotonic() - opened_at
        if not self._told or (self.connected and lasted > STEADY_STREAM_S):  # once an outage
            log.warning("The watch on etcd broke (%s) and is opened again.", cause)
        self._first, self._told, self.connected = False, True, False
        return False

    def _wanted(self) -> bool:
        """Tell whether to go on; if not, the next one who wants a watch starts a thread."""
        with self._lock:
            self._running = not (self._closing.is_set() or self._watches.empty())
            return self._running

    def _choose(self, *, first: bool) -> Endpoint:
        """Return the member to open the stream on, another one than where it has just failed."""
        failover = self._channels.failover
        if not first and self.member is not None:
            failover.failed(self.member)
        with _choosing:  # else two that begin at once would both find the other one nowhere
            chosen = failover.next()
            if self._other is not None:
                chosen = failover.beside(self._other.member)
            self.member = chosen
        if self._beside is not None and self._beside.member is chosen:
            self._beside.pause()
        return chosen

    def _read_stream(self, *, first: bool) -> str:
        """Open the stream and read it to its end; return why it ended."""
        requests: _Requests = SimpleQueue()
        ended = threading.Event()
        ended.set()
        call: Any = None
        fork_safety.enter()
        try:
            with self._lock:
                for request in self._watches.opened(monotonic()):
                    requests.put(request)
                # In the same step, so that a watch that is added now is sent once, by `add`.
                self._requests = requests
            member = self._choose(first=first)
            connection = self._channels.connection(member, WATCH)
            call = self._channels.open_stream(WATCH, iter(requests.get, None), member)
            with self._lock:
                self._call = call
            ended.clear()
            if not call.add_callback(ended.set):
                ended.set()
            if self._closing.is_set() or self._paused:  # and nobody has cancelled it
                call.cancel()
            for answer in call:
                connection.failing_since = None
                self._take(answer)
        except grpc.RpcError as error:
            connection.note(error)
            return cause_of(error).text
        except StaleToken:
            raise
        except Exception as error:  # noqa: BLE001 - what the system refuses, or a closed channel
            return cause_of(error).text
        finally:
            with self._lock:
                self._requests = self._call = None
            requests.put(None)
            if call is not None:
                call.cancel()  # where it was left for the sake of a new token
            # Until gRPC's own thread is done with the stream, too. At the interpreter's end that
            # thread may be stopped while it holds the stream's lock, which then nobody gets: not
            # the stream's `__del__` either, and the process would hang.
            ended.wait(1)
            fork_safety.leave()
        return "etcd ended it"

    def _take(self, answer: wire.WatchAnswer) -> None:
        if not self.connected:
            log.info("The watch on etcd stands.")
        self.connected = True
        with self._lock:
            requests, wanted, news = self._watches.answered(answer, monotonic())
            self._send(requests)
        if wanted is None or news is None:
            return
        if isinstance(news, Missed) and news.refused:
            self._keep_back(wanted, self._explained(wanted, news.refused))
        else:
            _tell(wanted, news)

    # ------------------------------------------------------------ refusals

    def _explained(self, wanted: Wanted, why: str) -> Missed:
        user = self._channels.location.user
        key = wanted.span[0].decode(errors="replace")
        return Missed(
            f"etcd refuses the watch on {'all keys from' if wanted.span[1] else 'the key'} {key}: "
            f"{why}. Give {f'the user {user!r}' if user else 'this client, which names no user,'} "
            "the right to read that."
        )

    def _keep_back(self, wanted: Wanted, news: Missed) -> None:
        """Tell a refusal in a while, and warn of the first of them."""
        now = monotonic()
        if now - self._refused_at > QUIET_REFUSALS_S:
            log.warning("%s Until then, waiters look once a second.", news.refused)
        self._refused_at = now
        with self._lock:
            self._late.append((wanted, news))
            if len(self._late) > 1:  # the timer runs
                return
        scheduler.shared.after(RETRY_PAUSE_S, self._tell_late)

    def _tell_late(self) -> None:
        with self._lock:
            late, self._late = self._late, []
        for wanted, news in late:
            _tell(wanted, news)


def _tell(wanted: Wanted, news: News) -> None:
    try:
        wanted.notify(news)
    except Exception:  # one listener's mistake must not stop what all others are told
        log.exception("A listener of a watch failed.")
