"""CPython's own tests of a lock, run on `ClusterMutex`."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from uuid import uuid4

import pytest

from lockclient import ClusterMutex
from lockclient.testing import MemoryStore
from tests.support.processes import needed

needed("test.lock_tests")
lock_tests = import_module("test.lock_tests")

SET_ASIDE = {
    # A private hook that `threading` calls on its own locks.
    "test_at_fork_reinit"
}


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in dir(lock_tests.LockTests)
        if case.startswith("test_") and case not in SET_ASIDE
    ],
)
def test_the_lock_tests_of_cpython_pass(case: str) -> None:
    store = MemoryStore()
    base: Any = lock_tests.LockTests

    class Tests(base):  # type: ignore[misc]
        def locktype(self) -> ClusterMutex:
            return ClusterMutex(f"lock-tests-{uuid4()}", store=store)

    # The process's own threads must not look like ones that the test has leaked.
    warm_up(store)
    tests = Tests(case)
    tests.setUp()
    try:
        getattr(tests, case)()
    finally:
        tests.doCleanups()
        tests.tearDown()


def warm_up(store: MemoryStore) -> None:
    """Make the background thread run."""
    with ClusterMutex("warm-up", store=store):
        assert not ClusterMutex("warm-up", store=store).acquire(timeout=0.1)
