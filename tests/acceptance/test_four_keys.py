"""Locks of four plain keys beside the `unlocker` program: wrong clocks only delay their removal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import format_stamp
from tests.acceptance.clock_site import Promise, Site
from tests.support.clock_shim import compile_library
from tests.support.etcd_binary import Etcdctl, etcdctl_of, put_at_once
from tests.support.processes import wait_until
from tests.support.unlocker_process import fetch, figure

HOUR, DISTANCE_S, ALERT_S = 3600.0, 4.0, 1.0
UNDECIDED = 'clustermutex_locks{state="undecided"}'


ALERTED: dict[str, set[str]] = {"behind": {"found-behind", "seen-behind"}, "1970": set()}
"""By whether the unlocker's clock is behind; one that is ahead has passed all alerts."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("clocks"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Scripts:
    """What shell scripts write, each on a host with a clock of its own."""

    def __init__(self, site: Site, etcd: Etcd) -> None:
        self._site = site
        self._etcdctl: Etcdctl = etcdctl_of(etcd)

    def _put(self, name: str, values: dict[str, str]) -> None:
        put_at_once(self._etcdctl, f"{self._site.settings.root}/locks/{name}/", values)

    def push(self, name: str, ahead: float = 0.0, **more: str) -> None:
        """Put both stamps, by one reading of that host's clock."""
        sent, wall = time.monotonic(), time.time() + ahead
        stamps = {
            "alert_at": format_stamp(wall + ALERT_S),
            "auto_unlock_at": format_stamp(wall + ALERT_S + DISTANCE_S),
        }
        self._put(name, stamps | more)
        self._site.promises[name] = Promise(DISTANCE_S, sent, time.monotonic(), ahead)

    def take(self, name: str, ahead: float = 0.0) -> None:
        self.push(name, ahead, uuid=f"{name}-1", hostname="script")

    def move(self, name: str, stamp: str, wall: float) -> None:
        """Move one stamp by hand."""
        self._put(name, {stamp: format_stamp(wall)})


def gone_in_time(site: Site, *names: str) -> None:
    """Wait until these are removed, none before its holder's own deadline."""
    wait_until(lambda: site.removals.at.keys() >= set(names), timeout=60, what="removals")
    for name in names:
        promise = site.promises[name]
        assert site.removals.at[name] >= promise.sent + promise.lasts, name


def run(case: str, wrong: float, etcd: Etcd, library: Path) -> None:
    """An unlocker on a clock that is wrong removes nothing until it is right, and then all."""
    with ExitStack() as stack:
        site = Site(stack, etcd, library)
        scripts = Scripts(site, etcd)
        scripts.take("found")
        scripts.take("found-behind", -HOUR)
        site.clock.move(wrong)
        site.start()
        scripts.take("seen")
        scripts.take("seen-behind", -HOUR)
        scripts.take("seen-ahead", HOUR)
        last = time.monotonic()
        assert not site.wait_for_its_verdict(), case
        wait_until(lambda: time.monotonic() > last + 2 * DISTANCE_S, what="their distance")
        assert not site.removals.at, case
        # People are called all the same: once our own clock, too, has passed its alert.
        names = {"found", "seen", "found-behind", "seen-behind", "seen-ahead"}
        wait_until(lambda: site.alerts() >= ALERTED.get(case, names), what=f"alerts: {case}")
        assert site.alerts() <= ALERTED.get(case, names), case
        assert "four plain keys are alerted on later" in fetch(site.service, "/readyz")[1]
        site.clock.move(0.0)
        gone_in_time(site, "found", "found-behind", "seen", "seen-behind")
        assert "seen-ahead" not in site.removals.at, case  # an hour later, by its host's clock


@pytest.mark.promise(number=2)
def test_whatever_the_unlockers_clock_says(etcd: Etcd, library: Path) -> None:
    """Also one that stood in 1970 once keeps no lock for ever."""
    cases = {"ahead": HOUR, "behind": -HOUR, "1970": 1000 - time.time()}
    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(lambda case: run(case, cases[case], etcd, library), cases))


@pytest.mark.promise(number=2)
def test_a_hand_on_a_stamp_keeps_it_until_the_next_push(
    etcd: Etcd, library: Path, stack: ExitStack
) -> None:
    """So do two puts; a restart forgets the first distance, and yet the stamps are not of one."""
    site = Site(stack, etcd, library)
    scripts = Scripts(site, etcd)
    site.start()
    for name in ("moved", "pushed-after"):
        scripts.take(name)
        scripts.move(name, "auto_unlock_at", time.time() - HOUR)
    wait_until(lambda: figure(site.service, UNDECIDED) == 2, what="both undecided")
    other = Site(stack, etcd, library)
    other.settings, other.promises = site.settings, site.promises
    other.start()
    scripts.push("pushed-after")
    gone_in_time(site, "pushed-after")
    for service in (site.service, other.service):
        assert figure(service, UNDECIDED) == 1
    assert "moved" not in site.removals.at


@pytest.mark.promise(number=2)
def test_who_pushes_keeps_it(etcd: Etcd, library: Path, stack: ExitStack) -> None:
    """For several distances, whatever its own clock says; then it falls silent."""
    site = Site(stack, etcd, library)
    scripts = Scripts(site, etcd)
    names = {"right": 0.0, "behind": -HOUR}
    for name, ahead in names.items():
        scripts.take(name, ahead)
    site.start()
    until = time.monotonic() + 3 * DISTANCE_S
    while time.monotonic() < until:
        for name, ahead in names.items():
            scripts.push(name, ahead)
        time.sleep(DISTANCE_S / 8)
    assert not site.removals.at
    gone_in_time(site, *names)
