"""A process that takes and lets go until it is told to stop.

`interrupt_worker.py URL NAME KIND`: its handler of SIGINT raises this kind.

Prints a line when it has begun, and one for each interrupt that it has dealt with: what it hit.
From SIGUSR1 on it stays alive and does nothing, so that whatever it has left behind stays, too.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import lockclient
from lockclient import ClusterMutex, LockNotHeld, LockTimeout, Settings, open_store

OURS = str(Path(lockclient.__file__).parent)
RAISED = {kind.__name__: kind for kind in (KeyboardInterrupt, ValueError, TimeoutError)}
"""What a handler of SIGINT may raise: Ctrl-C's own, or what it is told to be like a soft limit."""


def take_and_let_go(mutex: ClusterMutex, stopped: list[int], ignored: list[BaseException]) -> None:
    """Acquire and release in a loop until SIGUSR1, or until an interrupt raises.

    The loop calls nothing else: the standard library may swallow an interrupt, as `Path.exists`
    does with each `ValueError`.
    """
    while not stopped:
        if ignored:  # Python drops an exception raised in a finalizer, such as gRPC's
            raise ignored.pop()
        if mutex.acquire(timeout=0.05):
            mutex.release()
        with suppress(LockTimeout), mutex:
            mutex.alive(force=True)


def hit(error: BaseException) -> str:
    """Tell which call the interrupt hit: `acquire`, `release`, or neither: `outside`."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(OURS):
            return frame.f_code.co_name
    return "outside"


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(url: str, name: str, kind: str) -> None:
    raised, other = RAISED[kind], f"handler-{time.time()}"
    stopped: list[int] = []
    ignored: list[BaseException] = []

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, raised):
            ignored.append(what.exc_value)
        else:
            sys.__unraisablehook__(what)

    def come(_number: int, _frame: object) -> None:
        # A handler may use the library as well, whatever it has interrupted.
        with suppress(LockTimeout, LockNotHeld):
            mutex.check_health()
        if kind == "ValueError":
            with ClusterMutex(other, store=mutex._store()):
                pass
        raise raised

    mutex = ClusterMutex(name, timeout=0.05, store=open_store(Settings.load(url)))
    mutex.holder()
    sys.unraisablehook = dropped
    signal.signal(signal.SIGUSR1, lambda number, _frame: stopped.append(number))
    signal.signal(signal.SIGINT, come)
    word = "begun"
    while not stopped:
        try:
            say(word)  # the next interrupt comes after this: in here, never between two rounds
            take_and_let_go(mutex, stopped, ignored)
        except raised as error:
            if mutex.locked():  # between acquire() and release() alone
                mutex.release()
            word = f"interrupted in {hit(error)}"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
