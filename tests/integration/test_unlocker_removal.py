"""The unlocker on a real etcd: what it removes, what it never removes, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.cli.local import Etcd
from lockclient.errors import StoreError
from lockclient.etcd.store import EtcdStore
from lockclient.record import Holder
from lockclient.settings import Settings
from lockclient.store import Done, Gone, Push, Read, Seen, Take, Taken, Unlock
from lockclient.timing import Deadline, Runtime
from tests.processes import wait_until
from unlocker.service import Unlocker

Etcdctl = Callable[..., str]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for what is due often enough that the tests are short."""
    monkeypatch.setattr("unlocker.service.SWEEP", 0.1)


@contextmanager
def running(settings: Settings, *, offsets: list[float] | None = None) -> Iterator[Unlocker]:
    """Run an unlocker in this process, with a grace of 1 s.

    `offsets` are the members' clocks as it is to see them; None: as they are.
    """
    store = EtcdStore(settings)
    if offsets is not None:
        store.clock_offsets = lambda timeout: offsets  # type: ignore[method-assign]
    unlocker = Unlocker(store, grace=1.0)
    unlocker.start()
    try:
        wait_until(lambda: unlocker.unready() is None, what="the unlocker to be ready")
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
    """Return a holder that takes the lock now."""
    now = time.time()
    stamps = Runtime(alert, unlock).stamps(now)
    holder = Holder(name, uuid4().hex, "web-1", 4711, "main", reason="totals", locked_at=now)
    return replace(holder.stamped(stamps), backtrace="  File …", **facts)


def take(store: EtcdStore, holder: Holder) -> Holder:
    """Take a lock that is free."""
    assert isinstance(store.ask(Take(holder), Deadline.after(10)), Taken)
    return holder


def look(store: EtcdStore, holder: Holder) -> Seen:
    """Read what stands in the store about a lock and this holder."""
    seen = store.ask(Read(holder.name, holder.uuid), Deadline.after(10))
    assert isinstance(seen, Seen)
    return seen


def wait_removed(store: EtcdStore, holder: Holder) -> Seen:
    """Wait until the lock is gone and return what is left of it."""

    def gone() -> Seen | None:
        seen = look(store, holder)
        return seen if seen.holder is None else None

    return wait_until(gone, what=f"the removal of {holder.name!r}")


def test_a_silent_lock_is_alerted_on_then_removed_with_a_record(
    settings: Settings, store: EtcdStore
) -> None:
    with running(settings) as unlocker:
        holder = take(store, held("nightly report/€", alert=1, unlock=3))
        past_alert = "clustermutex_lock_alert_timestamp_seconds"
        alert = wait_until(lambda: metric(unlocker, past_alert, name=holder.name), what="alert")
        assert alert == pytest.approx(holder.alert_at, abs=0.001)
        assert look(store, holder).holder is not None
        assert metric(unlocker, "clustermutex_locks", state="alert") == 1
        assert metric(unlocker, "clustermutex_lock_info", hostname="web-1", pid="4711") == 1

        removal = wait_removed(store, holder).removal
        assert removal is not None
        assert (removal.removed_by, removal.how) == (unlocker.identity, "auto-unlock")
        assert removal.holder.uuid == holder.uuid
        assert removal.holder.backtrace == holder.backtrace
        assert removal.why.startswith("no sign of life for ")
        push = Push(holder.name, holder.uuid or "", Runtime(1, 2).stamps(time.time()))
        too_late = store.ask(push, Deadline.after(10))
        assert isinstance(too_late, Gone)
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
            push = Push(holder.name, holder.uuid or "", Runtime(1, 2).stamps(time.time()))
            assert isinstance(store.ask(push, Deadline.after(10)), Done)
            time.sleep(0.2)
        wait_removed(store, holder)
        assert time.monotonic() - pushed >= 2


def test_without_auto_unlock_there_is_an_alert_and_no_removal(
    settings: Settings, store: EtcdStore
) -> None:
    with running(settings) as unlocker:
        kept = take(store, held("kept", unlock=None))
        wait_removed(store, take(store, held("sentinel", alert=0.8, unlock=1.2)))
        assert look(store, kept).holder is not None
        assert metric(unlocker, "clustermutex_lock_alert_timestamp_seconds", name="kept")
        assert metric(unlocker, "clustermutex_lock_auto_unlock_timestamp_seconds") is None


def test_two_unlockers_remove_each_lock_once(settings: Settings, store: EtcdStore) -> None:
    with running(settings) as one, running(settings) as other:
        locks = [take(store, held(f"lock {number}")) for number in range(40)]
        removers = []
        for holder in locks:
            removal = wait_removed(store, holder).removal
            assert removal is not None
            removers.append(removal.removed_by)

        def removed(unlocker: Unlocker) -> float | None:
            return metric(unlocker, "clustermutex_auto_unlocks_total", result="removed")

        wait_until(lambda: (removed(one) or 0) + (removed(other) or 0) == 40, what="all counted")
        assert removed(one) == removers.count(one.identity)
        assert removed(other) == removers.count(other.identity)
        assert metric(one, "clustermutex_auto_unlocks_total", result="failed") == 0
        assert metric(one, "clustermutex_unlockers") == 2


SOUND = {"uuid": "u", "hostname": "h", "alert_at": "1", "auto_unlock_at": "2"}
BROKEN: dict[str, dict[str, str | None]] = {
    "no uuid": {"uuid": None},
    "no hostname": {"hostname": None},
    "no alert_at": {"alert_at": None},
    "empty uuid": {"uuid": ""},
    "a word for a stamp": {"auto_unlock_at": "soon"},
    "nan for a stamp": {"auto_unlock_at": "nan"},
    "a negative stamp": {"auto_unlock_at": "-1"},
    "milliseconds": {"auto_unlock_at": "1800000000000"},
    "a word for a pid": {"pid": "init"},
    "no UTF-8": {"reason": "\udcff\udcfe"},
    "a huge value": {"reason": "x" * 1_000_000},
}
"""What is wrong with a lock: subkeys and their values, None: missing."""


def test_broken_locks_are_counted_and_never_removed(
    settings: Settings, store: EtcdStore, etcdctl: Etcdctl
) -> None:
    """Half of them are found, half of them are seen to be written."""

    def path(name: str) -> str:
        return f"{settings.root}/locks/{name.replace(' ', '%20')}/"

    def write(names: list[str]) -> None:
        for name in names:
            for part, value in {**SOUND, **BROKEN[name]}.items():
                key = f"{path(name)}{part}"
                if value is not None and len(value) < 1000:
                    etcdctl("put", "--", key, value)  # as a word, that it may have any bytes
                elif value is not None:
                    etcdctl("put", key, input=value)

    names = list(BROKEN)
    write(names[::2])
    with running(settings) as unlocker:
        write(names[1::2])
        wait_until(
            lambda: metric(unlocker, "clustermutex_locks", state="broken") == len(BROKEN),
            what="all broken locks",
        )
        wait_removed(store, take(store, held("sentinel")))
        for name in names:
            expected = {
                part for part, value in {**SOUND, **BROKEN[name]}.items() if value is not None
            }
            keys = etcdctl("get", "--prefix", "--keys-only", path(name)).split()
            assert {key.removeprefix(path(name)) for key in keys} == expected
        assert metric(unlocker, "clustermutex_auto_unlocks_total", result="removed") == 1


def test_unknown_subkeys_do_no_harm(settings: Settings, store: EtcdStore, etcdctl: Etcdctl) -> None:
    with running(settings):
        holder = take(store, held("a"))
        etcdctl("put", f"{settings.root}/locks/a/from-the-future", "\udcff")
        wait_removed(store, holder)
        assert etcdctl("get", "--prefix", f"{settings.root}/locks/a/") == ""


@pytest.mark.parametrize("stamped", [True, False])
def test_a_lock_made_by_hand_is_removed(
    settings: Settings, store: EtcdStore, etcdctl: Etcdctl, stamped: bool
) -> None:
    """Also one that does not say when it was taken: then by the wall clock, after the grace."""
    with running(settings):
        now = time.time()
        values = {
            "hostname": "h",
            "alert_at": f"{now + 1:.0f}",
            "auto_unlock_at": f"{now + 1.5:.3f}",
        }
        if stamped:
            values["locked_at"] = f"{now:.0f}"
        puts = [f"put {settings.root}/locks/a/{key} {each}" for key, each in values.items()]
        puts.append(f"put {settings.root}/locks/a/uuid u")
        # No comparison, the puts, nothing else: each part ends with an empty line.
        etcdctl("txn", input="\n" + "\n".join(puts) + "\n\n\n")
        removal = wait_removed(store, Holder("a", "u")).removal
        assert removal is not None
        assert removal.holder.hostname == "h"


class TestFoundLocks:
    def test_one_that_is_overdue_is_removed_after_the_grace(
        self, settings: Settings, store: EtcdStore
    ) -> None:
        # Its time is up now, and counted anew from now it would be in an hour.
        silent = held("a").stamped(Runtime(1, 3600).stamps(time.time() - 3600))
        holder = take(store, silent)
        with running(settings):
            removal = wait_removed(store, holder).removal
        assert removal is not None
        assert removal.removed_at is not None
        assert removal.removed_at >= (holder.auto_unlock_at or 0) + 1 - 0.01

    @pytest.mark.parametrize("offsets", [[3600.0], []])
    def test_with_a_clock_not_to_be_trusted_it_gets_its_whole_duration(
        self, settings: Settings, store: EtcdStore, offsets: list[float]
    ) -> None:
        """It is found when it has no time left, and gets all of it again."""
        holder = take(store, held("a", alert=0.5, unlock=1.5))
        time.sleep(1.5)
        started = time.monotonic()
        with running(settings, offsets=offsets) as unlocker:
            assert metric(unlocker, "clustermutex_unlocker_clock_trusted") == 0
            wait_removed(store, holder)
        assert time.monotonic() - started >= 1.5

    def test_a_jump_of_the_wall_clock_removes_nothing(
        self, settings: Settings, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = take(store, held("found", alert=1, unlock=3))
        taken = time.monotonic()
        with running(settings) as unlocker:
            seen = take(store, held("seen", alert=1, unlock=3))
            wait_until(lambda: unlocker.picture().undecided == 0, what="the clock check")
            real = time.time
            monkeypatch.setattr(time, "time", lambda: real() + 3600)
            for holder in (found, seen):
                wait_removed(store, holder)
                assert time.monotonic() - taken >= 3
            monkeypatch.undo()

    def test_what_neither_clock_nor_stamps_can_tell_stays(
        self, settings: Settings, store: EtcdStore
    ) -> None:
        holder = replace(held("a"), locked_at=None, alive_at=None)
        take(store, holder)
        with running(settings, offsets=[]) as unlocker:
            wait_removed(store, take(store, held("sentinel")))
            assert metric(unlocker, "clustermutex_locks_undecided") == 1
            assert look(store, holder).holder is not None


def test_reading_all_locks_again_resets_no_time(settings: Settings, store: EtcdStore) -> None:
    with running(settings) as unlocker:
        holder = take(store, held("a", alert=1, unlock=3))
        until = time.monotonic() + 2
        while time.monotonic() < until:
            unlocker._table.resync()
            time.sleep(0.1)
        assert (metric(unlocker, "clustermutex_unlocker_table_loads_total") or 0) > 5
        assert metric(unlocker, "clustermutex_alerts_total") == 1
        removal = wait_removed(store, holder).removal
        assert removal is not None
        silent = float(removal.why.split()[5])  # no sign of life for N s
        assert silent >= 3


def test_an_unlock_before_its_time_leaves_nothing_to_do(
    settings: Settings, store: EtcdStore
) -> None:
    with running(settings) as unlocker:
        holder = take(store, held("a"))
        store.ask(Unlock("a", holder.uuid or ""), Deadline.after(10))
        again = take(store, held("a", alert=1, unlock=2))
        wait_removed(store, again)
        name = "clustermutex_auto_unlocks_total"
        wait_until(lambda: metric(unlocker, name, result="removed") == 1, what="the count")
        assert metric(unlocker, name, result="gone") == 0
        ended = "clustermutex_lock_held_seconds_count"
        wait_until(lambda: metric(unlocker, ended) == 2, what="both ends to be told")


def test_the_skew_of_a_host_is_measured(settings: Settings, store: EtcdStore) -> None:
    with running(settings) as unlocker:
        holder = held("a", alert=100, unlock=200, hostname="late")
        take(store, holder.stamped(Runtime(100, 200).stamps(time.time() - 50)))
        name = "clustermutex_client_clock_skew_seconds"
        skew = wait_until(lambda: metric(unlocker, name, hostname="late"), what="the skew")
        assert 50 <= skew < 60


def test_the_sign_of_life_comes_and_goes(settings: Settings, etcdctl: Etcdctl) -> None:
    path = f"{settings.root}/unlockers/"
    with running(settings) as unlocker:
        told = wait_until(lambda: etcdctl("get", "--prefix", path), what="the sign of life")
        assert unlocker.identity.replace("@", "%40").replace(":", "%3A") in told
        assert '"started_at"' in told
    assert etcdctl("get", "--prefix", path) == ""


def test_an_etcd_out_of_space_still_gets_rid_of_locks(
    etcd_binary: str, tmp_path: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    etcd = Etcd(etcd_binary, tmp_path / "data", tmp_path / "log")
    etcd.extra = ["--quota-backend-bytes", "1000000"]
    with etcd:
        settings = Settings(endpoints=(etcd.endpoint,), root=root)
        store = EtcdStore(settings)
        try:
            holder = take(store, held("a", alert=0.1, unlock=0.2))
            # One request that would not fit raises the alarm, and it stays. (Really over its quota
            # an etcd 3.5.1 refuses transactions that only read or delete, too; later ones do not.)
            with pytest.raises(StoreError):
                take(store, held("big", reason="x" * 1_200_000))
            with caplog.at_level(logging.WARNING), running(settings):
                wait_removed(store, holder)
            assert f'"uuid": "{holder.uuid}"' in caplog.text
            assert look(store, holder).removal is None
        finally:
            store.close()
