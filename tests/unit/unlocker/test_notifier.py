"""The thread that tells people: it outlives what services do, and nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from lockclient.model.clocks import monotonic
from lockclient.overview.table import Table
from tests.support.processes import wait_until
from unlocker.notifications import notification_queue
from unlocker.notifications import notifier as notifier_module
from unlocker.notifications.notification_queue import PAST_ALERT, Message, Notification
from unlocker.notifications.notifier import Notifier, Recipient


@pytest.fixture(autouse=True)
def _sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification_queue, "GATHER_S", 0.05)
    monkeypatch.setattr(notifier_module, "_POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(notifier_module, "_MIN_RETRY_S", 0.05)


@contextmanager
def running(
    notifier: Notifier,
    trouble: Callable[[], None] = lambda: None,
    is_rate_limited: Callable[[], bool] = lambda: False,
) -> Iterator[Notifier]:
    table = cast("Table", SimpleNamespace(revision=10, unlockers=dict))
    notifier.start("me", table, trouble, is_rate_limited)
    try:
        yield notifier
    finally:
        notifier.stop()


class Taker:
    """A service that takes all messages."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.bodies: list[str] = []

    def take(self, message: Message) -> bool:
        self.titles.append(message.title)
        self.bodies.append(message.body)
        return True


def event(line: str) -> Notification:
    return Notification(PAST_ALERT, line, monotonic(), 5)


def test_what_one_url_does_not_take_the_others_get_once() -> None:
    good, bad = Taker(), Taker()
    works = threading.Event()

    def refuse(message: Message) -> bool:
        if not works.is_set():
            raise RuntimeError("a mistake in a service")
        return bad.take(message)

    targets = [Recipient("bad", refuse), Recipient("good", good.take)]
    with running(Notifier(targets, "/")) as notifier:
        notifier.notify(event("one"))
        wait_until(lambda: good.bodies == ["one"])
        wait_until(
            lambda: notifier.heartbeat_fields(10) == {"told": 10}, what="that it counts as told"
        )
        notifier.notify(event("two"))
        wait_until(lambda: good.bodies == ["one", "two"])
        works.set()
        wait_until(lambda: bad.bodies == ["one", "two"])
    assert good.bodies == ["one", "two"]


def test_a_service_that_hangs_keeps_nobody_waiting() -> None:
    asked, let_go = threading.Event(), threading.Event()

    def hang(_message: Message) -> bool:
        asked.set()
        return let_go.wait(60)

    notifier = Notifier([Recipient("slow", hang)], "/")
    with running(notifier):
        notifier.notify(event("one"))
        assert asked.wait(30)
        for number in range(5000):
            notifier.notify(event(f"{number}"))
        assert notifier.heartbeat_fields(10) == {"told": 4}
    let_go.set()


def test_a_look_that_fails_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    told = Taker()
    looks = iter([RuntimeError("a bug"), None])

    def look() -> None:
        if error := next(looks, None):
            raise error

    with running(Notifier([Recipient("good", told.take)], "/"), look) as notifier:
        notifier.notify(event("one"))
        wait_until(lambda: told.bodies == ["one"])
    assert "could not be seen to" in caplog.text


def test_the_brake_is_told_once_until_it_was_off() -> None:
    told, braking = Taker(), threading.Event()
    notifier = Notifier([Recipient("good", told.take)], "/")
    with running(notifier, is_rate_limited=braking.is_set):
        braking.set()
        wait_until(lambda: told.titles == ["ClusterMutex /: 1 brake on"])
        notifier.notify(event("another"))
        wait_until(lambda: len(told.titles) == 2)
    assert told.titles[1] == "ClusterMutex /: 1 lock past its alert"


def test_with_nobody_to_tell_there_is_no_thread_and_no_word_in_the_sign_of_life() -> None:
    before = threading.active_count()
    with running(Notifier()) as notifier:
        notifier.notify(event("one"))
        assert notifier.heartbeat_fields(10) == {}
        assert threading.active_count() == before


def test_it_is_said_once_that_a_service_does_not_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    answers = iter([False, False, True, True])
    target = Recipient("chat", lambda _message: next(answers))
    for _ in range(4):
        target.deliver(Message("t", "b", good=False))
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "People can't be told by chat",
        "People can be told by chat again.",
    ]
