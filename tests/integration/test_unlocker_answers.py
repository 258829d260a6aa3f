"""A store that gives no answer about one lock, and answers for all others, is not away."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, Runtime
from lockclient.settings import Settings
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Outcome, Taken
from lockclient.stores.requests import Read, Request, Take
from tests.integration.test_unlocker_removal import running
from tests.support.processes import wait_until
from tests.support.records import taker


def test_one_lock_without_an_answer_delays_no_other(
    settings: Settings, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    really = EtcdStore.ask

    def ask(self: EtcdStore, request: Request, deadline: Deadline) -> Outcome:
        if isinstance(request, Read) and request.name == "bad":
            asked.append(time.monotonic())
            raise StoreUnavailable("no answer")
        return really(self, request, deadline)

    monkeypatch.setattr(EtcdStore, "ask", ask)
    with running(settings) as unlocker:
        for name in ("bad", *(f"good-{number}" for number in range(3))):
            holder = taker(name, Runtime(0.5, 1.0), uuid=uuid4().hex)
            assert isinstance(store.ask(Take(holder), Deadline.after(30)), Taken)
        unready = set[str | None]()

        def good_are_gone() -> bool:
            unready.add(unlocker.is_ready())
            return set(unlocker._table.rows()) == {"bad"}

        wait_until(good_are_gone, what="the others to go")
        first = len(asked)
        wait_until(lambda: len(asked) > first + 1, what="it to be tried on")
        assert unready == {None}
