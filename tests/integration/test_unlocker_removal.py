"""The unlocker on a real etcd: what it removes, what it never removes, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.model.clocks import Runtime
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.settings import Settings
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Done, NotHolder, Outcome
from lockclient.stores.requests import Push
from tests.support import locks
from tests.support.etcd_binary import Etcdctl, put_at_once
from tests.support.etcd_store import etcd_store
from tests.support.locks import ask, has, removal_of, unlock
from tests.support.processes import wait_until
from tests.support.records import taker
from unlocker.unlocker import Unlocker


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for what is due often enough that the tests are short."""
    monkeypatch.setattr("unlocker.unlocker.SWEEP_INTERVAL_S", 0.1)
    monkeypatch.setattr("unlocker.unlocker._CLOCK_CHECK_INTERVAL_S", 1.0)


@contextmanager
def running(
    settings: Settings, *, offsets: list[float] | None = None, limit: int | None = 50
) -> Iterator[Unlocker]:
    """Run an unlocker in this process.

    `offsets` are the members' clocks as it is to see them; None: as they are.
    """
    store = etcd_store(settings)
    if offsets is not None:
        store.clock_offsets = lambda timeout: offsets  # type: ignore[method-assign]
    unlocker = Unlocker(store, max_removals=limit)
    unlocker.start()
    try:
        wait_until(lambda: unlocker.is_ready() is None, what="the unlocker to be ready")
        yield unlocker
    finally:
        unlocker.stop()


def metric(unlocker: Unlocker, series: str, /, **labels: str) -> float | None:
    """Return a figure that a scrape shows; None if there is no such series."""
    for family in parse(generate_latest(unlocker.metrics.registry).decode()):
        for sample in family.samples:
            if sample.name == series and labels.items() <= sample.labels.items():
                return sample.value
    return None


def held(name: str, *, alert: float = 0.4, unlock: float | None = 1.0, **facts: Any) -> Holder:
    said: dict[str, Any] = {
        "hostname": "web-1",
        "pid": 4711,
        "reason": "totals",
        "backtrace": "  File …",
    }
    return taker(name, Runtime(alert, unlock), **said | facts)


def take(store: EtcdStore, holder: Holder) -> Holder:
    locks.take(store, holder)
    return holder


def push(store: EtcdStore, holder: Holder) -> Outcome:
    """Push a lock of 1 s to its alert and 2 s to its end, whatever has been written meanwhile."""
    stamps = Runtime(1, 2).stamps(time.time())
    return ask(store, Push(holder.name, holder.uuid or "", stamps, 2**60))


def wait_removed(store: EtcdStore, holder: Holder) -> Removal:
    removal = removal_of(store, holder)
    assert has(store, holder.name) is None
    return removal


def test_a_silent_lock_is_alerted_on_then_removed_with_a_record(
    settings: Settings, store: EtcdStore
) -> None:
    with running(settings) as unlocker:
        holder = take(store, held("nightly report/€", alert=1, unlock=3))
        past_alert = "clustermutex_lock_alert_timestamp_seconds"
        alert = wait_until(lambda: metric(unlocker, past_alert, name=holder.name), what="alert")
        assert alert == pytest.approx(holder.alert_at, abs=0.001)
        assert has(store, holder.name)
        assert metric(unlocker, "clustermutex_locks", state="alert") == 1
        assert metric(unlocker, "clustermutex_lock_info", hostname="web-1", pid="4711") == 1

        removal = wait_removed(store, holder)
        assert (removal.removed_by, removal.how) == (unlocker.identity, "auto-unlock")
        assert removal.holder.uuid == holder.uuid
        assert removal.holder.backtrace == holder.backtrace
        assert removal.why.startswith("no heartbeat for ")
        too_late = push(store, holder)
        assert isinstance(too_late, NotHolder)
        assert too_late.removal == removal
        wait_until(lambda: metric(unlocker, past_alert, name=holder.name) is None)
        assert metric(unlocker, "clustermutex_alerts_total") == 1
        assert metric(unlocker, "clustermutex_auto_unlocks_total", result="removed") == 1
        assert metric(unlocker, "clustermutex_lock_held_seconds_count") == 1
        seen = "clustermutex_removals_seen_total"
        wait_until(lambda: metric(unlocker, seen, how="auto-unlock") == 1, what="the count")


def test_a_lock_that_is_pushed_stays_and_goes_when_it_falls_silent(
    settings: Settings, store: EtcdStore
) -> None:
    with running(settings):
        holder = take(store, held("a", alert=1, unlock=2))
        pushed = time.monotonic()
        until = pushed + 2.5
        while time.monotonic() < until:
            pushed = time.monotonic()
            assert isinstance(push(store, holder), Done)
            time.sleep(0.2)
        wait_removed(store, holder)
        assert time.monotonic() - pushed >= 2


def test_without_auto_unlock_there_is_an_alert_and_no_removal(
    settings: Settings, store: EtcdStore
) -> None:
    with running(settings) as unlocker:
        kept = take(store, held("kept", unlock=None))
        wait_removed(store, take(store, held("sentinel", alert=0.8, unlock=1.2)))
        assert has(store, kept.name)
        assert metric(unlocker, "clustermutex_lock_alert_timestamp_seconds", name="kept")
        # The sentinel's goes when the unlocker sees its own removal, a moment after we do.
        unlocks = "clustermutex_lock_auto_unlock_timestamp_seconds"
        wait_until(lambda: metric(unlocker, unlocks) is None, what="no lock with an auto-unlock")


SOUND: dict[str, str | bytes] = {
    "uuid": "u",
    "hostname": "h",
    "alert_at": "1",
    "auto_unlock_at": "2",
    "about": '{"expected_runtime": 1, "auto_unlock_after": 2}',
}
BROKEN: dict[str, dict[str, str | bytes | None]] = {
    "no uuid": {"uuid": None},
    "no hostname": {"hostname": None},
    "no alert_at": {"alert_at": None},
    "empty uuid": {"uuid": ""},
    "a word for a stamp": {"auto_unlock_at": "soon"},
    "nan for a stamp": {"auto_unlock_at": "nan"},
    "a negative stamp": {"auto_unlock_at": "-1"},
    "milliseconds": {"auto_unlock_at": "1800000000000"},
    "no JSON": {"about": "auto_unlock_after: 2"},
    "a word for a pid": {"about": '{"auto_unlock_after": 2, "pid": "init"}'},
    "a word for a duration": {"about": '{"auto_unlock_after": "2"}'},
    "a word for needs": {"about": '{"auto_unlock_after": 2, "needs": "warp"}'},
    "no UTF-8": {"hostname": b"\xff\xfe"},
    "a huge value": {"about": '{"auto_unlock_after": 2, "reason": "%s"}' % ("x" * 1_000_000)},
}
"""What is wrong with a lock: subkeys and their values, None: missing."""


def keys_of(etcdctl: Etcdctl, prefix: str) -> set[str]:
    keys = etcdctl("get", "--prefix", "--keys-only", prefix).split()
    return {key.removeprefix(prefix) for key in keys}


def place(settings: Settings, name: str) -> str:
    return f"{settings.root}/locks/{name.replace(' ', '%20')}/"


def test_broken_locks_are_counted_and_never_removed(
    settings: Settings, store: EtcdStore, etcdctl: Etcdctl
) -> None:
    """Half of them are found, half of them are seen to be written."""
    path = partial(place, settings)
    values = {
        name: {part: value for part, value in (SOUND | wrong).items() if value is not None}
        for name, wrong in BROKEN.items()
    }
    late = "an about from later"
    names = [*BROKEN, late]
    values[late] = {part: value for part, value in SOUND.items() if part != "about"}

    def write(names: list[str]) -> None:
        for name in names:
            put_at_once(etcdctl, path(name), values[name])
            if name == late:
                etcdctl("put", f"{path(name)}about", str(SOUND["about"]))

    write(names[::2])
    with running(settings) as unlocker:
        write(names[1::2])
        wait_until(
            lambda: metric(unlocker, "clustermutex_locks", state="broken") == len(names),
            what="all broken locks",
        )
        wait_removed(store, take(store, held("sentinel")))
        for name in names:
            there = values[name].keys() | ({"about"} if name == late else set())
            assert keys_of(etcdctl, path(name)) == there
        assert metric(unlocker, "clustermutex_auto_unlocks_total", result="removed") == 1


def test_unknown_subkeys_do_no_harm(settings: Settings, store: EtcdStore, etcdctl: Etcdctl) -> None:
    with running(settings):
        holder = take(store, held("a"))
        etcdctl("put", f"{settings.root}/locks/a/from-the-future", "\udcff")
        wait_removed(store, holder)
        assert etcdctl("get", "--prefix", f"{settings.root}/locks/a/") == ""


OTHERS: dict[str, str | None] = {
    "four keys": None,
    "auto_unlock_at without its duration": '{"reason": "by hand"}',
    "durations of others": '{"expected_runtime": 1, "auto_unlock_after": 7}',
    "needs": '{"expected_runtime": 1, "auto_unlock_after": 2, "needs": ["warp"]}',
}
"""What other clients say `about` their locks, None: nothing; then there is nothing undecided."""


class TestByHand:
    """Locks of a client with nothing but `etcdctl`, and hands in the stamps of others."""

    def values(self, about: str | None) -> dict[str, str]:
        """What such a client writes for an alert after 1 s, to be removed after 2 s."""
        now = time.time()
        four = {"uuid": "u", "hostname": "h", "alert_at": f"{now + 1:.3f}"}
        return (
            four if about is None else four | {"auto_unlock_at": f"{now + 2:.3f}", "about": about}
        )

    def test_five_plain_keys_are_removed(
        self, settings: Settings, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        with running(settings):
            for name, runs in (("a", '"expected_runtime": 1, '), ("b", "")):
                about = f'{{{runs}"auto_unlock_after": 2}}'
                put_at_once(etcdctl, place(settings, name), self.values(about))
            for name in ("a", "b"):
                assert wait_removed(store, Holder(name, "u")).holder.hostname == "h"

    @pytest.mark.parametrize("found", [True, False])
    def test_others_are_rung_and_never_removed(
        self,
        settings: Settings,
        store: EtcdStore,
        etcdctl: Etcdctl,
        caplog: pytest.LogCaptureFixture,
        found: bool,
    ) -> None:
        """Neither when they were there before the unlocker nor when they come after it."""
        written: dict[str, dict[str, str]] = {}

        def write() -> None:
            for name, about in OTHERS.items():
                written[name] = self.values(about)
                put_at_once(etcdctl, place(settings, name), written[name])

        if found:
            write()
        with running(settings) as unlocker:
            if not found:
                write()
            past = "clustermutex_lock_alert_timestamp_seconds"
            for name, values in written.items():
                wait_until(partial(metric, unlocker, past, name=name), what="the alert")
                assert time.time() >= float(values["alert_at"]) - 0.01
            assert metric(unlocker, "clustermutex_locks", state="undecided") == len(OTHERS) - 1
            overdue = "clustermutex_lock_auto_unlock_timestamp_seconds"
            for name, about in OTHERS.items():
                undecided = f"Lock '{name}' will not be auto-unlocked: "
                assert caplog.text.count(undecided) == (about is not None)
                assert metric(unlocker, overdue, name=name) is None
            wait_removed(store, take(store, held("sentinel", alert=1, unlock=3)))
            for name, values in written.items():
                assert keys_of(etcdctl, place(settings, name)) == values.keys()

    def test_a_stamp_that_was_moved_keeps_the_lock_until_its_holder_pushes(
        self, settings: Settings, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        """Rung when `alert_at` says so, then decided by a push, and removed in the end."""
        with running(settings) as unlocker:
            holders = []
            for stamp, later in (("alert_at", 1), ("auto_unlock_at", 500)):
                holders.append(take(store, held(stamp, alert=1, unlock=2)))
                moved = f"{time.time() + later + 0.5:.3f}"
                etcdctl("put", f"{settings.root}/locks/{stamp}/{stamp}", moved)

            def undecided() -> float | None:
                return metric(unlocker, "clustermutex_locks", state="undecided")

            wait_until(lambda: undecided() == 2, what="the moved stamps")
            past = "clustermutex_lock_alert_timestamp_seconds"
            for holder in holders:
                wait_until(partial(metric, unlocker, past, name=holder.name), what="the alert")
            skew = metric(unlocker, "clustermutex_client_clock_skew_seconds", hostname="web-1")
            assert skew is not None
            assert abs(skew) < 5  # and not the 500 s by which a person has moved the stamp
            wait_removed(store, take(store, held("sentinel", alert=1, unlock=3)))
            assert all(has(store, holder.name) for holder in holders)
            pushed = time.monotonic()
            assert all(isinstance(push(store, holder), Done) for holder in holders)
            wait_until(lambda: undecided() == 0, what="the pushes")
            for holder in holders:
                wait_removed(store, holder)
            assert time.monotonic() - pushed >= 2


class TestFoundLocks:
    def test_without_a_clock_to_trust_it_is_not_rung_before_one_can_tell(
        self, settings: Settings, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        """Of four keys only the wall clock knows the time of their alert; it needs no more."""
        four = {"uuid": "u", "hostname": "h", "alert_at": "1"}
        put_at_once(etcdctl, f"{settings.root}/locks/a/", four)
        offsets: list[float] = []
        with running(settings, offsets=offsets) as unlocker:
            wait_removed(store, take(store, held("sentinel")))
            alerts = "clustermutex_lock_alert_timestamp_seconds"
            assert metric(unlocker, alerts, name="a") is None
            offsets.append(0.0)
            wait_until(lambda: metric(unlocker, alerts, name="a"), what="the alert")


def test_reading_all_locks_again_resets_no_time(settings: Settings, store: EtcdStore) -> None:
    with running(settings) as unlocker:
        holder = take(store, held("a", alert=1, unlock=3))
        until = time.monotonic() + 2
        while time.monotonic() < until:
            unlocker._table.resync()
            time.sleep(0.1)
        assert (metric(unlocker, "clustermutex_unlocker_table_loads_total") or 0) > 5
        assert metric(unlocker, "clustermutex_alerts_total") == 1
        removal = wait_removed(store, holder)
        silent = float(removal.why.split()[3])  # no heartbeat for N s
        assert silent >= 3


def test_an_unlock_before_its_time_leaves_nothing_to_do(
    settings: Settings, store: EtcdStore
) -> None:
    with running(settings) as unlocker:
        holder = take(store, held("a"))
        unlock(store, holder.uuid or "", "a")
        again = take(store, held("a", alert=1, unlock=2))
        wait_removed(store, again)
        name = "clustermutex_auto_unlocks_total"
        wait_until(lambda: metric(unlocker, name, result="removed") == 1, what="the count")
        assert metric(unlocker, name, result="gone") == 0
        ended = "clustermutex_lock_held_seconds_count"
        wait_until(lambda: metric(unlocker, ended) == 2, what="both ends to be told")


def test_the_skew_of_a_host_is_measured(settings: Settings, store: EtcdStore) -> None:
    with running(settings) as unlocker:
        take(store, taker("a", Runtime(100, 200), time.time() - 50, hostname="late"))
        name = "clustermutex_client_clock_skew_seconds"
        skew = wait_until(lambda: metric(unlocker, name, hostname="late"), what="the skew")
        assert 50 <= skew < 60


def test_each_of_many_removed_at_once_rings_by_name_or_is_counted(
    settings: Settings, store: EtcdStore, etcdctl: Etcdctl
) -> None:
    """Beyond the newest hundred, too."""
    lost = 130
    with running(settings, limit=None) as unlocker:
        for number in range(lost):
            values = held(f"rack-{number}", alert=0.5, unlock=3).subkeys()
            put_at_once(etcdctl, f"{settings.root}/locks/rack-{number}/", values)

        def ringing() -> float:
            text = generate_latest(unlocker.metrics.registry).decode()
            families = {family.name: family.samples for family in parse(text)}
            named = families["clustermutex_lock_auto_unlocked_timestamp_seconds"]
            return len(named) + families["clustermutex_locks_auto_unlocked_unlisted"][0].value

        seen = "clustermutex_removals_seen_total"
        wait_until(lambda: metric(unlocker, seen, how="auto-unlock") == lost, what="the removals")
        wait_until(lambda: ringing() == lost, what="all of them to ring")
