"""A cluster to break, for all tests of a module; each test leaves it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.etcd_cluster import Cluster


@pytest.fixture(scope="module")
def the_cluster(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three members for a module."""
    with Cluster(etcd_binary, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(the_cluster: Cluster) -> Cluster:
    """Three members that serve and agree."""
    the_cluster.settle()
    return the_cluster
