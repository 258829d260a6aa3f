"""`ClusterMutex` in one process, over a real etcd: it follows `threading.Lock`."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    InvalidLockName,
)
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import Etcdctl, served


@pytest.fixture
def mutex(store: ServiceStore) -> Callable[..., ClusterMutex]:
    return lambda name="x", **how: ClusterMutex(name, store=store, **how)


Make = Callable[..., ClusterMutex]


class TestConstruction:
    @pytest.mark.parametrize(
        ("how", "said"),
        [
            ({"name": ""}, "1 to 255 bytes"),
            ({"name": "a\nb"}, "control characters"),
            ({"name": "x" * 256}, "this one has 256"),
            ({"name": 5}, "must be a text"),
            ({"timeout": -1}, "timeout must be"),
            ({"timeout": math.nan}, "timeout must be"),
            ({"timeout": True}, "timeout must be"),
            ({"expected_runtime": 0}, "expected_runtime must be"),
            ({"expected_runtime": math.nan}, "expected_runtime must be"),
            ({"expected_runtime": "soon"}, "expected_runtime: 'soon' is no duration"),
            ({"auto_unlock_after": 300.0}, "must exceed expected_runtime"),
            ({"auto_unlock_after": math.inf}, "auto_unlock_after must be"),
            ({"auto_unlock_after": "never"}, "auto_unlock_after: 'never' is no duration"),
            ({"expected_runtime": 1000, "auto_unlock_after": 900}, "must exceed expected_runtime"),
            ({"reason": 5}, "reason must be a text"),
            ({"reason": "x" * 4097}, "0 to 4096 bytes"),
            ({"identity": ""}, "1 to 4096 bytes"),
            ({"identity": 7}, "identity must be a text"),
            ({"on_lost": "print"}, "on_lost must be callable"),
        ],
    )
    @pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
    def test_bad_values_are_refused_before_any_io(
        self, kind: Callable[..., object], how: dict[str, object], said: str
    ) -> None:
        """There is no store at all here."""
        with pytest.raises(ValueError, match=said) as caught:
            kind(**{"name": "x", **how})
        assert isinstance(caught.value, InvalidLockName) == ("name" in how)

    def test_a_reason_that_is_not_utf8_is_escaped(self, mutex: Make) -> None:
        with mutex(reason="file \udcff") as held:
            assert held.record.reason == "file ?"
            holder = held.holder()
            assert holder is not None
            assert holder.reason == "file ?"


class TestCost:
    def test_a_cycle_without_contention_is_two_transactions(
        self, own_etcd: Etcd, own_store: ServiceStore
    ) -> None:
        """No lease, no watch, no read: as etcd itself counts."""
        one = ClusterMutex("x", store=own_store)
        with one:
            pass
        before = served(own_etcd)
        for _ in range(10):
            with one:
                one.alive()  # just pushed: nothing to send
        assert served(own_etcd) - before == {"Txn": 20}


class TestHeartbeats:
    def test_the_guard_holds_as_long_as_the_lock(self, mutex: Make, etcdctl: Etcdctl) -> None:
        """In the user's own transaction on the same etcd."""
        with mutex() as held:
            key, value = held.guard.key.decode(), held.guard.value.decode()
            check = f'val("{key}") = "{value}"\n\nput {key}-data 1\n\n\n'
            assert etcdctl("txn", input=check).startswith("SUCCESS")
        assert etcdctl("txn", input=check).startswith("FAILURE")
