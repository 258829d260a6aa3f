"""Our own stores, held to the suites of `lockclient.testing.contract`, which others run by --store.

Another one of ours joins with one more line of `STORES`.

A test that is about something that not every store can do says so by a mark, `needs("queue")`, and
is not made for a store that can't.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from lockclient.stores.common.segments import encode
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.protocol import Capabilities
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.store import ValkeyStore
from lockclient.testing.contract.fixtures import ask, make, reader, writer
from lockclient.testing.contract.subject import Subject, in_memory
from lockclient.testing.memory_store import MemoryStore
from tests.simulation.server import served
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import BucketServer
from tests.support.valkey_servers import Servers, redis_binary, running

__all__ = ["ask", "make", "reader", "writer"]  # the fixtures

STORES: dict[str, Capabilities] = {
    "memory": MemoryStore.can,
    "etcd": EtcdStore.can,
    "simulated etcd": EtcdStore.can,
    "bucket": GcsStore.can,
    "one Redis": ValkeyStore.can,
    "five Valkeys": ValkeyStore.can,
}


DAILY = {
    "memory": ["threads"],
    "etcd": ["threads", "asyncio"],
    "simulated etcd": ["threads"],
    "bucket": ["asyncio"],
    "one Redis": ["threads"],
    "five Valkeys": ["asyncio"],
}
"""The drivers that meet a store in `make test`; in `make soak` each driver meets each store.

etcd has a way of its own for each driver; to the others, asyncio comes by one and the same bridge.
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each test for each store that can do what it needs, and with drivers, where it has."""
    if "subject" not in metafunc.fixturenames:
        return
    needs = [ability for mark in metafunc.definition.iter_markers("needs") for ability in mark.args]
    able = [
        store for store, can in STORES.items() if all(getattr(can, need, True) for need in needs)
    ]
    if metafunc.module.__name__.endswith("test_service_answers"):
        able.remove("simulated etcd")  # it does not say of itself how it is
    if "make" not in metafunc.fixturenames:
        metafunc.parametrize("subject", able, indirect=True)
        return
    pairs = [
        pytest.param(store, driver, marks=() if driver in DAILY[store] else pytest.mark.soak)
        for store in able
        for driver in ("threads", "asyncio")
    ]
    metafunc.parametrize(("subject", "make"), pairs, indirect=True)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with BucketServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture(scope="session")
def one_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with running(tmp_path_factory.mktemp("redis"), 1, redis_binary()) as servers:
        yield servers


@pytest.fixture(scope="session")
def five_valkeys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Five servers that know nothing of each other."""
    with running(tmp_path_factory.mktemp("valkey"), 5) as servers:
        yield servers


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "memory":
        with in_memory() as memory:
            yield memory
        return
    if request.param == "bucket":
        yield from _in_a_bucket(request.getfixturevalue("bucket"))
        return
    if request.param == "simulated etcd":
        yield from _in_a_simulation()
        return
    if request.param in ("one Redis", "five Valkeys"):
        yield from _in_valkey(request.getfixturevalue(request.param.lower().replace(" ", "_")))
        return
    store: EtcdStore = request.getfixturevalue("store")
    etcdctl: Callable[..., str] = request.getfixturevalue("etcdctl")

    def revoke() -> None:
        line = etcdctl("get", "--prefix", f"{store.location.root}/queue/", "-w", "json")
        for lease in {kv["lease"] for kv in json.loads(line)["kvs"]}:
            etcdctl("lease", "revoke", f"{lease:x}")

    def write(name: str, part: str, value: bytes | None) -> None:
        key = f"{store.location.root}/locks/{encode(name)}/{part}"
        etcdctl("del", key) if value is None else etcdctl("put", key, input=value)

    yield Subject(store, lambda: EtcdStore(store.location), revoke, write)


def _in_a_simulation() -> Iterator[Subject]:
    """What `tests/simulation` says is worth as much as its etcd is like a real one."""
    with served() as (serving, endpoint):
        store = EtcdStore(EtcdLocation((endpoint,)))

        def lose_tickets() -> None:
            with serving.now() as etcd:
                kept = etcd.kept.items()
                for lease in {kv.lease for key, kv in kept if b"/queue/" in key}:
                    etcd.revoke(wire.LeaseRevoke(id=lease))

        def write(name: str, part: str, value: bytes | None) -> None:
            key, txn = f"{store.location.root}/locks/{encode(name)}/{part}".encode(), wire.Txn()
            if value is None:
                txn.success.add().delete.key = key
            else:
                txn.success.add().put.CopyFrom(wire.Put(key=key, value=value))
            with serving.now() as etcd:
                etcd.txn(txn)

        yield Subject(store, lambda: EtcdStore(store.location), lose_tickets, write)
        store.close()


def _in_a_bucket(server: BucketServer) -> Iterator[Subject]:
    place = GcsLocation.of(f"gs://{server.bucket.name}/of/the/test")
    store = GcsStore(place)
    names = ObjectNames(store.location.root)

    def write(name: str, part: str, value: bytes | None) -> None:
        said = {part: None if value is None else value.decode()}
        server.bucket.patch(names.lock(name), {"metadata": said}, Conditions())

    yield Subject(store, lambda: GcsStore(place), lambda: None, write)
    store.close()


def _in_valkey(servers: Servers) -> Iterator[Subject]:
    root = f"t-{uuid4().hex[:12]}"

    def write(name: str, part: str, value: bytes | None) -> None:
        key = KeyNames(root).lock(name)
        for server in servers.all:
            if value is None:
                server.command("HDEL", key, part)
            else:
                server.command("HSET", key, part, value.decode())
            server.command("HINCRBY", key, "push", "1")  # as the protocol has it

    with servers.store(root=root) as store:
        yield Subject(store, lambda: ValkeyStore(store.location), lambda: None, write)
