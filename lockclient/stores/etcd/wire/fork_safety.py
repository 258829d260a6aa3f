"""Fork safety: a fork waits until no thread of ours is inside gRPC.

gRPC has handlers of its own for fork, and skips them while a thread is inside it ("Other threads
are currently calling into gRPC"). Then the child inherits its pollers as they are and dies by
SIGSEGV at its first call, and with grpcio up to 1.76 the parent dies as well. So before a fork
new calls are held back, streams are ended (to be opened again where they stopped), and those
under way get a moment to end; if one does not, the fork goes ahead as it would without us.

Python prints what is raised in a hook of a fork, and drops it, so that a Ctrl-C while we wait would
be gone. So what a signal's handler raises here is kept, and raised in the parent after the fork.
(In the hooks of others, which wait for nothing, it may hit the one microsecond as ever.)
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
    """Raise where threads are green, taking turns in one: a call of gRPC's would stop them all.

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
"""Seconds that a call waits at most while a thread forks. A signal handler or a finalizer may call
the store on top of a fork's hooks: its deputy waits here, and the fork waits for the deputy."""


class Stream(Protocol):
    """Something that is inside gRPC for long."""

    def pause(self) -> None:
        """End it; it is opened again by the thread that reads it, through `enter`."""


_streams: WeakSet[Stream] = WeakSet()
_inside: dict[int, None] = {}
_forking: dict[int, bool] = {}
"""Has an entry for each thread that forks at the moment."""


def enter() -> None:
    """Be about to go into gRPC; waits while a thread forks, for `ENTER_TIMEOUT_S` at most."""
    me = threading.get_ident()
    until = math.inf
    while True:
        # In this order, while a fork does it the other way round: closes first, then looks. So one
        # of the two always sees the other, without a lock, which an interrupt might leave taken.
        _inside[me] = None
        if not _forking or monotonic() >= until:
            return
        until = min(until, monotonic() + ENTER_TIMEOUT_S)
        del _inside[me]
        time.sleep(0.001)


def leave() -> None:
    """Be out of it again."""
    _inside.pop(threading.get_ident(), None)


def add(stream: Stream) -> None:
    """Pause this one before a fork."""
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
    """Keep everybody out of gRPC; if it is interrupted, it is simply done again."""
    _forking[me] = True
    _inside.pop(me, None)  # an interrupt may have left it; and a fork in a call-back is no call
    paused: list[bool] = []

    def pause() -> None:
        for stream in list(_streams):
            stream.pause()
        paused.append(True)

    # Not in this thread: an interrupt that lands in gRPC may leave a lock of its taken for good.
    if _streams:
        scheduler.shared.after(0, pause)
    while (_inside or (_streams and not paused)) and monotonic() < until:
        time.sleep(0.001)


_interrupts: dict[int, BaseException] = {}
"""What handlers of signals have raised while a thread's fork waited, by the thread: several may
fork at once. One exception is enough to end what forks."""
INTERRUPT_DELAY_S = 0.05
"""Seconds after a fork at which that is raised: the hooks of others are over by then, which would
lose it as well, and so is the line that takes note of the child."""
_CARRIER = signal.SIGURG
"""The signal by whose handler it is raised: who gets it by mistake ignores it."""


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
        # A real signal, for it must end a wait, too. If it comes in the middle of the next fork,
        # that keeps the exception again.
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
