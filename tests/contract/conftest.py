"""The stores that the contract suite runs over: ours, or the one that `--store` names.

Another one of ours joins with one more line of `STORES`.

A test that is about something that not every store can do says so by a mark, `needs("queue")`, and
is not made for a store that can't. A test of what the library does alike over every store has the
mark `any_store`: `make test` runs it over locks in memory, `make soak` over each store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.common.segments import encode
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.store import ValkeyStore
from lockclient.testing.memory_store import MemoryStore
from tests.contract.asking import Ask
from tests.contract.drivers import InThreads, Make, OnALoop, running_loop
from tests.contract.subject import Subject, Subjects, in_memory, named
from tests.simulation.server import served
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import BucketServer
from tests.support.valkey_servers import Servers, redis_binary, running

POLL_INTERVAL_S = 0.05
SUITE = Path(__file__).parent
OWN = pytest.StashKey[Subjects]()
"""Makes the subjects of the store that `--store` names."""
OWN_EXAMPLE = pytest.StashKey[Subject]()
"""One of them, closed: what that store can do."""

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        help="Run the contract suite over this store alone: module:function of a context manager "
        "that yields a tests.contract.subject.Subject, or a URL with {} where each test has "
        "another name.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Open the store of `--store` for a moment, to see what it can do."""
    store = config.getoption("--store", None)
    if store is None:
        return
    try:
        subjects = config.stash[OWN] = named(store)
        with subjects() as subject:
            config.stash[OWN_EXAMPLE] = subject
    except ValueError as error:
        raise pytest.UsageError(f"--store: {error}") from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return which tests are not made for the store of `--store`."""
    subject = config.stash.get(OWN_EXAMPLE, None)
    if subject is None:
        return []
    abilities = ("queue", "watch", "fencing", "guard", "services", "lose_tickets", "write")
    missing = [need for need in abilities if not subject.able(need)]
    return [f"store: {subject.store.can.display_name}; no tests of: {', '.join(missing) or '-'}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--store`, leave out the tests of what that store need not do, and of our stores."""
    subject = config.stash.get(OWN_EXAMPLE, None)
    if subject is None:
        return
    left_out = [
        item
        for item in items
        if item.path.parent == SUITE
        if "subject" not in getattr(item, "fixturenames", ())
        or not all(subject.able(need) for need in needs_of(item))
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def needs_of(test: pytest.Item) -> list[str]:
    return [ability for mark in test.iter_markers("needs") for ability in mark.args]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each test for each store that can do what it needs, and with drivers, where it has."""
    if "subject" not in metafunc.fixturenames:
        return
    own = metafunc.config.stash.get(OWN_EXAMPLE, None)
    if own is not None:
        metafunc.parametrize("subject", ["own"], indirect=True)
        if "make" in metafunc.fixturenames:
            drivers = ["threads", "asyncio"] if hasattr(own.store, "send_async") else ["threads"]
            metafunc.parametrize("make", drivers, indirect=True)
        return
    needs = needs_of(metafunc.definition)
    able = [
        store for store, can in STORES.items() if all(getattr(can, need, True) for need in needs)
    ]
    if metafunc.module.__name__.endswith("test_service_answers"):
        able.remove("simulated etcd")  # it does not say of itself how it is
    daily = {store: DAILY[store] for store in able}
    if metafunc.definition.get_closest_marker("any_store") is not None:
        daily = {"memory": ["threads", "asyncio"]}
    if "make" not in metafunc.fixturenames:
        subjects = [pytest.param(store, marks=_soak_unless(store in daily)) for store in able]
        metafunc.parametrize("subject", subjects, indirect=True)
        return
    pairs = [
        pytest.param(store, driver, marks=_soak_unless(driver in daily.get(store, ())))
        for store in able
        for driver in ("threads", "asyncio")
    ]
    metafunc.parametrize(("subject", "make"), pairs, indirect=True)


def _soak_unless(daily: bool) -> list[pytest.MarkDecorator]:
    return [] if daily else [pytest.mark.soak]


@pytest.fixture
def reader(subject: Subject) -> ServiceStore:
    """The store in question, as services use it."""
    return _often_polled(subject.store)


@pytest.fixture
def writer(subject: Subject) -> Iterator[ServiceStore]:
    """Another client of the same store."""
    opened = subject.open()
    yield _often_polled(opened)
    opened.close()


def _often_polled(store: ServiceStore) -> ServiceStore:
    if store.poll:
        store.poll = POLL_INTERVAL_S
    return store


@pytest.fixture
def ask(subject: Subject) -> Ask:
    """Ask the store, within ten seconds."""
    return lambda request: subject.store.ask(request, Deadline.after(10))


@pytest.fixture
def make(request: pytest.FixtureRequest, subject: Subject) -> Iterator[Make]:
    """Make a mutex of the driver's that is asked for: `threads` or `asyncio`."""
    if request.param == "threads":
        yield lambda name="x", **how: InThreads(name, store=subject.store, **how)
        return
    with running_loop() as loop:
        yield lambda name="x", **how: OnALoop(loop, name, store=subject.store, **how)


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
    if request.param == "own":
        with request.config.stash[OWN]() as own:
            yield own
        return
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
    """The simulation's etcd: `tests/simulation` proves something only if it is like a real one."""
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
