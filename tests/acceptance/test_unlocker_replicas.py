"""Several real unlockers on the same locks: each lock removed once, whoever dies, and one brake."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lockclient import Settings
from lockclient.model.clocks import Runtime
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.overview.table import Table
from tests.support.etcd_store import etcd_store
from tests.support.locks import take
from tests.support.processes import Figure, Service, wait_until
from tests.support.records import taker
from tests.support.soak import soaking
from tests.support.unlocker_process import REMOVED, figures, unlocker

SEEN = 'clustermutex_removals_seen_total{how="auto-unlock"}'


class Replicas:
    """Unlockers on one root, and what the test itself sees of the locks there."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self.store = etcd_store(settings)
        stack.callback(self.store.close)
        self.records: list[Removal] = []
        self.table = Table(self.store, on_removal=self._note)
        self.table.start()
        stack.callback(self.table.stop)

    def _note(self, removals: list[Removal], _found: bool) -> None:
        self.records += removals

    def start(self, *options: str) -> Service:
        return self._stack.enter_context(unlocker(self._settings, *options))

    def take(self, number: int, after: float) -> Holder:
        """Take a lock and fall silent: it is due in `after` seconds."""
        holder = taker(f"lock {number}", Runtime(after / 2, after), backtrace="…")
        take(self.store, holder)
        return holder

    def check_each_removed_once(self, holders: list[Holder]) -> None:
        """Wait until the locks are gone; each has one record, and went no sooner than it may."""
        wait_until(lambda: not self.table.rows(), timeout=60, what="all locks to be removed")
        wait_until(lambda: len(self.records) >= len(holders), what="all records")
        by_uuid = {record.holder.uuid: record for record in self.records}
        assert len(self.records) == len(by_uuid) == len(holders)
        for holder in holders:
            removed_at = by_uuid[holder.uuid].removed_at
            assert removed_at is not None
            assert holder.auto_unlock_at is not None
            assert removed_at >= holder.auto_unlock_at - 0.002  # stamps are rounded

    def late(self) -> list[float]:
        """Return how many seconds after their time locks were removed, in order."""
        return sorted(
            (record.removed_at or 0) - (record.holder.auto_unlock_at or 0)
            for record in self.records
        )


def wait_ready(service: Service) -> Service:
    """Wait until it has read all locks and has a clock to trust."""
    name = "clustermutex_unlocker_clock_trusted"
    wait_until(lambda: figures(service)["clustermutex_unlocker_store_up"], what="the locks")
    wait_until(lambda: figures(service)[name], what="a clock")
    return service


@pytest.fixture
def replicas(settings: Settings) -> Iterator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(settings, stack)


def test_each_lock_is_removed_once_and_counted_once(replicas: Replicas, figure: Figure) -> None:
    """All come due within a blink, so that all unlockers go for the same ones."""
    services = [replicas.start("--max-removals", "off") for _ in range(3)]
    for service in services:
        wait_ready(service)
    holders = [replicas.take(number, 3) for number in range(150)]
    replicas.check_each_removed_once(holders)

    # The counters come a moment after the removals.
    wait_until(
        lambda: sum(figures(service)[REMOVED] for service in services) >= 150, what="the counts"
    )
    # Each hears by its own watch, on a busy machine later, what the others removed.
    wait_until(
        lambda: all(figures(service)[SEEN] >= 150 for service in services), what="all to have seen"
    )
    removed = Counter(record.removed_by for record in replicas.records)
    own = [figures(service) for service in services]
    counts = [samples[REMOVED] for samples in own]
    assert sum(counts) == 150
    assert sorted(filter(None, counts)) == sorted(removed.values())
    assert [samples[SEEN] for samples in own] == [150] * 3
    failed = 'clustermutex_auto_unlocks_total{result="failed"}'
    assert [samples[failed] for samples in own] == [0] * 3
    assert own[0]["clustermutex_unlockers"] == 3
    figure(
        f"three unlockers removed {' + '.join(map(str, removed.values()))} of 150 locks, "
        f"the last {replicas.late()[-1]:.2f} s after its time"
    )


@pytest.mark.parametrize("locks", [60, *soaking(160)])
def test_kill_9_of_any_at_any_moment_costs_nothing(
    locks: int, replicas: Replicas, figure: Figure
) -> None:
    """Locks come due all the time, while one unlocker after the other dies and another starts."""
    moments = random.Random(5)
    services = [wait_ready(replicas.start("--max-removals", "off")) for _ in range(3)]
    holders = []
    kills = 0
    for number in range(locks):
        holders.append(replicas.take(number, 2 + moments.random()))
        time.sleep(0.03)
        if number % 20 == 19:
            time.sleep(moments.random() / 10)
            victim = services.pop(moments.randrange(3))
            victim.process.kill()
            kills += 1
            # One stands by from the start on, so that two at least know all locks at any time.
            services.append(replicas.start("--max-removals", "off"))
    replicas.check_each_removed_once(holders)
    late = replicas.late()
    figure(
        f"{kills} kills, {len(holders)} locks: removed {late[len(late) // 2]:.2f} s after their "
        f"time by the median, {late[-1]:.2f} s at most"
    )


def test_one_brake_for_all_and_a_person_can_overrule_it(replicas: Replicas, figure: Figure) -> None:
    """Three unlockers that let 12 pass remove no more than 14, see `unlocker.rate_limit`."""
    services = [replicas.start("--max-removals", "12") for _ in range(3)]
    for service in services:
        wait_ready(service)
    holders = [replicas.take(number, 2) for number in range(60)]
    withheld = "clustermutex_unlocker_removals_withheld"

    def counts() -> list[float]:
        return [figures(service)[withheld] for service in services]

    wait_until(lambda: all(counts()) and len({*counts()}) == 1, what="the brake, and agreement")
    passed = len(replicas.records)
    assert 12 <= passed <= 14
    for service in services:
        now = figures(service)
        assert now["clustermutex_unlocker_brake_engaged"] == 1
        assert now["clustermutex_unlocker_removals_limit"] == 12
        assert now[withheld] == 60 - passed
        assert service.log_text().count("The brake is on") == 1

    # One that starts anew knows what was removed before it came.
    services.pop().process.kill()
    late = wait_ready(replicas.start("--max-removals", "12"))
    wait_until(lambda: figures(late)[withheld], what="the brake of the new one")
    assert len(replicas.records) == passed

    wait_ready(replicas.start("--max-removals", "off"))
    replicas.check_each_removed_once(holders)
    services.append(late)
    wait_until(lambda: not any(counts()), what="an end")
    assert not any("is off again" in service.log_text() for service in services)  # for a minute
    figure(f"three unlockers with a brake of 12 removed {passed} of 60 locks")
