"""etcd is upgraded under locks, member by member, to the newest version and back."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.cli.setup.etcd_server import Etcd, etcd_version, find_etcd
from lockclient.stores.etcd.store import EtcdStore
from tests.faults.test_failover import Callers
from tests.support import unlocker_process as services
from tests.support.etcd_binary import etcdctl_of
from tests.support.etcd_cluster import Cluster
from tests.support.etcd_store import etcd_store
from tests.support.processes import Figure, wait_until

CHECKOUT = Path(__file__).parents[2]
RELEASES = ("3.5.35", "3.6.16", "3.7.3")
STORES = 4
LONGEST_CALL_S = 10.0
"""Seconds that a call may take while members restart: 2.8 were measured."""


def built(version: str) -> str:
    """Return the etcd of a release, which `.ci/etcd` builds or has kept."""
    done = subprocess.run(
        [CHECKOUT / ".ci/etcd", version], capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        pytest.skip(done.stderr.splitlines()[-1])
    return f"{done.stdout.strip()}/etcd"


def release(binary: str) -> tuple[int, ...]:
    """Return (3, 5, 9) for an etcd 3.5.9."""
    return tuple(map(int, etcd_version(binary).split(".")))


def first_of(binary: str) -> str:
    """Return 3.5.0 for an etcd 3.5.9: so clusters name their version."""
    return "{}.{}.0".format(*release(binary))


class Upgraded:
    """A cluster whose members run one release after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def run(self, binary: str) -> None:
        """Restart each member as another release, then wait for what the next upgrade needs.

        A snapshot of each member has to be later than the cluster's new version: a start replays
        the log from the last snapshot on, and ends on entries of some older releases.
        """
        for member in self.cluster.members:
            member.stop()
            member.binary = binary
            member.start()
            self.cluster.catch_up(member)
        self._wait_for("etcdcluster", first_of(binary))
        applied = self.cluster.applied()
        wait_until(
            lambda: all(_last_snapshot(member) > applied for member in self.cluster.members),
            what="a snapshot of each member",
        )

    def downgrade(self, binary: str) -> None:
        """Run an older release, once the cluster allows it and has changed how it stores."""
        etcdctl, version = etcdctl_of(self.cluster.members[0]), first_of(binary)

        def allowed() -> bool:
            try:
                etcdctl("downgrade", "enable", version)
            except AssertionError as refused:  # for seconds after the downgrade before this one
                if "downgrade job in progress" in str(refused):
                    return False
                raise
            return True

        wait_until(allowed, what="the downgrade to be allowed")
        self._wait_for("storage", version)
        self.run(binary)

    def _wait_for(self, what: str, version: str) -> None:
        """Wait until all members name this version of the cluster, or of what they store."""
        members = self.cluster.members
        wait_until(
            lambda: all(_versions(member)[what] == version for member in members),
            what=f"{what} {version}",
        )


def _versions(member: Etcd) -> dict[str, str]:
    with urllib.request.urlopen(f"http://{member.endpoint}/version", timeout=10) as answer:
        said: dict[str, str] = json.load(answer)
    return said


def _last_snapshot(member: Etcd) -> int:
    """Return the index of a member's last snapshot, from its file's name: TERM-INDEX.snap."""
    files = (member.data / "member/snap").glob("*.snap")
    return max((int(file.stem.partition("-")[2], 16) for file in files), default=0)


@contextmanager
def callers_on(stores: list[EtcdStore]) -> Iterator[list[Callers]]:
    """Callers on each store; when the block ends, none has had an error or lost a lock."""
    with ExitStack() as exits:
        callers: list[Callers] = []
        for number, store in enumerate(stores):
            callers.append(Callers(store, number))
            exits.callback(callers[-1].stop)
        yield callers
    assert [error for caller in callers for error in caller.errors] == []
    assert [loss for caller in callers for loss in caller.losses] == []


@pytest.mark.soak
def test_upgrades_and_a_downgrade_cost_no_lock(tmp_path: Path, root: str, figure: Figure) -> None:
    oldest = find_etcd()
    if oldest is None:
        pytest.skip("no etcd")
    newer = [each for each in map(built, RELEASES) if release(each) > release(oldest)]
    losses: list[LockLost] = []
    cluster = Cluster(oldest, tmp_path)
    for member in cluster.members:
        member.extra.append("--snapshot-count=50")
    with cluster, ExitStack() as exits:
        settings = [
            Settings(cluster.endpoints(cluster.members[number % 3]), root=root)
            for number in range(STORES)
        ]
        unlocker = exits.enter_context(services.when_ready(services.unlocker(settings[0])))
        dashboard = exits.enter_context(services.when_ready(services.mutexdash(settings[1])))
        stores = [exits.enter_context(closing(etcd_store(each))) for each in settings]
        kept = ClusterMutex(
            "kept", store=stores[0], keepalive=True, expected_runtime=10, on_lost=losses.append
        )
        with kept as held, callers_on(stores) as callers:
            upgraded = Upgraded(cluster)
            up = [(upgraded.run, binary) for binary in newer]
            down = [(upgraded.downgrade, binary) for binary in newer[-2::-1]]
            for step, binary in (*up, *down):
                before = etcd_version(cluster.members[0].binary)
                step(binary)
                for caller in callers:
                    caller.busy()
                longest = max(max(caller.longest.values()) for caller in callers)
                figure(f"{before} to {etcd_version(binary)}: the longest call took {longest:.1f} s")
                assert longest < LONGEST_CALL_S
                held.check_health()
                for caller in callers:
                    caller.longest.clear()
        assert losses == []
        wait_until(lambda: services.ready(unlocker) and services.ready(dashboard), what="readiness")
        assert "Traceback" not in unlocker.log_text() + dashboard.log_text()
        assert not services.figure(unlocker, services.REMOVED)
