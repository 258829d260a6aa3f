"""Reentrancy: a finalizer that releases a lock inside the library's own code hangs nothing."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import Context, copy_context
from queue import Queue
from types import FrameType
from typing import Any

from lockclient import ClusterMutex
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until


class GarbageEverywhere:
    """Collects a suspended generator that holds a lock at each n-th instruction of the library."""

    def __init__(self, store: MemoryStore, every: int) -> None:
        self.collected = 0
        self._store = store
        self._every = every
        self._steps = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = "lockclient" in frame.f_code.co_filename
        if not frame.f_trace_opcodes:
            return None
        if event == "opcode":
            self._steps += 1
            if self._steps % self._every == 0:
                sys.settrace(None)
                self._collect()
                sys.settrace(self)
        return self

    def _collect(self) -> None:
        self.collected += 1
        name, store = f"garbage {self.collected}", self._store

        def hold() -> Iterator[None]:
            with ClusterMutex(name, store=store, capture_backtrace=False) as held:
                try:
                    yield
                finally:
                    assert held.healthy, "asking waits for no lock of the library's"

        suspended: Any = hold()
        next(suspended)
        box: list[Any] = [suspended]
        box.append(box)
        del suspended, box
        gc.collect(0)


def test_a_context_of_a_thread_of_the_library_lets_other_threads_wait() -> None:
    """A callback on an event loop has the context of the thread that scheduled it."""
    store, contexts = MemoryStore(), Queue[Context]()
    store.background.urgent.submit(lambda: contexts.put(copy_context()))
    mutex, context = ClusterMutex("x", store=store), contexts.get(timeout=30)
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(context.run, mutex.acquire).result(timeout=30)
    assert held is not None
    held.release()


def test_a_finalizer_that_releases_at_any_instruction_hangs_nothing() -> None:
    store = MemoryStore()
    everywhere = GarbageEverywhere(store, 17)
    mutex, stack = ClusterMutex("x", store=store), ExitStack()

    def work() -> None:
        sys.settrace(everywhere)
        try:
            with mutex as held:
                held.alive(force=True)
            stack.enter_context(mutex)
            stack.close()
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    assert everywhere.collected > 50
    wait_until(
        lambda: not any(lock.parts for lock in store.model.locks.values()), what="all releases"
    )
