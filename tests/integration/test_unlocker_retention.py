"""What an unlocker takes away from a real etcd whose leases last longer than they should."""

from __future__ import annotations

import time

import pytest

from lockclient import Settings
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from tests.support.etcd_binary import Etcdctl
from tests.support.etcd_store import etcd_store
from tests.support.processes import wait_until
from unlocker import record_cleanup
from unlocker.unlocker import Unlocker


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
