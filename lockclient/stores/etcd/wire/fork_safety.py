"""Fork safety: a fork waits until no thread of ours is inside gRPC.

gRPC has handlers of its own for fork, and skips them while a thread is inside it ("Other threads
are currently calling into gRPC"). Then the child inherits its pollers as they are and dies by
SIGSEGV at its first call, and with grpcio up to 1.76 the parent dies as well. So before a fork
new calls are held back, streams are ended (to be opened again where they stopped), and those
under way get a moment to end; if one does not, the fork goes ahead as it would without us.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import monotonic

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


class Stream(Protocol):
    """Something that is inside gRPC for long."""

    def pause(self) -> None:
        """End it; it is opened again by the thread that reads it, through `enter`."""


_streams: WeakSet[Stream] = WeakSet()
_inside: dict[int, None] = {}
_forking: list[bool] = []
"""Has an entry while somebody forks."""


def enter() -> None:
    """Be about to go into gRPC; waits while somebody forks."""
    me = threading.get_ident()
    while True:
        # In this order, while a fork does it the other way round: closes first, then looks. So one
        # of the two always sees the other, without a lock, which an interrupt might leave taken.
        _inside[me] = None
        if not _forking:
            return
        del _inside[me]
        time.sleep(0.001)


def leave() -> None:
    """Be out of it again."""
    _inside.pop(threading.get_ident(), None)


def add(stream: Stream) -> None:
    """Pause this one before a fork."""
    _streams.add(stream)


def _before() -> None:
    _forking.append(True)
    me = threading.get_ident()
    _inside.pop(me, None)  # an interrupt may have left it; and a fork in a call-back is no call
    for stream in list(_streams):
        stream.pause()
    until = monotonic() + FORK_TIMEOUT_S
    while _inside and monotonic() < until:
        time.sleep(0.001)


def _after_in_child() -> None:
    _forking.clear()
    _inside.clear()
    _streams.clear()


os.register_at_fork(before=_before, after_in_parent=_forking.clear, after_in_child=_after_in_child)
