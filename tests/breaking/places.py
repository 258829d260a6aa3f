"""The stores that are broken, and their faults: Valkeys and a bucket (etcd: `etcd_members`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any

from lockclient import ClusterMutex, ClusterMutexError, Settings, open_store
from lockclient.model.holder import Holder
from tests.breaking.etcd_members import Broken, EtcdPlace, one_way
from tests.breaking.programs import Notes
from tests.breaking.worker import LOCKS
from tests.support.bucket.server import DROP, LATE, LOSE, REPEAT, TWICE, Asked, BucketServer
from tests.support.bucket.server import Fault as BucketFault
from tests.support.locks import has
from tests.support.relay import Relay
from tests.support.valkey_servers import frozen as valkeys_frozen
from tests.support.valkey_servers import running


class ValkeyPlace:
    """Three or five Valkeys that write all to disk before they answer."""

    auto_unlock = 8.0

    def __init__(
        self, notes: Notes, stack: ExitStack, workers: int, choose: Random, size: int = 3
    ) -> None:
        self._notes, self._choose = notes, choose
        self.servers = stack.enter_context(running(notes.folder / "valkey", size))
        self._ways = [
            [stack.enter_context(Relay(server.endpoint)) for server in self.servers.all]
            for _ in range(workers)
        ]
        self._store = stack.enter_context(self.servers.store())
        self.env: dict[str, str] = {}

    def url(self, worker: int | None) -> str:
        """Return where the store is."""
        place = self.servers.place()
        if worker is None:
            return place.url()
        ways = ",".join(way.endpoint for way in self._ways[worker])
        return place.url().replace(",".join(place.endpoints), ways)

    def direct(self) -> Sequence[str]:
        """There are no transactions with a guard."""
        return ()

    def left(self) -> list[str]:
        """Return what locks there are."""
        return _left(self._store)

    def holders(self) -> list[Holder]:
        """Return the holders of all locks."""
        return _holders(self._store)

    def faults(self) -> list[Broken]:
        """Return what can go wrong: as much of it as a majority survives, and a bit more."""
        return [
            self.killed,
            self.frozen,
            self.majority_frozen,
            self.client_cut_off,
            self.client_cut_off_one_way,
            self.delayed,
        ]

    def _server(self) -> Any:
        return self._choose.choice(self.servers.all)

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill one; it starts again with its data."""
        server = self._server()
        with self._notes.trouble():
            server.kill()
            yield
            server.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze one."""
        with self._notes.trouble(), valkeys_frozen(self._server()):
            yield

    @contextmanager
    def majority_frozen(self) -> Iterator[None]:
        """Freeze most of them."""
        most = self._choose.sample(self.servers.all, len(self.servers.all) // 2 + 1)
        with self._notes.trouble(), valkeys_frozen(*most):
            yield

    @contextmanager
    def client_cut_off(self) -> Iterator[None]:
        """Let a client reach no server."""
        ways = self._choose.choice(self._ways)
        with self._notes.trouble():
            for way in ways:
                way.cut()
            yield
            for way in ways:
                way.mend()

    @contextmanager
    def client_cut_off_one_way(self) -> Iterator[None]:
        """Let a client's requests arrive and no answer, or the other way round."""
        with one_way(self._notes, self._choose.choice(self._ways), self._choose):
            yield

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Let a client be heard late by some."""
        way = self._choose.choice(self._choose.choice(self._ways))
        with self._notes.trouble():
            way.delay = self._choose.uniform(0.1, 1.0)
            yield
            way.delay = 0.0


class BucketPlace:
    """A bucket of the tests' own, which loses, refuses, repeats, and does things too late."""

    auto_unlock = 8.0

    def __init__(self, notes: Notes, stack: ExitStack, _workers: int, choose: Random) -> None:
        self._notes, self._choose = notes, choose
        self.server = stack.enter_context(BucketServer())
        self.env = {"STORAGE_EMULATOR_HOST": self.server.url}
        os.environ.update(self.env)
        self._settings = Settings.load(f"gs://{self.server.bucket.name}/broken")
        self._store = open_store(self._settings)

    def url(self, _worker: int | None) -> str:
        """Return where the store is."""
        return self._settings.url()

    def direct(self) -> Sequence[str]:
        """There are no transactions."""
        return ()

    def left(self) -> list[str]:
        """Return what locks there are."""
        return _left(self._store)

    def holders(self) -> list[Holder]:
        """Return the holders of all locks."""
        return _holders(self._store)

    def faults(self) -> list[Broken]:
        """Return what can go wrong."""
        return [self.spoilt, self.spoilt, self.down]

    @contextmanager
    def spoilt(self) -> Iterator[None]:
        """Spoil every fourth request or so; what is late comes while that goes on."""
        over = threading.Event()

        def deliver() -> None:
            while not over.wait(0.1):
                self.server.deliver()

        thread = threading.Thread(target=deliver)
        with self._notes.trouble():
            self.server.trouble = self._spoil
            thread.start()
            yield
            self.server.trouble = lambda _: None
            over.set()
            thread.join()
            self.server.deliver()

    def _spoil(self, asked: Asked) -> BucketFault | None:
        if self._choose.random() > 0.25:
            return None
        kind = self._choose.choice((LOSE, DROP, LATE, TWICE, REPEAT, 409, 503, 429))
        if asked.method == "GET" and kind in (LATE, TWICE, REPEAT, 409):
            return None  # faults of writes
        return BucketFault(asked.method, kind)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Have it answer nobody."""
        with self._notes.trouble():
            self.server.trouble = lambda asked: BucketFault(asked.method, DROP)
            yield
            self.server.trouble = lambda _: None


def _holders(store: Any) -> list[Holder]:
    """Return the holders of all locks, none if the store does not answer."""
    with suppress(ClusterMutexError):
        found = [ClusterMutex(name, store=store).holder() for name in LOCKS]
        return [holder for holder in found if holder is not None]
    return []


def _left(store: Any) -> list[str]:
    with suppress(ClusterMutexError):
        return [name for name in LOCKS if has(store, name) is not None]
    return ["it does not answer"]


PLACES: dict[str, Callable[..., Any]] = {
    "etcd": EtcdPlace,
    "valkey": ValkeyPlace,
    "bucket": BucketPlace,
}
