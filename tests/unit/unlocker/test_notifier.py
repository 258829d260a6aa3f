"""The threads that tell people: they outlive what services do, and nobody waits for them."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from lockclient.errors import StoreFull
from lockclient.model.clocks import Deadline, monotonic
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import Note
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until
from unlocker.notifications import notifier as notifier_module
from unlocker.notifications import teller as teller_module
from unlocker.notifications.events import AUTO_UNLOCKED, IS_BLIND, SEES, Event, Message
from unlocker.notifications.notifier import BlindnessDetector, Notifier
from unlocker.notifications.recipients import Recipient


@pytest.fixture(autouse=True)
def _sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "GATHER_S", 0.05)
    monkeypatch.setattr(notifier_module, "STEP_INTERVAL_S", 0.02)
    for name in ("MIN_PAUSE_S", "MIN_RETRY_S", "NO_CLAIM_S", "MAX_PAUSE_S"):
        monkeypatch.setattr(teller_module, name, 0.05)


@contextmanager
def running(
    notifier: Notifier,
    store: MemoryStore | None = None,
    trouble: Callable[[], str | None] = lambda: None,
    is_rate_limited: Callable[[], bool] = lambda: False,
) -> Iterator[Counter[str]]:
    """One that is alone; what it counts."""
    store, counts = store or MemoryStore(), Counter[str]()
    signs = {"me": json.dumps({"started_at": 1, "told": 1})}
    table = SimpleNamespace(revision=10, unlockers=lambda: signs, row=lambda _: None)

    def count(result: str, number: int) -> None:
        counts[result] += number

    notifier.start("me", store, cast("Table", table), trouble, is_rate_limited, count)
    try:
        yield counts
    finally:
        notifier.stop()
        store.close()


class Taker:
    """A service that takes all messages."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.bodies: list[str] = []

    def take(self, message: Message) -> bool:
        self.titles.append(message.title)
        self.bodies.append(message.body)
        return True


def event(name: str) -> Event:
    return Event(name, AUTO_UNLOCKED, f"It is {name}.", 1e12, 5, noticed=monotonic())


def test_what_one_url_does_not_take_the_others_get_once() -> None:
    good, bad = Taker(), Taker()
    works = threading.Event()

    def refuse(message: Message) -> bool:
        if not works.is_set():
            raise RuntimeError("a mistake in a service")
        return bad.take(message)

    notifier = Notifier([Recipient("bad", refuse), Recipient("good", good.take)], "/")
    with running(notifier):
        notifier.notify(event("one"))
        assert notifier.heartbeat_fields(10) == {"told": 4}
        wait_until(lambda: good.bodies == ["It is one."])
        assert notifier.heartbeat_fields(10) == {"told": 10}  # it is noted
        notifier.notify(event("two"))
        wait_until(lambda: len(good.bodies) == 2)
        works.set()
        wait_until(lambda: "\n".join(bad.bodies) == "It is one.\nIt is two.")
    assert good.bodies == ["It is one.", "It is two."]


def test_a_service_that_hangs_keeps_nobody_waiting() -> None:
    asked, let_go, good = threading.Event(), threading.Event(), Taker()

    def hang(_message: Message) -> bool:
        asked.set()
        return let_go.wait(60)

    notifier = Notifier([Recipient("slow", hang), Recipient("good", good.take)], "/")
    with running(notifier) as counts:
        notifier.notify(event("one"))
        assert asked.wait(30)
        for number in range(5000):
            notifier.notify(event(f"{number}"))
        wait_until(lambda: any("Also, too old" in body for body in good.bodies))
        assert counts["dropped"] > 1000
        let_go.set()


def test_a_step_that_fails_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    told = Taker()
    looks = iter([RuntimeError("a bug"), None])

    def look() -> None:
        if error := next(looks, None):
            raise error

    notifier = Notifier([Recipient("good", told.take)], "/")
    with running(notifier, trouble=look):
        notifier.notify(event("one"))
        wait_until(lambda: told.bodies)
    assert "could not be processed" in caplog.text


def test_where_no_note_can_be_written_it_is_told_once_and_noted_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(MemoryStore):
        full = True

        def write_note(self, value: bytes, seen: Note, deadline: Deadline) -> bool:
            if self.full:
                raise StoreFull("It is full.")
            return super().write_note(value, seen, deadline)

    told, store = Taker(), Full()
    notifier = Notifier([Recipient("good", told.take)], "/")
    with running(notifier, store):
        notifier.notify(event("one"))
        wait_until(lambda: told.bodies)
        assert notifier.heartbeat_fields(10) == {"told": 4}
        store.full = False
        wait_until(lambda: notifier.heartbeat_fields(10) == {"told": 10})
        notifier.notify(event("two"))
        wait_until(lambda: len(told.bodies) == 2)
    assert told.bodies == ["It is one.", "It is two."]
    assert caplog.text.count("can't be written") == 1


def test_the_brake_is_told_once_until_it_was_off() -> None:
    told, braking = Taker(), threading.Event()
    notifier = Notifier([Recipient("good", told.take)], "/")
    with running(notifier, is_rate_limited=braking.is_set):
        braking.set()
        wait_until(lambda: told.titles == ["ClusterMutex /: 1 brake on"])
        notifier.notify(event("another"))
        wait_until(lambda: len(told.titles) == 2)
    assert told.titles[1] == "ClusterMutex /: 1 lock auto-unlocked"


def test_with_nobody_to_tell_there_is_no_thread_and_no_word_in_the_sign_of_life() -> None:
    before = threading.active_count()
    notifier = Notifier()
    with running(notifier):
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
        "Notifications by chat fail",
        "Notifications by chat work again.",
    ]


# ---------------------------------------------------------------- blindness


def blindness(blind: dict[int, bool], *, told: bool = True) -> list[tuple[int, str]]:
    """Return what is told of one that is blind, or sees again, from these seconds on."""
    sight, now_blind, found = BlindnessDetector("me"), False, []
    for second in range(1000):
        now_blind = blind.get(second, now_blind)
        if event := sight.observe("Why." if now_blind else None, second):
            found.append((second, event.kind))
            event.noted = told
            assert not event.revision
    return found


def test_it_is_told_when_an_unlocker_is_blind_for_a_while_and_when_it_sees_again() -> None:
    assert blindness({100: True, 120: False}) == []
    assert blindness({100: True, 300: False}) == [(129, IS_BLIND), (359, SEES)]


def test_that_it_sees_is_told_to_who_was_told_that_it_did_not() -> None:
    assert blindness({100: True, 300: False}, told=False) == [(129, IS_BLIND)]


def test_one_that_comes_and_goes_is_blind() -> None:
    flapping = {100 + 20 * number: number % 2 == 0 for number in range(20)}
    (begin, kind), (_, end) = blindness(flapping)
    assert 150 < begin < 250
    assert (kind, end) == (IS_BLIND, SEES)


def test_one_that_was_stopped_is_not_blind() -> None:
    sight = BlindnessDetector("me")
    assert sight.observe(None, 0) is None
    assert sight.observe("It was stopped.", 900) is None
    assert sight.observe(None, 901) is None
