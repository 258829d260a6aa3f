"""What the contract suites ask of a `subject`, whoever makes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.service_protocol import ServiceStore
from lockclient.testing.contract.asking import Ask
from lockclient.testing.contract.drivers import InThreads, Make, OnALoop, running_loop
from lockclient.testing.contract.subject import Subject
from lockclient.threads import log_queue

POLL_INTERVAL_S = 0.05

__all__ = ["ask", "caplog", "make", "reader", "writer"]


class FlushedCapture(pytest.LogCaptureFixture):  # type: ignore[misc]
    """What was logged, with what the library's own thread has still to handle."""

    @property
    def handler(self) -> Any:
        log_queue.flush(10)
        return super().handler


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What was logged, by the library's own thread, too."""
    caplog.__class__ = FlushedCapture
    yield caplog
    log_queue.flush(10)


@pytest.fixture
def reader(subject: Subject) -> ServiceStore:
    """The store in question, as services use it."""
    return _often_polled(subject.store)


@pytest.fixture
def writer(subject: Subject) -> Iterator[ServiceStore]:
    """Another client of the same store."""
    opened = subject.open()
    yield _often_polled(opened)
    opened.close()


def _often_polled(store: ServiceStore) -> ServiceStore:
    if store.poll:
        store.poll = POLL_INTERVAL_S
    return store


@pytest.fixture
def ask(subject: Subject) -> Ask:
    """Ask the store, within ten seconds."""
    return lambda request: subject.store.ask(request, Deadline.after(10))


@pytest.fixture
def make(request: pytest.FixtureRequest, subject: Subject) -> Iterator[Make]:
    """Make a mutex of the driver's that is asked for: `threads` or `asyncio`."""
    if request.param == "threads":
        yield lambda name="x", **how: InThreads(name, store=subject.store, **how)
        return
    with running_loop() as loop:
        yield lambda name="x", **how: OnALoop(loop, name, store=subject.store, **how)
