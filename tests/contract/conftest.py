"""The stores that keep the contract: another one joins with one more parameter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from lockclient.etcd.store import EtcdStore
from lockclient.store import MutexStore
from lockclient.timing import Deadline
from tests.contract.asking import Ask
from tests.memory_store import MemoryStore


@dataclass(frozen=True)
class Subject:
    """A store and what its contract can't do for itself: lose the tickets of this process."""

    store: MutexStore
    lose_tickets: Callable[[], object]


@pytest.fixture(params=["memory", "etcd"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Each store in turn."""
    if request.param == "memory":
        memory = MemoryStore()
        yield Subject(memory, memory.lose_tickets)
        return
    store: EtcdStore = request.getfixturevalue("store")
    etcdctl: Callable[..., str] = request.getfixturevalue("etcdctl")

    def revoke() -> None:
        line = etcdctl("get", "--prefix", f"{store.settings.root}/queue/", "-w", "json")
        for lease in {kv["lease"] for kv in json.loads(line)["kvs"]}:
            etcdctl("lease", "revoke", f"{lease:x}")

    yield Subject(store, revoke)


@pytest.fixture
def ask(subject: Subject) -> Ask:
    """Ask the store, within ten seconds."""
    return lambda request: subject.store.ask(request, Deadline.after(10))
