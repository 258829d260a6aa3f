"""Three members of etcd, and the faults of the members and of the network to them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from random import Random
from typing import Any

from lockclient import Settings
from lockclient.cli.setup.etcd_server import Etcd, find_etcd
from lockclient.model.holder import Holder
from tests.breaking.programs import Notes
from tests.breaking.recorder import Recorder
from tests.support.etcd_binary import etcdctl_of, frozen
from tests.support.etcd_cluster import Cluster
from tests.support.processes import wait_until
from tests.support.relay import Relay
from tests.support.tcp_proxy import Fault, Proxy

Broken = Callable[[], AbstractContextManager[object]]
"""Breaks something until the end of the block."""


class EtcdPlace:
    """Three members; some workers reach them by relays, the others by proxies that read HTTP/2."""

    auto_unlock = 5.0

    def __init__(self, notes: Notes, stack: ExitStack, workers: int, choose: Random) -> None:
        binary = os.environ.get("CLUSTERMUTEX_TEST_ETCD") or find_etcd()
        assert binary, "no etcd"
        self._notes, self._choose = notes, choose
        self.cluster = stack.enter_context(Cluster(binary, notes.folder))
        self._pool = stack.enter_context(ThreadPoolExecutor(3))
        self.recorder = stack.enter_context(Recorder(self.cluster, notes.write))
        endpoints = [member.endpoint for member in self.cluster.members]
        kinds: list[Any] = [Relay, Proxy]
        self._ways = [
            [stack.enter_context(kinds[number % 2](at)) for at in endpoints]
            for number in range(workers)
        ]
        self.endpoints = tuple(endpoints)
        self.env: dict[str, str] = {}

    def url(self, worker: int | None) -> str:
        """Return where the store is for a worker, or for a service."""
        ways = self.endpoints if worker is None else [way.endpoint for way in self._ways[worker]]
        return Settings(endpoints=tuple(ways)).url()

    def direct(self) -> Sequence[str]:
        """Return where to count by transactions."""
        return self.endpoints

    def left(self) -> list[str]:
        """Return what locks and tickets there are."""
        with suppress(AssertionError):
            found = [*self.cluster.keys("/clustermutex/locks/"), *self._tickets()]
            return [key for key in found if "/queue/" in key or key.endswith("/uuid")]
        return ["etcd does not answer"]

    def holders(self) -> list[Holder]:
        """Return none: the recorder has all locks."""
        return []

    def _tickets(self) -> list[str]:
        return self.cluster.keys("/clustermutex/queue/")

    def faults(self) -> list[Broken]:
        """Return what can go wrong, each with one member or way, chosen anew each time."""
        return [
            self.killed,
            self.frozen,
            self.majority_frozen,
            self.cut_off,
            self.cut_off_one_way,
            self.all_restarted,
            self.compacted,
            self.no_space,
            self.client_cut_off,
            self.client_cut_off_one_way,
            self.client_delayed,
            self.client_swallowed,
            self.requests_spoilt,
        ]

    def _alive(self) -> list[Etcd]:
        """Return the members that are not killed at the moment."""
        members = self.cluster.members
        return [each for each in members if each.process and each.process.poll() is None]

    def _member(self) -> Etcd:
        if self._choose.random() < 0.5:
            return self.cluster.leader()
        followers = self.cluster.followers()
        return self._choose.choice([each for each in self._alive() if each in followers])

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the leader or a follower."""
        with self._notes.trouble(), self.cluster.killed(self._member()):
            yield

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the leader or a follower."""
        with self._notes.trouble(), frozen(self._member()):
            yield

    @contextmanager
    def majority_frozen(self) -> Iterator[None]:
        """Freeze two of those that live."""
        one, other = self._choose.sample(self._alive(), 2)
        with self._notes.trouble(), frozen(one), frozen(other):
            yield

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Cut a member off from the others; its clients reach it."""
        with self._notes.trouble(), self.cluster.cut_off(self._member()):
            yield

    @contextmanager
    def cut_off_one_way(self) -> Iterator[None]:
        """Let a member hear the others and not be heard, or be heard and not hear."""
        says = self._choose.random() < 0.5
        member = self._member()
        with self._notes.trouble(), self.cluster.cut_off(member, says=says, hears=not says):
            yield

    @contextmanager
    def all_restarted(self) -> Iterator[None]:
        """Kill all, and start them again."""
        with self._notes.trouble():
            for member in self.cluster.members:
                assert member.process is not None
                member.process.kill()
                member.process.wait()
            list(self._pool.map(lambda member: member.start(), self.cluster.members))
            yield

    @contextmanager
    def compacted(self) -> Iterator[None]:
        """Have etcd forget the past again and again, and give back its space."""
        with self._notes.trouble():
            for member in self.cluster.members:
                with suppress(AssertionError):  # it has no leader, or it was compacted there
                    etcdctl_of(member)("compact", str(self.recorder.revision))
                    etcdctl_of(member)("defrag")
                time.sleep(0.2)
            yield

    @contextmanager
    def no_space(self) -> Iterator[None]:
        """Have etcd take nothing that needs space, by the alarm that a member raises when full."""

        def disarmed() -> bool:
            with suppress(AssertionError):  # there is no leader at the moment
                etcdctl_of(self.cluster.leader())("alarm", "disarm")
                return True
            return False

        with self._notes.trouble(), self._notes.trouble(what="full"):
            try:
                self.cluster.raise_no_space(self._member())
                yield
            finally:  # an alarm that was not answered may have been raised
                wait_until(disarmed, what="space")

    def _way(self, kind: type) -> tuple[str, list[Any]]:
        """Return a worker whose ways are of a kind, and them; see `url`."""
        number = self._choose.choice(
            [n for n, way in enumerate(self._ways) if type(way[0]) is kind]
        )
        return f"worker{number}", self._ways[number]

    @contextmanager
    def client_cut_off(self) -> Iterator[None]:
        """Let a client reach no member."""
        _, ways = self._way(Relay)
        with self._notes.trouble():
            for way in ways:
                way.cut()
            yield
            for way in ways:
                way.mend()

    @contextmanager
    def client_cut_off_one_way(self) -> Iterator[None]:
        """Let a client's requests arrive and no answer, or the other way round."""
        _, ways = self._way(Relay)
        with one_way(self._notes, ways, self._choose):
            yield

    @contextmanager
    def client_delayed(self) -> Iterator[None]:
        """Let a client and the members hear each other late."""
        _, ways = self._way(Relay)
        with self._notes.trouble():
            for way in ways:
                way.delay = self._choose.uniform(0.1, 1.0)
            yield
            for way in ways:
                way.delay = 0.0

    @contextmanager
    def client_swallowed(self) -> Iterator[None]:
        """Let what is said on a client's connections go nowhere, without a word."""
        _, ways = self._way(Relay)
        with self._notes.trouble():
            for way in ways:
                way.swallow()
            yield

    @contextmanager
    def requests_spoilt(self) -> Iterator[None]:
        """Lose, delay, cut and hold back requests and answers of one client, one after another."""
        _, ways = self._way(Proxy)
        over = threading.Event()

        def spoil() -> None:
            kinds = [kind for kind in Fault if kind is not Fault.HOLD_TO_THE_END]
            while not over.wait(0.1):
                way = self._choose.choice(ways)
                if way.met():
                    way.inject(self._choose.choice(kinds))

        thread = threading.Thread(target=spoil)
        with self._notes.trouble():
            thread.start()
            yield
            over.set()
            thread.join()


@contextmanager
def one_way(notes: Notes, ways: Sequence[Relay], choose: Random) -> Iterator[None]:
    requests = choose.random() < 0.5
    with notes.trouble():
        for way in ways:
            way.hold(requests=requests)
        yield
        for way in ways:
            way.mend()
