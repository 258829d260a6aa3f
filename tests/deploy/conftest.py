"""The stack that the tests of alerts and of the Grafana dashboard share."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.settings import Settings
from tests.deploy.stack import Stack


@pytest.fixture(scope="session")
def stack(etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An unlocker, mutexdash, Prometheus and Alertmanager on a root of their own."""
    settings = Settings(endpoints=(etcd.endpoint,), root=f"/t-{uuid4().hex[:12]}")
    with Stack(settings, tmp_path_factory.mktemp("stack")) as running:
        yield running
