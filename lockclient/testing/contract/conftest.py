"""The fixtures of the contract suites; the store is that of `--store` (`plugin`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockclient.testing.contract.fixtures import *  # noqa: F403
from lockclient.testing.contract.plugin import EXAMPLE, SUBJECTS
from lockclient.testing.contract.subject import Subject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each test of mutexes for those of threads and those of asyncio."""
    subject = metafunc.config.stash.get(EXAMPLE, None)
    if subject is None:
        raise pytest.UsageError(
            "Say which store is to be tried: python -m lockclient.testing.contract --store …"
        )
    if "make" in metafunc.fixturenames:
        drivers = ["threads", "asyncio"] if hasattr(subject.store, "send_async") else ["threads"]
        metafunc.parametrize("make", drivers, indirect=True)


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The store that `--store` names, empty."""
    with request.config.stash[SUBJECTS]() as made:
        yield made
