"""Eight processes on five servers that are killed, frozen and started again: no two hold one lock.

And when what Redlock asks for does not hold, the same checker finds that two did.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Taken
from lockclient.stores.requests import Take
from lockclient.stores.valkey.store import ValkeyStore
from tests.contract.asking import NAME, holder
from tests.support.clock_shim import Clock, compile_library
from tests.support.histories import Hold, Plan, Worker, overlaps
from tests.support.locks import has, take
from tests.support.processes import Figure, wait_until
from tests.support.soak import soaking
from tests.support.valkey_servers import Server, Servers, running

PROCESSES = 8
NAMES = "ab"
LONGEST = 10.0
WAYS = KILLED, FROZEN = "killed", "frozen"
EMPTIED, DEMOTED = "emptied", "demoted"
"""What happens to servers; those of the second row wait then until all of before is over."""
AUTO_UNLOCK = 3.0
LONG = float(os.environ.get("CLUSTERMUTEX_TEST_HISTORY", "20"))
ENOUGH = 50
"""Holds without which a history says little, however long it took."""
BRIEF: dict[str, Any] = {"auto_unlock_after": 10.0, "expected_runtime": 5.0}


class Trouble:
    """Does to one server or two what it is told by its ways, at moments and for times of its own.

    One that is to wait before it votes again is left alone for about as long, so that most of the
    time a majority votes.
    """

    def __init__(self, servers: Servers, seed: int, ways: Sequence[str]) -> None:
        self.done: dict[str, list[float]] = {way: [] for way in ways}
        self._servers = servers
        self._choose = random.Random(seed)
        self._over, self._calm, self._end = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        waits_until: dict[Server, float] = {}
        while not self._over.wait(self._choose.uniform(0.1, 1.0)):
            voting = [
                server
                for server in self._servers.all
                if waits_until.get(server, 0.0) < time.monotonic()
            ]
            self._choose.shuffle(voting)
            spare = len(voting) - 3
            if spare <= 0:
                continue
            way = self._choose.choice([*self.done])
            victims = voting[: self._choose.choice([1, spare])]
            for victim in victims:
                self._begin(way, victim, voting[-1])
            self._over.wait(self._choose.uniform(0.05, 2.0))
            for victim in victims:
                self._end_of(way, victim)
                if way in (EMPTIED, DEMOTED):
                    rest = self._choose.uniform(0.8, 1.2) * LONGEST
                    waits_until[victim] = time.monotonic() + rest
        self._calm.set()
        self._end.wait()  # what a thread has started ends with it

    def _begin(self, way: str, victim: Server, other: Server) -> None:
        self.done[way].append(time.monotonic())
        if way == DEMOTED:
            victim.command("REPLICAOF", "127.0.0.1", str(other.port))
        elif way == FROZEN:
            victim.freeze()
        else:
            victim.kill()

    @staticmethod
    def _end_of(way: str, victim: Server) -> None:
        if way == DEMOTED:
            victim.command("REPLICAOF", "NO", "ONE")
        elif way == FROZEN:
            victim.thaw()
        elif way == EMPTIED:
            victim.empty()
        else:
            victim.start()

    def calm(self) -> None:
        self._over.set()
        assert self._calm.wait(90)

    def __enter__(self) -> Trouble:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._end.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("seconds", "ways", "lasting"),
    [(5.0, WAYS, 0.0), *soaking((LONG, WAYS, 0.0), (10 * LONG, (*WAYS, EMPTIED, DEMOTED), 60.0))],
)
def test_no_two_hold_one_lock_at_once(
    seconds: float, ways: Sequence[str], lasting: float, tmp_path: Path, figure: Figure
) -> None:
    """And nothing is left in the end that keeps others from having it.

    Servers that were emptied or demoted have lost what they had given: who holds a lock for longer
    than three of those have a majority gets it back from them.
    """

    def held() -> dict[str, list[Hold]]:
        return {
            name: [hold for worker in workers for hold in worker.holds()[name]] for name in NAMES
        }

    choose, workers = random.Random(17), list[Worker]()
    quick = ("--repl-diskless-sync-delay", "0")
    with (
        running(tmp_path, 5, options=quick) as five,
        five.store(expire=True, longest=LONGEST) as store,
    ):
        plan = Plan(store.location.url(), NAMES, AUTO_UNLOCK, (0, 5), lasting=lasting)

        def add() -> Worker:
            workers.append(Worker(plan, tmp_path / f"history-{len(workers)}"))
            return workers[-1]

        alive = [add() for _ in range(PROCESSES)]
        with Trouble(five, 17, ways) as trouble:
            try:
                wait_until(lambda: all(one.file.exists() for one in alive), what="all workers")
                until = time.monotonic() + seconds
                while (
                    time.monotonic() < until
                    or sum(map(len, held().values())) <= ENOUGH
                    or not all(trouble.done.values())
                ):
                    time.sleep(choose.uniform(1.0, 2.0))
                    if not lasting or choose.random() < 0.1:  # else nobody has it for long
                        alive.pop(0).kill()
                        alive.append(add())
                    frozen = alive[choose.randrange(4)].process
                    frozen.send_signal(signal.SIGSTOP)  # for longer than its locks are safe
                    time.sleep(AUTO_UNLOCK + choose.uniform(0.2, 0.5))
                    frozen.send_signal(signal.SIGCONT)
            finally:
                for worker in alive:
                    worker.kill()
            trouble.calm()
            for name in NAMES:
                wait_until(partial(_is_free, store, name), what="the end of what is left")
    holds = held()
    lost = sorted(trouble.done.get(EMPTIED, []) + trouble.done.get(DEMOTED, []))
    survived = max(
        sum(hold.got < at < hold.end for at in lost) for some in holds.values() for hold in some
    )
    figure(
        f"{sum(map(len, holds.values()))} holds in {seconds:.0f} s by {PROCESSES} processes, of "
        f"which {len(workers)} were started; "
        f"servers { {way: len(moments) for way, moments in trouble.done.items()} }, one hold over "
        f"{survived} that lost what they had given: no overlap"
    )
    assert [overlaps(of_name) for of_name in holds.values()] == [[]] * len(NAMES)


def _is_free(store: ValkeyStore, name: str) -> bool:
    mine = holder(name, **BRIEF)
    return isinstance(store.ask(Take(mine), Deadline.after(10)), Taken)


def link_status(replica: Server) -> str:
    return str(replica.command("INFO")["master_link_status"])


class TestWhatRedlockCanNotPromise:
    """The counterexamples of docs/protocol-valkey.md, found by the same checker."""

    def test_servers_whose_clocks_jump_give_a_lock_twice(self, tmp_path: Path) -> None:
        """Where locks expire by themselves: three servers that believe that an hour has passed."""
        clock = Clock(compile_library(tmp_path))
        servers = [Server(tmp_path / f"server-{i}", env=clock.env) for i in range(5)]
        try:
            five = Servers([server.start() for server in servers])
            with five.store(expire=True) as one, five.store(expire=True) as two:
                first = self.taken(one)
                clock.move(3600.0)
                wait_until(lambda: has(two) is None, what="the expiry")
                second = self.taken(two)
                assert overlaps([first, second]) == [(first, second)]
        finally:
            for server in servers:
                server.stop()

    def test_not_where_an_unlocker_ends_them(self, tmp_path: Path) -> None:
        """There no lock expires for a day after its time, and an hour does not matter."""
        clock = Clock(compile_library(tmp_path))
        server = Server(tmp_path / "server", env=clock.env)
        try:
            one = Servers([server.start()])
            with one.store() as store:
                first = self.taken(store)
                clock.move(3600.0)
                assert has(store) == first.uuid
        finally:
            server.stop()

    def test_who_is_paused_and_does_not_look_works_on(self, tmp_path: Path) -> None:
        """Its time is over by its own clock as well; but a pause is not noticed by who pauses."""
        with running(tmp_path, 1) as servers, servers.store(expire=True) as store:
            first = self.taken(store, lasts=0.5)
            worked_until = time.monotonic() + 1.5  # a long collection of garbage, say
            wait_until(lambda: has(store) is None, what="the expiry")
            second = self.taken(store)
            assert overlaps([first._replace(end=worked_until), second]) != []
            assert overlaps([first, second]) == []  # that it was lost, it could have known

    def test_a_replica_that_is_promoted_gives_a_lock_twice_unless_that_is_noticed(
        self, tmp_path: Path
    ) -> None:
        """It never had the lock. Asked by a new connection it says who it is, and does not vote."""
        primary = Server(tmp_path / "primary").start()
        replica = Server(tmp_path / "replica").start()
        try:
            servers = Servers([primary])
            with servers.store(longest=60.0) as store:
                replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
                wait_until(lambda: link_status(replica) == "up", what="the replica")
                replica.freeze()
                primary.command("CLIENT", "KILL", "TYPE", "replica")  # else its data is on the way
                first = self.taken(store, lasts=50.0)
                primary.kill()
                replica.thaw()
                wait_until(lambda: link_status(replica) == "down", what="the primary's end")
                replica.command("REPLICAOF", "NO", "ONE")
                assert replica.command("EXISTS", store.keys.lock(NAME)) == 0
            behind_it = Servers([replica])
            behind_it.root = servers.root
            with behind_it.store(vouched=False, longest=60.0) as store:
                with pytest.raises(ConnectionError, match="votes in"):
                    store.ask(Take(holder(**BRIEF)), Deadline.after(1.0))
                store.vouch()  # as by a proxy, or a person, that says it is all the same
                second = self.taken(store, lasts=50.0)
            assert overlaps([first, second]) == [(first, second)]
        finally:
            primary.stop()
            replica.stop()

    @staticmethod
    def taken(store: ValkeyStore, lasts: float = 600.0) -> Hold:
        """Take the lock; return when, and until when it is its taker's."""
        mine = holder(auto_unlock_after=lasts, expected_runtime=lasts / 2)
        at = time.monotonic()
        uuid, _ = take(store, mine)
        return Hold(at, at + lasts, uuid)
