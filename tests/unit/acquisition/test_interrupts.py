"""Ctrl-C at each step: the lock is held and `locked()` is true, or nothing is left.

A real signal finds most of these moments once in a million tries. Here a trace function raises
`KeyboardInterrupt` at the first step inside the library, then at the second, and so on.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from lockclient import ClusterMutex, HeldLock, LockLost, LockNotHeld
from tests.support.interrupts import interrupted
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

NAME = "x"
Surroundings = Callable[[MemoryStore], contextlib.AbstractContextManager[object]]


def at_each_step(around: Surroundings, act: Callable[[ClusterMutex], object]) -> int:
    """Act with an interrupt at each step in turn, and look at what it leaves."""
    store = MemoryStore()
    lock = store.model.lock(NAME)
    number = 0
    while True:
        number += 1
        mutex = ClusterMutex(NAME, store=store)
        with around(store), interrupted(number) as interrupt:
            act(mutex)
        if act is take_and_release_by_with:  # a statement has no gap at all
            wait_until(lambda: not mutex.locked(), what=interrupt.where)  # noqa: B023
        elif mutex.locked():
            with contextlib.suppress(LockNotHeld):  # the background has released it meanwhile
                mutex.release()
        wait_until(
            lambda: lock.holder is None and not lock.tickets and not store.watching(),
            timeout=5,
            what=f"the end of all traces after an interrupt in {interrupt.where}",
        )
        if not interrupt.where:
            return number


def take_and_release(mutex: ClusterMutex) -> None:
    assert mutex.acquire(timeout=10)
    mutex.release()


def take_and_release_by_with(mutex: ClusterMutex) -> None:
    with contextlib.suppress(ValueError), mutex:
        raise ValueError


def give_up(mutex: ClusterMutex) -> None:
    assert not mutex.acquire(timeout=0.001)


@contextlib.contextmanager
def held(store: MemoryStore) -> Iterator[None]:
    """Another client has the lock."""
    with ClusterMutex(NAME, store=store):
        yield


@contextlib.contextmanager
def held_for_a_moment(store: MemoryStore) -> Iterator[None]:
    """The holder releases as soon as there is a waiter, or when there will be none."""
    holder = ClusterMutex(NAME, store=store)
    holder.acquire()
    over = threading.Event()

    def go() -> None:
        while not store.model.lock(NAME).tickets and not over.wait(0.001):
            pass
        holder.release()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def free(store: MemoryStore) -> contextlib.AbstractContextManager[object]:
    """Nobody has the lock."""
    return contextlib.nullcontext()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its instructions are others")
@pytest.mark.parametrize(
    ("around", "act"),
    [
        (free, take_and_release),
        (free, take_and_release_by_with),
        (held_for_a_moment, take_and_release),
        (held, give_up),
    ],
)
def test_an_interrupt_leaves_nothing(
    around: Surroundings, act: Callable[[ClusterMutex], object]
) -> None:
    """No lock that nobody knows of, no ticket, and the background works on."""
    assert at_each_step(around, act) > 50


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its instructions are others")
@pytest.mark.parametrize(
    "ask", [lambda held: held.healthy, HeldLock.check_health], ids=["healthy", "check_health"]
)
def test_an_interrupted_question_hides_no_loss(ask: Callable[[HeldLock], object]) -> None:
    number = 0
    while True:
        number += 1
        told: list[LockLost] = []
        held = ClusterMutex(NAME, store=MemoryStore(), on_lost=told.append).acquire()
        assert held
        held._acquisition.deadline = 0.0  # no background thread checks it for so long
        with interrupted(number) as interrupt, contextlib.suppress(LockLost):
            ask(held)
        assert not held.healthy
        wait_until(lambda: told, what=f"on_lost after an interrupt in {interrupt.where}")  # noqa: B023 - called at once
        assert len(told) == 1
        with contextlib.suppress(LockLost):
            held.release()
        if not interrupt.where:
            break
    assert number > 5
