"""A bucket with faults, and the stores of two programs in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from lockclient import open_store
from lockclient.stores.service_store import ServiceStore
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of


@pytest.fixture
def store(server: BucketServer) -> Iterator[ServiceStore]:
    with closing(open_store(settings_of(server, ""))) as opened:
        yield opened


@pytest.fixture
def other(server: BucketServer) -> Iterator[ServiceStore]:
    """Another program's, that knows only what it sees."""
    with closing(open_store(settings_of(server, ""))) as opened:
        yield opened
