"""A bucket to break, and two programs' stores in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockclient.stores.gcs.store import GcsStore
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of, store_of


@pytest.fixture
def store(server: BucketServer) -> Iterator[GcsStore]:
    opened = store_of(settings_of(server, ""))
    yield opened
    opened.close()


@pytest.fixture
def other(server: BucketServer) -> Iterator[GcsStore]:
    """Another program's, that knows only what it sees."""
    opened = store_of(settings_of(server, ""))
    yield opened
    opened.close()
