"""Real servers that refuse for a while: waiters keep their order, clean-ups succeed soon after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from lockclient import ClusterMutex, Settings, StoreFull
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.mutex_store import MutexStore
from lockclient.stores.request_types import Withdraw
from tests.support.etcd_binary import Etcdctl, exhaust_space
from tests.support.processes import wait_until
from tests.support.valkey_servers import running

Opener = Callable[..., MutexStore]


def is_full(store: MutexStore) -> bool:
    try:
        ClusterMutex("z", store=store).acquire()
    except StoreFull:
        return True
    return False


def test_waiters_of_an_etcd_out_of_space_keep_their_order(
    own_etcd: Etcd, own_etcdctl: Etcdctl, opened: Opener
) -> None:
    """Through its restart, too: each has its turn when there is space again."""
    store = opened(Settings(endpoints=(own_etcd.endpoint,)))
    mutex, turns = ClusterMutex("x", store=store), list[int]()
    mutex.acquire()

    def wait(number: int) -> None:
        with ClusterMutex("x", store=store):
            turns.append(number)

    threads = [Thread(target=wait, args=(number,)) for number in range(3)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda: len(mutex.waiters()) == number, what="the next waiter")  # noqa: B023 - runs in this turn
    before = [ticket.uuid for ticket in mutex.waiters()]
    exhaust_space(own_etcd)
    mutex.release()
    wait_until(lambda: is_full(store), what="a refusal")
    assert [ticket.uuid for ticket in mutex.waiters()] == before
    own_etcdctl("alarm", "disarm")
    for thread in threads:
        thread.join(60)
    assert turns == [0, 1, 2]


def test_a_clean_up_follows_a_refusal_that_passes(
    own_etcd: Etcd, own_etcdctl: Etcdctl, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """Authentication is enabled for a moment while a client without a user cleans up."""
    for words in ("user add root:of-root", "role add root", "user grant-role root root"):
        own_etcdctl(*words.split())
    store = opened(Settings(endpoints=(own_etcd.endpoint,)))
    held = ClusterMutex("x", store=store).acquire()
    assert held is not None
    own_etcdctl("auth", "enable")
    store.background.clean_up(Withdraw("x", held.uuid, tombstone=True))
    wait_until(lambda: "Cleaning up after 'x' is refused" in caplog.text, what="a refusal")
    own_etcdctl("--user=root:of-root", "auth", "disable")
    wait_until(lambda: held.holder() is None, timeout=15, what="the withdrawal")


def test_a_deletion_follows_a_refusal_that_passes(tmp_path: Path) -> None:
    """A server of Valkey confirms nothing for a moment, while its administrator changes a role."""
    with running(tmp_path, 3) as three:
        three.command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all")
        with three.store(user="shop", password="secret") as store:
            mutex, first = ClusterMutex("a", store=store), three.all[0]
            key = store.keys.lock("a")
            with mutex:
                wait_until(lambda: first.command("EXISTS", key), what="the lock on each server")
                first.command("ACL", "SETUSER", "shop", "-@all")
            assert first.command("EXISTS", key)
            first.command("ACL", "SETUSER", "shop", "+@all")
            wait_until(lambda: not first.command("EXISTS", key), timeout=15, what="the deletion")
