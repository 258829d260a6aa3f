"""A site in virtual time for the tests of the unlocker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.site import Site, Url, virtual_site


@pytest.fixture
def site() -> Iterator[Site]:
    with virtual_site() as found:
        yield found


@pytest.fixture
def ops(site: Site) -> Url:
    return site.url("ops")
