"""An incident of 5,000 locks, with two unlockers and twenty recipients of each kind."""

from __future__ import annotations

from functools import partial

import pytest

from lockclient import ClusterMutex, HeldLock, Settings
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_store import etcd_store
from tests.support.processes import wait_until
from tests.support.recipients import RecipientServer, each_kind
from tests.support.unlocker_process import hurried_unlocker, when_ready

pytest.importorskip("apprise", reason="no apprise: the extra notify")

LOCKS = 5000
MANY, NONE = "locks past their alert", "down to 0 locks past their alert"


def acquire(store: ServiceStore, name: str, reason: str = "import") -> HeldLock:
    mutex = ClusterMutex(
        name,
        store=store,
        reason=reason,
        expected_runtime=1,
        auto_unlock_after=None,
        capture_backtrace=False,
    )
    held = mutex.acquire()
    assert held is not None
    return held


def sizes(store: EtcdStore) -> list[int]:
    deadline = Deadline.after(10)
    names = store.document_names(deadline)
    return [len(store.read_document(name, deadline).value or b"") for name in names]


def test_an_incident_is_a_handful_of_messages_for_each_recipient(settings: Settings) -> None:
    store = etcd_store(settings)
    with each_kind(20) as servers:
        env = {"UNLOCKER_NOTIFY": " ".join(each.notify_url for each in servers.values())}
        with (
            when_ready(hurried_unlocker(settings, env=env)),
            when_ready(hurried_unlocker(settings, env=env)),
        ):
            first = acquire(store, "first", reason="refuse-me")
            answering = [each for each in servers.values() if "never" not in each.name]
            for each in answering:
                if each.name.startswith(("is-busy", "is-down")):
                    continue
                wait_for([each], "1 lock past its alert", "the first message")
            held = [acquire(store, f"lock-{number}") for number in range(LOCKS)]
            for each in answering:
                each.busy_status = 0
                if each.name.startswith("is-down"):
                    each.come_up()
            wait_for(answering, MANY, "their number")
            assert sum(sizes(store)) < 20 * 100_000
            for lock in (first, *held):
                lock.release()
            wait_for(answering, NONE, "the end")
    store.close()
    for each in answering:
        assert len(each.titles()) <= 10, (each.name, each.titles())
    refusing = [each for each in servers.values() if each.name.startswith("refuses-one-text")]
    assert all(each.messages[0].body == "Lock first is past its alert." for each in refusing)


def wait_for(servers: list[RecipientServer], text: str, what: str) -> None:
    for server in servers:
        wait_until(partial(has_title, server, text), 240, f"{what} to {server.name}")


def has_title(server: RecipientServer, text: str) -> bool:
    return any(text in title for title in server.titles())
