"""One watch stream a process, shared by everyone who waits, re-opened where it stopped.

A reader thread, started at the first watch, hands each answer to the watch that it is for. When
the stream breaks, it is opened again on another member, once a second at most, and every watch
goes on where it stopped, so that nothing is missed: `watches` says how.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.errors import ClusterMutexError
from lockclient.etcd import forking
from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.channels import Channels
from lockclient.etcd.faults import reason
from lockclient.etcd.methods import WATCH
from lockclient.etcd.watches import Missed, News, Notify, StaleToken, Started, Wanted, Watches

__all__ = ["Missed", "News", "Started", "Watch", "Watcher"]

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds from one try to open the stream to the next, and for which a refusal is kept back: told
at once, whoever waits would look and ask for a watch again at once."""
_STEADY = 10.0
"""Seconds for which a stream must have stood for its end to be worth a warning again."""
_SILENCE = 60.0
"""Seconds without a refusal after which the next one is worth a warning again."""

_Requests = SimpleQueue[wire.WatchRequest | None]


class Watch:
    """One registered watch; `close()` ends it."""

    def __init__(self, watcher: Watcher, wanted: Wanted) -> None:
        self._watcher = watcher
        self._wanted = wanted

    def close(self) -> None:
        """End the watch; nothing is notified any more, except what is on its way."""
        self._watcher.remove(self._wanted)


class Watcher:
    """The stream and its reader thread."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._lock = threading.Lock()  # of all that follows
        self._watches = Watches()
        self._requests: _Requests | None = None
        self._call: Any = None
        self._thread: threading.Thread | None = None
        self._late: list[tuple[Wanted, Missed]] = []
        self._closing = threading.Event()
        self._connected = False
        self._refused_at = -math.inf
        self._paused = False
        self.restarts = 0
        """How often a stream that stood has broken, and was to be opened again."""
        forking.add(self)

    def pause(self) -> None:
        """End the stream before a fork; its thread opens it again when that is over."""
        self._paused = True
        call = self._call
        if call is not None:
            call.cancel()

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
        tell_start: bool = False,
    ) -> Watch:
        """Watch a key (range end empty) or range from `revision` on; 0: from now, see `Started`.

        With `tell_start` it is told, too, when a watch with a revision stands.
        """
        wanted = Wanted(span, revision, notify, deletes_only=deletes_only, tell_start=tell_start)
        with self._lock:
            self._send([self._watches.add(wanted)])
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="clustermutex-watch", daemon=True
                )
                self._thread.start()
        return Watch(self, wanted)

    def remove(self, wanted: Wanted) -> None:
        """End one watch."""
        with self._lock:
            self._late = [each for each in self._late if each[0] is not wanted]
            self._send(self._watches.remove(wanted))

    def _send(self, requests: list[wire.WatchRequest]) -> None:
        if self._requests is not None:  # otherwise they are made anew when the stream is opened
            for each in requests:
                self._requests.put(each)

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
        first, told = True, False
        while not self._closing.is_set():
            opened_at = time.monotonic()
            try:
                cause = self._read_stream(first=first)
            except StaleToken as stale:
                log.info("etcd refuses a watch (%s); trying again with a new token.", stale)
                first = True
            else:
                if self._closing.is_set():
                    break
                if self._paused:
                    self._paused, first = False, True
                    continue
                self.restarts += self._connected
                lasted = time.monotonic() - opened_at
                if not told or (self._connected and lasted > _STEADY):  # once an outage
                    log.warning("The watch on etcd broke (%s) and is opened again.", cause)
                first, told, self._connected = False, True, False
            self._closing.wait(max(0.0, opened_at + PAUSE - time.monotonic()))
        self._connected = False

    def _read_stream(self, *, first: bool) -> str:
        """Open the stream and read it to its end; return why it ended."""
        requests: _Requests = SimpleQueue()
        ended = threading.Event()
        ended.set()
        call: Any = None
        forking.enter()
        try:
            with self._lock:
                for each in self._watches.opened(time.monotonic()):
                    requests.put(each)
                # In the same step, so that a watch that is added now is sent once, by `add`.
                self._requests = requests
            call = self._channels.open_stream(WATCH, _drain(requests), first)
            with self._lock:
                self._call = call
            ended.clear()
            if not call.add_callback(ended.set):
                ended.set()
            if self._closing.is_set() or self._paused:  # and nobody has cancelled it
                call.cancel()
            for answer in call:
                self._take(answer)
        except grpc.RpcError as error:
            return reason(error)
        except (ClusterMutexError, ValueError) as error:  # ValueError: the channel was closed
            return str(error)
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
            forking.leave()
        return "etcd ended it"

    def _take(self, answer: wire.WatchAnswer) -> None:
        if not self._connected:
            log.info("The watch on etcd stands.")
        self._connected = True
        with self._lock:
            requests, wanted, news = self._watches.answered(answer, time.monotonic())
            self._send(requests)
        if wanted is None or news is None:
            return
        if isinstance(news, Missed) and news.refused:
            self._keep_back(wanted, self._explained(wanted, news.refused))
        else:
            _tell(wanted, news)

    # ------------------------------------------------------------ refusals

    def _explained(self, wanted: Wanted, why: str) -> Missed:
        user = self._channels.failover.authentication.name
        key = wanted.span[0].decode(errors="replace")
        return Missed(
            f"etcd refuses the watch on {'all keys from' if wanted.span[1] else 'the key'} {key}: "
            f"{why}. Give {f'the user {user!r}' if user else 'this client, which names no user,'} "
            "the right to read that."
        )

    def _keep_back(self, wanted: Wanted, news: Missed) -> None:
        """Tell a refusal in a while, and warn of the first of them."""
        now = time.monotonic()
        if now - self._refused_at > _SILENCE:
            log.warning("%s Until then, whoever waits there looks once a second.", news.refused)
        self._refused_at = now
        with self._lock:
            self._late.append((wanted, news))
            if len(self._late) > 1:  # the timer runs
                return
        timer = threading.Timer(PAUSE, self._tell_late)
        timer.daemon = True
        timer.start()

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


def _drain(requests: _Requests) -> Iterator[Message]:
    while (request := requests.get()) is not None:
        yield request
