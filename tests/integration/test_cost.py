"""What a lock costs, in counts that no noise can move."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.rpc_methods import RANGE

MOST_CALLS = 95


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_lock_and_unlock_makes_few_calls(
    settings: Settings, where: str, figure: Callable[[str], None]
) -> None:
    program = Path(__file__).with_name("calls_program.py")
    found = subprocess.run(
        [sys.executable, program, settings.url(), where],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    calls = float(found.stdout.split()[-1])
    figure(f"{calls:.1f} calls of Python functions outside gRPC, from the {where} thread")
    assert calls <= MOST_CALLS, found.stdout


def test_a_lock_is_five_keys_and_a_push_writes_two(store: EtcdStore) -> None:
    channels = Channels(store.location)

    def keys() -> dict[str, int]:
        prefix = f"{store.location.root}/locks/".encode()
        everything = wire.Range(key=prefix, range_end=prefix[:-1] + b"0")
        answer = channels.call(RANGE, everything, Deadline.after(10))
        return {kv.key.decode().rpartition("/")[2]: kv.mod_revision for kv in answer.kvs}

    try:
        with ClusterMutex("five", store=store, reason="to be counted") as m:
            taken = keys()
            assert sorted(taken) == ["about", "alert_at", "auto_unlock_at", "hostname", "uuid"]
            assert set(taken.values()) == {m.fencing_token}
            m.alive(force=True)
            pushed = keys()
            moved = {key for key in taken if pushed[key] != taken[key]}
            assert moved == {"alert_at", "auto_unlock_at"}
        assert keys() == {}
    finally:
        channels.close()
