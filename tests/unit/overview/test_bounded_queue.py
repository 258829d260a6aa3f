"""What a table has not taken in yet: so many bytes and no more, and in order."""

from __future__ import annotations

import threading

import pytest

from lockclient.overview import bounded_queue
from lockclient.overview.bounded_queue import BoundedQueue
from lockclient.stores.service_protocol import Batch, Change
from tests.support.processes import wait_until


def batch(revision: int, size: int = 0) -> Batch:
    return Batch((Change("locks", "a", "about", b"x" * size, revision, revision),), revision)


def test_who_brings_more_than_there_is_room_for_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_queue, "ROOM", 10_000)
    box, brought = BoundedQueue(), list[int]()

    def bring() -> None:
        for revision in range(20):
            box.put(batch(revision, 4000))
            brought.append(revision)

    thread = threading.Thread(target=bring, daemon=True)
    thread.start()
    wait_until(lambda: len(brought) == 3, what="as many as there is room for")
    box.put(Batch((), 0, gap=True), wait=False)  # who only asks for something is not kept
    found: list[int] = []
    while len(found) < 20:
        if (got := box.get()) is not None and not got.gap:
            found.append(got.revision)
        assert len(brought) <= len(found) + 4
    assert found == list(range(20))
    thread.join(30)
    assert not thread.is_alive()


def test_its_end_lets_everybody_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_queue, "ROOM", 0)
    box = BoundedQueue()
    box.put(batch(1))
    thread = threading.Thread(target=box.put, args=(batch(2),), daemon=True)
    thread.start()
    box.close()
    thread.join(30)
    assert not thread.is_alive()
    assert box.get() is None
