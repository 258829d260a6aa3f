"""A cluster with faults for all tests of a module; each test leaves it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockclient import Settings
from lockclient.stores.etcd.store import EtcdStore
from tests.support.etcd_cluster import Cluster

Stores = Callable[..., EtcdStore]
"""Opens a store on an endpoint."""


@pytest.fixture(scope="module")
def the_cluster(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(etcd_binary, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def stores(opened: Callable[[Settings], EtcdStore], root: str) -> Stores:
    """A function that opens stores on an endpoint, with a root of the test's own."""
    return lambda endpoint, **how: opened(Settings((endpoint,), **{"root": root, **how}))


@pytest.fixture
def cluster(the_cluster: Cluster) -> Cluster:
    the_cluster.settle()
    return the_cluster
