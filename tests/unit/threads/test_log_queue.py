"""The log queue: a blocked or ended handler costs log lines only."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockclient import ClusterMutex, LockLost
from lockclient.threads import log_queue
from lockclient.threads.reentrancy import is_inside, run_inside
from tests.support.interrupts import raise_in
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

LOG = log_queue.get_logger("lockclient.test")


def say(text: str) -> None:
    """Log as the library's own threads do."""
    run_inside(LOG.warning, text)


@contextmanager
def handled(handler: logging.Handler) -> Iterator[None]:
    log_queue.flush(60)  # what others have logged
    logger = logging.getLogger("lockclient")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def test_a_blocked_handler_loses_log_lines_only() -> None:
    store, free, seen = MemoryStore(), threading.Event(), list[str]()

    class Blocked(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            free.wait(60)

    told = list[LockLost]()
    with handled(Blocked()):
        say("first")
        wait_until(lambda: seen, what="the handler")
        kept = ClusterMutex(
            "y", store=store, keepalive=True, expected_runtime=0.4, auto_unlock_after=900
        )
        lost = ClusterMutex("x", store=store, on_lost=told.append)
        lost.acquire()
        with kept as held:
            store.model.remove_holder("x")
            with pytest.raises(LockLost):
                lost.alive(force=True)
            wait_until(lambda: told, what="on_lost")
            first = held.record.alive_at or 0
            wait_until(lambda: (held.record.alive_at or 0) > first + 0.1, what="pushes")
        for number in range(log_queue.MAX_QUEUED + 10):
            say(f"{number}")
        free.set()
        log_queue.flush(60)
    assert "first" in seen
    assert any("log records were dropped" in line for line in seen)


def test_a_handler_that_ends_its_thread_loses_no_lines() -> None:
    class Exits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            sys.exit(3)

    seen: list[str] = []
    with handled(Exits()):
        for word in ("one", "two"):
            say(word)
            log_queue.flush(60)
    assert seen == ["one", "two"]


def test_an_asynchronous_exception_loses_one_line_at_most() -> None:
    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(threading.get_ident())

    seen = list[int]()
    with handled(Notes()):
        say("one")
        log_queue.flush(60)
        raise_in(seen[0], SystemExit)
        for word in ("two", "three"):  # the first one wakes the thread
            say(word)
        wait_until(lambda: len(seen) > 1, what="the next line")


def test_a_thread_of_the_program_logs_in_place() -> None:
    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.getMessage(), threading.get_ident() == here, is_inside()))

    here, seen = threading.get_ident(), list[tuple[str, bool, bool]]()
    with handled(Notes()):
        LOG.warning("ours")
        assert seen == [("ours", True, False)]
        say("the library's")
        log_queue.flush(60)
    assert seen[1:] == [("the library's", False, False)]
