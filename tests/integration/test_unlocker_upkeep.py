"""What an unlocker does besides removing, on a real etcd: it cleans up, tries on, and lists."""

from __future__ import annotations

import time

import pytest

from lockclient import Settings
from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, Runtime
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Outcome
from lockclient.stores.requests import Read, Request
from tests.integration.test_unlocker_removal import running
from tests.support.etcd_binary import Etcdctl
from tests.support.etcd_store import etcd_store
from tests.support.locks import take
from tests.support.processes import wait_until
from tests.support.records import taker
from tests.support.unlocker_process import figures, unlocker, when_ready
from unlocker import record_cleanup
from unlocker.metrics.series_limit import MAX_LISTED
from unlocker.unlocker import Unlocker

UNLOCK = "clustermutex_lock_auto_unlock_timestamp_seconds"


def test_one_lock_without_an_answer_delays_no_other(
    settings: Settings, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    really = EtcdStore.ask

    def ask(self: EtcdStore, request: Request, deadline: Deadline) -> Outcome:
        if isinstance(request, Read) and request.name == "bad":
            asked.append(time.monotonic())
            raise StoreUnavailable("no answer")
        return really(self, request, deadline)

    monkeypatch.setattr(EtcdStore, "ask", ask)
    with running(settings) as unlocker:
        for name in ("bad", *(f"good-{number}" for number in range(3))):
            take(store, taker(name, Runtime(0.5, 1.0)))
        unready = set[str | None]()

        def good_are_gone() -> bool:
            unready.add(unlocker.is_ready())
            return set(unlocker._table.rows()) == {"bad"}

        wait_until(good_are_gone, what="the others to go")
        first = len(asked)
        wait_until(lambda: len(asked) > first + 1, what="it to be retried")
        assert unready == {None}


def test_what_is_over_goes_and_all_else_stays(
    settings: Settings, etcdctl: Etcdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records by their age and number, marks by theirs, and nobody's keys."""
    for name, seconds in {
        "STEP_INTERVAL_S": 0.2,
        "SCAN_INTERVAL_S": 0.2,
        "MIN_RECORD_AGE_S": 1.0,
        "TOMBSTONE_RETENTION_S": 1.0,
    }.items():
        monkeypatch.setattr(record_cleanup, name, seconds)
    root, now = settings.root, time.time()
    etcdctl("put", f"{root}/code/0ld", "  File …")
    for name, days in {"a/old": 8, "b": 3, "c": 5, "d": 1, "odd": 9}.items():
        segment = name.replace("/", "%2F")
        record = Removal(Holder(name, "u"), now - days * 86400, "me", AUTO_UNLOCK, "why")
        etcdctl("put", f"{root}/removed/{segment}/u", record.value())
    etcdctl("put", f"{root}/removed/a b/u", '{"removed_at": 1}')
    etcdctl("put", f"{root}/withdrawn/x/u", "")
    etcdctl("put", f"{root}/code/c0de", "  File …")
    unlocker = Unlocker(etcd_store(settings), keep_removals=2)
    unlocker.start()
    try:

        def left() -> set[str]:
            keys = etcdctl("get", "--prefix", "--keys-only", f"{root}/").split("\n")
            return {each.removeprefix(f"{root}/") for each in keys if each}

        def stands() -> set[str]:
            return {each for each in left() if not each.startswith("unlockers/")}

        left_over = {"removed/c/u", "removed/d/u", "removed/a b/u"}
        wait_until(
            lambda: stands() == {*left_over, "code/c0de"},
            60,
            "what is over to go",
        )
        assert any(each.startswith("unlockers/") for each in left())
    finally:
        unlocker.stop()


def abandon(store: EtcdStore, name: str, auto_unlock_after: float | None) -> None:
    """Take a lock that goes past its alert after a second, and forget it."""
    take(store, taker(name, Runtime(1, auto_unlock_after)))


def test_what_is_overdue_is_listed_though_a_hundred_have_been_silent_for_longer(
    settings: Settings, store: EtcdStore
) -> None:
    """The brake lets a fifth go in a minute: what it keeps back is overdue."""
    with when_ready(unlocker(settings, "--max-removals", "1")) as service:
        for number in range(MAX_LISTED):
            abandon(store, f"zombie-{number}", None)
        alert, overdue = (
            f'clustermutex_locks{{state="{state}"}}' for state in ("alert", "overdue")
        )
        wait_until(lambda: figures(service)[alert] == MAX_LISTED, what="alerts", timeout=90)
        abandon(store, "important", None)
        unlisted = 'clustermutex_locks_unlisted{state="alert"}'
        wait_until(lambda: figures(service)[unlisted] == 1, what="the 101st", timeout=90)

        for number in range(40):
            abandon(store, f"dead-{number}", 2)
        braked = "clustermutex_unlocker_brake_engaged"

        def seen() -> bool:
            """Between two moments of one scrape something may happen: then the next one fits."""
            found = figures(service)
            listed = [name for name in found if name.startswith(f'{UNLOCK}{{name="dead-')]
            return bool(
                found[braked]
                and 0 < found[overdue] <= len(listed)
                and found[unlisted] == found[alert] + found[overdue] - MAX_LISTED
            )

        wait_until(seen, what="all that are overdue to be listed", timeout=90)
