"""Watches that etcd refuses: a token that is stale, a right that is missing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from lockclient import ClusterMutex, StoreError
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.overview.live_table import Table
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from mutexdash.app import Options, create_app
from mutexdash.data.snapshot_refresh import Live
from tests.faults.conftest import Stores
from tests.support.etcd_binary import Etcdctl, add_users, allow, etcdctl_of
from tests.support.processes import Figure, wait_until
from tests.support.relay import Relay
from unlocker.unlocker import Unlocker

ROOT = "/guarded"
Guarded = tuple[Etcd, Etcdctl]


@pytest.fixture(scope="module")
def guarded(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """An etcd with passwords, whose simple tokens last two seconds; etcdctl as its root."""
    folder = tmp_path_factory.mktemp("guarded")
    server = Etcd(etcd_binary, folder / "data", folder / "etcd.log")
    server.extra = ["--auth-token-ttl=2", "--bcrypt-cost=4"]
    with server:
        etcdctl = etcdctl_of(server)
        parts = [f"{ROOT}/{kind}" for kind in ("locks/", "queue/", "unlockers/")]
        add_users(etcdctl, parts=parts, ann=[f"{ROOT}/"])
        yield server, partial(etcdctl, "--user=root:root")


@pytest.fixture
def ann(guarded: Guarded, stores: Stores) -> EtcdStore:
    """The store of one who may do everything below the root."""
    return stores(guarded[0].endpoint, root=ROOT, user="ann", password="ann")


def test_a_stale_token_is_replaced(
    guarded: Guarded, ann: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A new watch on an old stream is heard, and so are those before it; nobody is alarmed."""
    caplog.set_level(logging.INFO)
    early, late = list[WatchEvent](), list[WatchEvent]()
    watches = [ann.watch(WatchTarget("a"), 0, early.append)]
    wait_until(ann.connected, what="the stream")
    guarded[1]("user", "passwd", "ann", "--interactive=false", input="ann\n")
    time.sleep(2.5)  # a refusal is a proof of life, too: the quiet stream is left alone
    assert ann.connected()
    assert ann.watch_restarts() == 0
    watches.append(ann.watch(WatchTarget("a"), 0, late.append))
    wait_until(lambda: any(one.started for one in late), what="the new watch")
    with ClusterMutex("a", store=ann) as held:
        for heard in (early, late):
            wait_until(lambda: any(one.uuid == held.uuid for one in heard), what="the take")  # noqa: B023
    assert not any(event.gap for event in (*early, *late))
    wait_until(ann.connected, what="the stream")
    for watch in watches:
        watch.close()
    assert "trying again with a new token" in caplog.text
    assert "etcd refuses the watch on" not in caplog.text


def test_a_table_without_the_right_to_watch_says_so(
    guarded: Guarded,
    stores: Stores,
    ann: EtcdStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, etcdctl = guarded
    store = stores(server.endpoint, root=ROOT, user="parts", password="parts")
    table = Table(store)
    table.start()
    page = create_app(Live(table), store, Options()).test_client()
    unlocker = Unlocker(stores(server.endpoint, root=ROOT, user="parts", password="parts"))
    unlocker.start()
    try:
        assert table.wait_ready(30)
        wait_until(lambda: table.trouble, what="the trouble")
        assert "permission denied" in page.get("/readyz", base_url="http://127.0.0.1").text
        wait_until(lambda: "permission denied" in str(unlocker.is_ready()), what="its trouble")
        assert not table.connected()
        assert "permission denied" in table.trouble
        assert "the user 'parts'" in table.trouble
        assert f"all keys from {ROOT}/" in table.trouble
        # Seen on the way: the refusal holds for as long as the right is missing.
        for _ in range(20):
            assert table.trouble
            time.sleep(0.1)
        refusals = [text for text in caplog.messages if text.startswith("etcd refuses the watch")]
        assert len(refusals) == 1  # the unlocker can't even read all that it needs
        held = ClusterMutex("x", store=ann)
        held.acquire()
        allow(etcdctl, "parts", f"{ROOT}/")
        wait_until(lambda: table.connected() and table.row("x"), what="the right to work")
        assert table.trouble == ""
        wait_until(lambda: unlocker.is_ready() is None, what="the unlocker")
        held.release()
        wait_until(lambda: not table.row("x"), what="the release")
        assert table.loads == 1
    finally:
        table.stop()
        unlocker.stop()


def test_a_waiter_without_the_right_to_watch_polls_once_a_second(
    guarded: Guarded, stores: Stores, figure: Figure
) -> None:
    store = stores(guarded[0].endpoint, root="/elsewhere", user="ann", password="ann")
    told: list[float] = []

    def again(event: WatchEvent) -> None:
        assert event.gap
        told.append(time.monotonic())
        store.watch(WatchTarget("x"), 0, again)

    began = time.monotonic()
    for _ in range(3):
        store.watch(WatchTarget("x"), 0, again)
    wait_until(lambda: len(told) >= 9, what="the third round")
    took = told[8] - began
    figure(f"three watches were refused three times in {took:.1f} s")
    assert took > 2.9


def test_a_waiter_whose_right_was_revoked_gets_an_error(
    guarded: Guarded, stores: Stores, ann: EtcdStore
) -> None:
    server, etcdctl = guarded
    etcdctl("user", "add", "bob:bob")
    etcdctl("user", "grant-role", "bob", "ann")
    with Relay(server.endpoint) as cable, ClusterMutex("w", store=ann) as held:
        bobs = stores(cable.endpoint, root=ROOT, user="bob", password="bob")
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                ClusterMutex("w", store=bobs).acquire()
            except StoreError as error:
                errors.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        wait_until(held.waiters, what="the waiter in line")
        wait_until(bobs.connected, what="its watch")
        etcdctl("user", "revoke-role", "bob", "ann")
        cable.cut()
        cable.mend()
        thread.join(60)
        assert "permission denied" in str(errors[0])
