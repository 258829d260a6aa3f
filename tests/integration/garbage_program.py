"""Collects garbage that releases a lock at every instruction: `… URL EVERY`.

At every one that is come to, once in each of its threads and in the callers', a suspended generator
in a reference cycle is collected, as the garbage collector might have done there. Whoever waited in
its `with` block's exit would wait for what its own thread was about to do.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from queue import Queue
from types import CodeType, FrameType
from typing import Any

import lockclient
from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    LockLost,
    Settings,
    StoreUnavailable,
    open_store,
)
from lockclient.model.clocks import Deadline
from lockclient.overview.force_unlock_request import force_unlock
from lockclient.threads import log_queue, scheduler
from tests.support.locks import has
from tests.support.processes import wait_until

STORE = open_store(Settings.load(sys.argv[1]))
LIBRARY = f"{Path(lockclient.__file__).parent}/"
MAKERS, AHEAD = 6, 50
GENEROUS_S = 60.0


class Garbage:
    """Makes ready what is collected, in a thread that is not traced: each holds a lock."""

    def __init__(self, every: int) -> None:
        self.collected: Counter[str] = Counter()
        self.places: set[tuple[str, CodeType, int]] = set()
        self._places_of: Counter[str] = Counter()
        self._dropped: list[str] = []
        self._ready: Queue[tuple[str, list[Any]]] = Queue(AHEAD)
        self._every = every
        for maker in range(MAKERS):
            threading.Thread(target=self._make, args=(maker,), daemon=True).start()

    def _make(self, maker: int) -> None:
        for number in count():
            name = f"garbage/{maker}/{number}"

            def hold(name: str = name) -> Iterator[None]:
                with ClusterMutex(name, store=STORE, capture_backtrace=False):
                    yield

            suspended = hold()
            try:
                next(suspended)
            except StoreUnavailable:  # a busy machine: the next one
                continue
            box: list[Any] = [suspended]
            box.append(box)
            self._ready.put((name, box))
            del suspended, box

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Collect at each instruction of the library that this thread has not come to before."""
        code = frame.f_code
        frame.f_trace_opcodes = code.co_filename.startswith(LIBRARY)
        if not frame.f_trace_opcodes:
            return None
        if event == "opcode":
            thread = threading.current_thread().name.split("_")[0]
            place = (thread, code, frame.f_lasti)
            if place not in self.places:
                self.places.add(place)
                self._places_of[thread] += 1
                if self._places_of[thread] % self._every != 1 % self._every:  # its first, too
                    return self.trace
                sys.settrace(None)
                name, box = self._ready.get(timeout=GENEROUS_S)
                del box
                gc.collect()
                self._dropped.append(name)
                self.collected[thread] += 1
                sys.settrace(self.trace)
        return self.trace

    def all_released(self) -> None:
        """Wait until nobody has what was collected."""
        wait_until(self._none_is_had, what="all releases")

    def _none_is_had(self) -> bool:
        gc.collect()  # what came while another thread collected was left for later
        return not any(has(STORE, name) for name in self._dropped)

    def trace_here(self) -> None:
        """Trace the thread that calls this, and what it does already."""
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_filename.startswith(LIBRARY):
                frame.f_trace, frame.f_trace_opcodes = self.trace, True
            frame = frame.f_back
        sys.settrace(self.trace)


def use(garbage: Garbage, who: str) -> None:
    """Take, push, queue, keep alive, lose, release."""
    mutex = ClusterMutex(who, store=STORE)
    with mutex as held:
        held.alive(force=True)
        held.alive()
        assert ClusterMutex(who, store=STORE).acquire(False) is None
        waiter = threading.Thread(target=with_block, args=(who,), name=f"{who} in the queue")
        waiter.start()
        wait_until(held.waiters, what="the waiter")
    waiter.join(GENEROUS_S)
    with ExitStack() as stack:
        stack.enter_context(mutex)
    kept = ClusterMutex(
        who, store=STORE, keepalive=True, expected_runtime=0.4, auto_unlock_after=900
    )
    with kept as held:
        first = held.record.alive_at or 0
        wait_until(lambda: (held.record.alive_at or 0) > first + 1.5, what="pushes, and a watch")
    told = threading.Event()
    lost = ClusterMutex(who, store=STORE, on_lost=lambda _: told.set()).acquire()
    assert lost is not None
    log_queue.shared.put(garbage.trace_here)
    force_unlock(STORE, who, lost.uuid, "test", "test", Deadline.after(GENEROUS_S))
    assert told.wait(GENEROUS_S)
    with suppress(LockLost):
        lost.release()


def with_block(name: str) -> None:
    """Wait for a lock, and give it back."""
    with ClusterMutex(name, store=STORE) as held:
        held.alive(force=True)


async def use_in_a_loop() -> None:
    """The same in asyncio, with a cancellation."""
    mutex = AsyncClusterMutex("loop", store=STORE)
    async with mutex as held:
        await held.alive(force=True)
        waiting = [asyncio.create_task(mutex.acquire(timeout=GENEROUS_S)) for _ in range(2)]
        while len(await held.waiters()) < 2:
            await asyncio.sleep(0.01)
        waiting[0].cancel()
    got = await waiting[1]
    assert got is not None
    await got.release()


def main() -> None:
    """Print at how many instructions garbage was collected, by thread."""
    store = STORE
    with ClusterMutex("first", store=store):  # what is imported, is
        gc.collect()
    gc.disable()
    gc.freeze()
    garbage = Garbage(int(sys.argv[2]))
    threading.settrace(garbage.trace)
    scheduler.shared.after(0, garbage.trace_here)
    for work in (partial(use, garbage, "thread"), lambda: asyncio.run(use_in_a_loop())):
        thread = threading.Thread(target=work, name="thread", daemon=True)
        thread.start()
        thread.join(30 * GENEROUS_S)
        if thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            sys.exit("It hangs.")
    garbage.trace_here()
    use(garbage, "main")
    sys.settrace(None)
    threading.settrace(None)
    garbage.all_released()
    print(f"{len(garbage.places):6}  places")
    for thread_name, number in garbage.collected.most_common():
        print(f"{number:6}  {thread_name}")


if __name__ == "__main__":
    main()
