"""Fork safety: a fork waits until no thread of ours is inside gRPC.

gRPC skips its own fork handlers while a thread is inside it ("Other threads are currently calling
into gRPC"). Then the child inherits gRPC's pollers as they are and dies by SIGSEGV at its first
call; with grpcio up to 1.76 the parent dies as well. So before a fork new calls wait, streams are
ended (and opened again where they stopped), and calls in flight have a second to end. After that
the fork goes ahead.

Python prints an exception in a fork's hook and drops it, so a Ctrl-C during that second would be
lost. So the hook keeps what a signal handler raises, and the parent raises it after the fork.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import monotonic
from lockclient.threads import scheduler

_PATCHED: dict[str, Callable[[Any], bool]] = {
    "gevent.monkey": lambda module: module.is_module_patched("threading"),
    "eventlet.patcher": lambda module: module.is_monkey_patched("thread"),
}


def require_real_threads() -> None:
    """Raise if the process's threads are green ones, of one real thread: a call of gRPC stops all.

    Raises:
        ClusterMutexError: they are.
    """
    for name, patched in _PATCHED.items():
        module = sys.modules.get(name)
        if module is not None and patched(module):
            raise ClusterMutexError(
                f"{name} has replaced this process's threads by green ones, and gRPC, which talks "
                "to etcd, would stop them all while it waits. Leave threads as they are "
                "(monkey.patch_all(thread=False)), use AsyncClusterMutex in asyncio, or hold the "
                "lock by a process of its own: clustermutex run NAME -- COMMAND."
            )


FORK_TIMEOUT_S = 1.0
"""Seconds that a fork waits at most."""
ENTER_TIMEOUT_S = 2.0
"""Seconds that a call waits at most while a thread forks. A signal handler or a finalizer on top of
a fork's hooks may call the store: its deputy waits here, and the fork waits for the deputy."""


class Stream(Protocol):
    """A reader of a stream, which is inside gRPC for long."""

    def pause(self) -> None:
        """End the stream; its reader calls `enter` and opens it again."""


_streams: WeakSet[Stream] = WeakSet()
_inside: dict[int, None] = {}
_forking: dict[int, bool] = {}
"""Has an entry for each thread that forks at the moment."""


def enter() -> None:
    """Call this before gRPC; it waits while a thread forks, for `ENTER_TIMEOUT_S` at most."""
    me = threading.get_ident()
    until = math.inf
    while True:
        # The caller adds its thread, then reads `_forking`. A fork sets `_forking`, then reads the
        # threads. So at least one of them sees the other, without a lock.
        _inside[me] = None
        if not _forking or monotonic() >= until:
            return
        until = min(until, monotonic() + ENTER_TIMEOUT_S)
        del _inside[me]
        time.sleep(0.001)


def leave() -> None:
    """Call this after gRPC."""
    _inside.pop(threading.get_ident(), None)


def add(stream: Stream) -> None:
    """Have this stream paused before each fork."""
    _streams.add(stream)


def _before() -> None:
    me = threading.get_ident()
    _interrupts.pop(me, None)
    until = monotonic() + FORK_TIMEOUT_S
    while True:
        try:
            return _hold_back(me, until)
        except BaseException as error:  # noqa: BLE001 - a handler's: raised after the fork
            _interrupts[me] = error


def _hold_back(me: int, until: float) -> None:
    """Wait until no thread is inside gRPC; an interrupted call is made again."""
    _forking[me] = True
    _inside.pop(me, None)  # an interrupt may have left it
    paused: list[bool] = []

    def pause() -> None:
        for stream in list(_streams):
            stream.pause()
        paused.append(True)

    # In the scheduler's thread: an interrupt inside gRPC may leave a lock of gRPC taken.
    if _streams:
        scheduler.shared.after(0, pause)
    while (_inside or (_streams and not paused)) and monotonic() < until:
        time.sleep(0.001)


_interrupts: dict[int, BaseException] = {}
"""By thread, the last exception of a signal handler during the thread's fork."""
INTERRUPT_DELAY_S = 0.05
"""Seconds after a fork until that exception is raised: by then the other hooks have ended, which
would lose it, and the program has stored the child's pid."""
_CARRIER = signal.SIGURG
"""The signal whose handler raises that exception; by default a process ignores it."""


def _after_in_parent() -> None:
    me = threading.get_ident()
    _forking.pop(me, None)
    error = _interrupts.pop(me, None)
    if error is not None and me == threading.main_thread().ident:
        before = signal.getsignal(_CARRIER)

        def interrupt(_number: int, _frame: object) -> None:
            signal.signal(_CARRIER, signal.SIG_DFL if before is None else before)
            raise error

        signal.signal(_CARRIER, interrupt)
        # A real signal, since it must end a wait, too. During a next fork that keeps it again.
        send = partial(signal.pthread_kill, me, _CARRIER)
        scheduler.shared.after(INTERRUPT_DELAY_S, send)


def _after_in_child() -> None:
    _forking.clear()
    _interrupts.clear()
    _inside.clear()
    _streams.clear()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
