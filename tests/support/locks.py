"""Locks of any store, read and written by tests past the mutexes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from os import environ
from threading import Barrier, Thread
from typing import Any

import pytest

from lockclient import ClusterMutex, HeldLock, LockLost, Settings
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.mutex_store import MutexStore
from lockclient.stores.outcomes import Done, Outcome, ReadResult, Taken
from lockclient.stores.request_types import Read, Remove, Request, Take, Unlock
from tests.contract.asking import NAME, holder
from tests.support.processes import line_from, wait_until

PATIENCE = 60.0


def soon() -> Deadline:
    return Deadline.after(PATIENCE)


def ask(store: MutexStore, request: Request, seconds: float = PATIENCE) -> Outcome:
    return store.ask(request, Deadline.after(seconds))


def read(store: MutexStore, name: str = NAME, uuid: str | None = None) -> ReadResult:
    """Return what stands there for a lock, with its line and the record of a holder's removal."""
    seen = ask(store, Read(name, uuid, waiters=store.can.queue))
    assert isinstance(seen, ReadResult)
    return seen


def held(store: MutexStore, name: str = NAME) -> Holder:
    holder = read(store, name).holder
    assert holder is not None
    return holder


def has(store: MutexStore, name: str = NAME) -> str | None:
    holder = read(store, name).holder
    return None if holder is None else holder.uuid


def removal_of(store: MutexStore, holder: Holder) -> Removal:
    """Wait until a holder has been removed, and return the record."""
    what = f"the removal of {holder.name!r}"
    return wait_until(lambda: read(store, holder.name, holder.uuid).removal, what=what)


def take(store: MutexStore, mine: Holder | None = None) -> tuple[str, int]:
    """Take a lock, as a holder that was never there before if not as this one: uuid and token."""
    mine = mine or holder()
    got = ask(store, Take(mine))
    assert isinstance(got, Taken)
    return mine.uuid or "", got.token


def unlock(store: MutexStore, uuid: str, name: str = NAME) -> None:
    assert isinstance(ask(store, Unlock(name, uuid)), Done)


def remove(store: MutexStore, holder: Holder, why: str = "it hangs", who: str = "ann") -> Removal:
    """Take a lock from its holder, as a person does."""
    removal = Removal(holder, time.time(), who, "force-unlock", why)
    assert isinstance(ask(store, Remove(removal, None)), Done)
    return removal


def lose(store: MutexStore, mutex: ClusterMutex) -> HeldLock:
    """Acquire, have the lock taken away by a person, and be told of it by the release."""
    lost = mutex.acquire()
    assert lost is not None
    remove(store, held(store, mutex.name))
    with pytest.raises(LockLost):
        lost.release()
    return lost


def left_nothing(store: MutexStore) -> None:
    """Wait until a store has cleaned up, and see that nobody has the lock."""
    wait_until(lambda: not store.background.unfinished(), what="the clean-up")
    assert has(store) is None


def at_once(asked: Mapping[str, tuple[MutexStore, Request]]) -> dict[str, Outcome]:
    """Ask each in a thread of its own, all begun together; return the outcomes by their names."""
    together = Barrier(len(asked))

    def one(store: MutexStore, request: Request) -> Outcome:
        together.wait(PATIENCE)
        return ask(store, request)

    with ThreadPoolExecutor(len(asked)) as threads:
        begun = {who: threads.submit(one, *what) for who, what in asked.items()}
        return {who: outcome.result() for who, outcome in begun.items()}


def queue_up(waiter: ClusterMutex, timeout: float = -1) -> Thread:
    """Have a thread wait for a lock that is held; return it when it is in line."""
    before = len(waiter.waiters())
    thread = Thread(target=waiter.acquire, kwargs={"timeout": timeout}, daemon=True)
    thread.start()
    wait_until(lambda: len(waiter.waiters()) > before, what="the waiter in line")
    return thread


class HolderProcess:
    """A process that holds a lock, and does nothing else until it is killed; a context manager.

    Args:
        settings: of the store.
        name: of the lock.
        env: more of its environment.
        how: as for `ClusterMutex`.
    """

    def __init__(
        self, settings: Settings, name: str, env: Mapping[str, str] | None = None, **how: Any
    ) -> None:
        words = [sys.executable, "-c", _HOLDER, settings.url(), name, json.dumps(how)]
        location = settings.location
        user = {
            "ETCDCTL_USER": getattr(location, "user", None),
            "ETCDCTL_PASSWORD": getattr(location, "password", None),
        }
        self.process = subprocess.Popen(
            words,
            env={**environ, **{key: word for key, word in user.items() if word}, **(env or {})},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.uuid = line_from(self.process)
        assert self.uuid

    def kill(self) -> str:
        """Kill it, as the kernel does when memory runs out; return the uuid."""
        with self.process:  # its pipe is closed as well
            self.process.kill()
        return self.uuid

    def __enter__(self) -> HolderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


_HOLDER = """
import json, sys, time
from lockclient import ClusterMutex, Settings, open_store

_, url, name, how = sys.argv
mutex = ClusterMutex(name, store=open_store(Settings.load(url)), **json.loads(how))
mutex.acquire()
print(mutex.uuid, flush=True)
time.sleep(600)
"""
