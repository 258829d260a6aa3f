"""Failures of this machine and its files are named as such, not as a server that is down."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings, StoreError, StoreUnavailable, open_store
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.request_types import Read, Take
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, holder
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of
from tests.support.certificates import Authority
from tests.support.locks import held, left_nothing, queue_up, read, remove
from tests.support.processes import wait_until


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def listening() -> Iterator[str]:
    """An address where a socket listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["etcd", "bucket", "valkey"])
def test_a_process_without_descriptors_fails_at_once(
    kind: str, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{listening}")
    url = "gs://locks" if kind == "bucket" else f"{kind}://{listening}/x"
    with (
        closing(open_store(Settings.load("etcd://127.0.0.1:1/x"))) as refused,
        closing(open_store(Settings.load(url))) as store,
    ):
        with pytest.raises(StoreUnavailable):  # so that gRPC has the descriptors that it can't miss
            refused.ask(Read(NAME), Deadline.after(0.1))
        begun = monotonic()
        with no_descriptor_left(), pytest.raises(StoreError, match=r"descriptor left.*ulimit -n"):
            store.ask(Take(holder()), Deadline.after(60.0))
        assert monotonic() - begun < 30.0


@pytest.mark.parametrize("role", ["waiter", "holder"])
def test_a_watch_that_gets_no_descriptor_delays_no_news(
    role: str, settings: Settings, store: ServiceStore, opened: Callable[[Settings], ServiceStore]
) -> None:
    """Requests have their connection by then, and the watch would open one of its own."""
    other = opened(settings)
    holds, waits = (other, store) if role == "waiter" else (store, other)
    before = ClusterMutex(NAME, store=holds)
    after = ClusterMutex(NAME, store=waits)
    assert read(store).holder is None is read(other).holder  # both connect
    with no_descriptor_left():
        before.acquire()
        queue_up(after)
        begun = monotonic()
        if role == "waiter":
            before.release()
        else:
            remove(other, held(other))
            wait_until(lambda: not before.healthy, what="the loss")
        wait_until(after.locked, what="the lock")
        # Waiters read their position every 60 s, whatever they watch.
        assert monotonic() - begun < 50.0
        after.release()
    left_nothing(store)


def test_an_expired_certificate_of_a_bucket_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    with BucketServer() as server:
        server.talk_tls(authority.issue("localhost", until=yesterday))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority.cacert)
        with (
            closing(open_store(settings_of(server))) as store,
            pytest.raises(StoreUnavailable, match=r"its certificate has expired.*Renew"),
        ):
            store.ask(Read(NAME), Deadline.after(0.5))
