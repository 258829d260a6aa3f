"""`expire=1`: without an unlocker, a client removes a lock that it has seen silent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.model import clocks
from lockclient.model.clocks import Deadline, Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK
from lockclient.stores.outcomes import Done, NotHolder, Position, Refused, Taken
from lockclient.stores.request_types import GetPosition, Push, Take, Unlock
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, NEVER, holder
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import DROP, LOSE, REPEAT, BucketServer
from tests.support.bucket_store import OBJECT, store_of
from tests.support.locks import HolderProcess, ask, at_once, has, read, removal_of, take
from tests.support.soak import soaking

D = 200.0
"""Seconds that the holders of these tests may be silent."""
WAITER = "waiter"


class Clock:
    """The monotonic clock of those who count silence, which a test moves."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return clocks.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("lockclient.stores.gcs.expiry.monotonic", made)
    return made


def opened(server: BucketServer) -> ServiceStore:
    return open_store(Settings.load(f"gs://{server.bucket.name}?expire=1"))


@pytest.fixture
def taker(server: BucketServer) -> Iterator[ServiceStore]:
    """A client that wants the lock, and lets locks expire."""
    store = opened(server)
    yield store
    store.close()


@pytest.fixture
def second(server: BucketServer) -> Iterator[ServiceStore]:
    store = opened(server)
    yield store
    store.close()


def look(store: ServiceStore) -> str | None:
    """Poll the lock as a waiter does."""
    position = ask(store, GetPosition(NAME, WAITER, 0))
    assert isinstance(position, Position)
    return position.holder


def rewrite(server: BucketServer, **metadata: str | None) -> None:
    server.bucket.patch(OBJECT, {"metadata": metadata}, Conditions())


class TestRemoval:
    def test_an_expired_lock_is_removed_with_a_record(
        self, store: ServiceStore, taker: ServiceStore, clock: Clock
    ) -> None:
        mine = holder(backtrace="  File x", reason="why")
        uuid, token = take(store, mine)
        assert look(taker) == uuid
        clock.ahead = D
        assert look(taker) == uuid  # a thousandth more, for clocks that do not run alike
        clock.ahead = D * 1.001 + 1
        assert look(taker) is None
        kept = removal_of(store, mine)
        assert kept.how == AUTO_UNLOCK
        assert kept.removed_by.startswith("taker@")
        assert kept.holder.backtrace == "  File x"
        assert "no heartbeat" in kept.why
        lost = ask(store, Push(NAME, uuid, Stamps(2.0, 3.0), token))
        assert isinstance(lost, NotHolder)
        assert lost.removal is not None
        assert isinstance(ask(store, Unlock(NAME, uuid)), NotHolder)
        take(taker)

    @pytest.mark.parametrize(
        ("facts", "written"),
        [
            ({}, {"auto_unlock_at": None}),
            ({}, {"hostname": None}),
            ({}, {"alert_at": "soon"}),
            ({"format": 2}, {}),
            ({"format": 2}, {"about": None}),  # only the lock itself says so, no list
            (NEVER, {}),
        ],
    )
    def test_undecided_broken_and_unlimited_locks_stay(
        self,
        server: BucketServer,
        store: ServiceStore,
        taker: ServiceStore,
        clock: Clock,
        facts: dict[str, Any],
        written: dict[str, str | None],
    ) -> None:
        mine = holder(**facts)
        uuid, _ = take(store, mine)
        if "about" in written:
            written = {"about": replace(mine, format=None).subkeys()["about"]}
        if written:
            rewrite(server, **written)
        look(taker)
        clock.ahead = 10 * D
        assert look(taker) == uuid
        if facts is NEVER:
            assert server.counted("GET", "locks-unlockers") == 0

    def test_each_push_counts_anew(
        self, store: ServiceStore, taker: ServiceStore, clock: Clock
    ) -> None:
        uuid, token = take(store)
        for step in range(1, 4):
            assert look(taker) == uuid
            clock.ahead = step * (D - 10)
            pushed = ask(store, Push(NAME, uuid, Stamps(100.0 + step, 200.0 + step), token))
            assert isinstance(pushed, Done)
            token = pushed.revision
        assert look(taker) == uuid

    def test_off_unless_asked_for(
        self, store: ServiceStore, other: ServiceStore, clock: Clock
    ) -> None:
        uuid, _ = take(store)
        assert look(other) == uuid
        clock.ahead = 10 * D
        assert look(other) == uuid
        assert not other.can.expires

    def test_a_holder_that_reads_its_own_lock_removes_nothing(
        self, taker: ServiceStore, clock: Clock
    ) -> None:
        uuid, _ = take(taker)
        for ahead in (0.0, 10 * D):
            clock.ahead = ahead
            assert ask(taker, GetPosition(NAME, "", 0)) == Position(
                False, None, uuid, ask_revision(taker)
            )


def ask_revision(store: ServiceStore) -> int:
    position = ask(store, GetPosition(NAME, "", 0))
    assert isinstance(position, Position)
    return position.revision


class TestUnlockers:
    """While one lives nothing expires."""

    @staticmethod
    def announce(store: ServiceStore, ttl: float = 10.0) -> None:
        store.announce("unlocker-1", json.dumps({"ttl": ttl}), ttl, Deadline.after(60))

    def test_a_taker_removes_only_silence_that_it_observed(
        self, store: ServiceStore, taker: ServiceStore, clock: Clock
    ) -> None:
        uuid, _ = take(store)
        look(taker)
        self.announce(store, ttl=600.0)
        clock.ahead = 10 * D
        assert look(taker) == uuid

    @pytest.mark.parametrize("how", ["withdrawn", "killed", "not seen"])
    def test_silence_counts_from_the_last_heartbeat(
        self, server: BucketServer, store: ServiceStore, taker: ServiceStore, clock: Clock, how: str
    ) -> None:
        uuid, _ = take(store)
        assert look(taker) == uuid
        clock.ahead = server.ahead = D - 20
        self.announce(store)
        assert how == "not seen" or look(taker) == uuid
        if how == "withdrawn":
            store.withdraw_announcement("unlocker-1", Deadline.after(60))
        clock.ahead = server.ahead = D + 20
        assert look(taker) == uuid
        clock.ahead = server.ahead = 2 * D
        assert look(taker) is None

    def test_an_unreadable_unlocker_may_exist(
        self, server: BucketServer, store: ServiceStore, taker: ServiceStore, clock: Clock
    ) -> None:
        uuid, _ = take(store)
        look(taker)
        clock.ahead = 10 * D
        server.fault("GET", 503, part="/o?", times=1000)
        refused = ask(taker, Take(holder()), 1.0)
        assert isinstance(refused, Refused)
        assert refused.holder == uuid
        server.heal()
        assert look(taker) is None

    def test_waiting_costs_a_listing_each_ten_seconds(
        self, server: BucketServer, store: ServiceStore, taker: ServiceStore, clock: Clock
    ) -> None:
        take(store)
        for ahead in range(0, 100, 2):
            clock.ahead = ahead
            look(taker)
        listings = sum(asked.path.endswith("/o") for asked in server.asked)
        assert listings <= 11


class TestRaces:
    """Both orders, and the requests that are lost or repeated in between."""

    def due(self, server: BucketServer, clock: Clock, *takers: ServiceStore) -> tuple[Holder, int]:
        mine = holder()
        clock.ahead = 0.0
        owner = open_store(Settings.load(f"gs://{server.bucket.name}"))
        _, token = take(owner, mine)
        owner.close()
        for one in takers:
            assert look(one) == mine.uuid
        clock.ahead = D + 10
        return mine, token

    @pytest.mark.parametrize("rounds", [10, *soaking(200)])
    def test_two_takers_make_one_removal_and_one_lock(
        self,
        server: BucketServer,
        taker: ServiceStore,
        second: ServiceStore,
        clock: Clock,
        rounds: int,
    ) -> None:
        for _ in range(rounds):
            mine, _ = self.due(server, clock, taker, second)
            wanted = {who: holder() for who in ("taker", "second")}
            outcomes = at_once(
                {
                    "taker": (taker, Take(wanted["taker"])),
                    "second": (second, Take(wanted["second"])),
                }
            )
            had = [who for who, outcome in outcomes.items() if isinstance(outcome, Taken)]
            assert len(had) == 1, outcomes
            assert has(taker) == wanted[had[0]].uuid
            records = [name for name in server.bucket.names() if f"/{mine.uuid}" in name]
            assert len(records) == 1
            ask({"taker": taker, "second": second}[had[0]], Unlock(NAME, wanted[had[0]].uuid or ""))

    def test_a_push_right_before_the_decision_wins(
        self, server: BucketServer, taker: ServiceStore, clock: Clock
    ) -> None:
        mine, _ = self.due(server, clock, taker)

        def push(asked: Any) -> None:
            if asked.method == "PATCH" and b"removing" in asked.body:
                server.trouble = lambda _: None
                rewrite(server, alert_at="250", auto_unlock_at="350")

        server.trouble = push
        assert isinstance(ask(taker, Take(holder())), Refused)
        assert has(taker) == mine.uuid
        clock.ahead += D - 10
        assert look(taker) == mine.uuid
        clock.ahead += 20
        assert look(taker) is None

    @pytest.mark.parametrize("kind", [LOSE, DROP, REPEAT, 503, 409, 429])
    @pytest.mark.parametrize("method", ["PATCH", "POST"])
    def test_lost_answers_change_nothing(
        self, server: BucketServer, taker: ServiceStore, clock: Clock, method: str, kind: str | int
    ) -> None:
        mine, _ = self.due(server, clock, taker)
        server.fault(method, kind, part=OBJECT if method == "PATCH" else "")
        assert look(taker) is None
        kept = removal_of(taker, mine)
        assert kept.removed_by.startswith("taker@")
        take(taker)

    def test_a_taker_that_failed_while_removing_leaves_nothing(
        self, server: BucketServer, taker: ServiceStore, clock: Clock
    ) -> None:
        self.due(server, clock, taker)
        server.fault("PATCH", LOSE)
        mine = holder()
        assert isinstance(ask(taker, Take(mine)), Taken)
        said, _ = server.bucket.get(OBJECT)
        tombstone_until = float(said["metadata"].get("late_until", 0))
        assert tombstone_until < time.time() + 86400 + 60
        assert said["metadata"]["uuid"] == mine.uuid


class TestPrograms:
    """With real processes, clocks and pauses."""

    def test_a_waiter_gets_the_lock_of_a_killed_holder(self, server: BucketServer) -> None:
        settings = Settings.load(f"gs://{server.bucket.name}/of/the/test?expire=1")
        store = store_of(settings)
        dead = HolderProcess(settings, "nightly", expected_runtime=1, auto_unlock_after=2).kill()
        with ClusterMutex("nightly", store=store, timeout=120):
            kept = read(store, "nightly", dead).removal
            assert kept is not None
            assert kept.removed_by.startswith("taker@")
            assert "in <module>" in (kept.holder.backtrace or "")
        store.close()
