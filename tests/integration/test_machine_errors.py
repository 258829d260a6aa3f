"""Failures of this machine and its files are named as such, not as a server that is down."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lockclient import Settings, StoreError, StoreUnavailable, open_store
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.request_types import Read, Take
from tests.contract.asking import NAME, holder
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of
from tests.support.certificates import Authority


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
