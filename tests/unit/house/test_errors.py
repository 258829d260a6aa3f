"""The exception tree: what callers catch, the fields, and crossing a process boundary."""

from __future__ import annotations

import copy
import pickle

import pytest

import lockclient
from lockclient import ClusterMutex, errors
from lockclient.errors import (
    ClusterMutexError,
    InvalidLockName,
    LockLost,
    LockNotHeld,
    LockTimeout,
    StoreError,
    StoreUnavailable,
)
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from tests.support.memory_store import MemoryStore

HOLDER = Holder("x", "u", hostname="h", problems={"pid": "is missing"})
REMOVAL = Removal(HOLDER, 1.0, "ann", "force-unlock", "why")
ALL = [
    ClusterMutexError("m", name="x", uuid="u", holder=HOLDER),
    LockTimeout("m", name="x", holder=HOLDER),
    LockNotHeld("m", name="x"),
    LockLost("m", name="x", uuid="u", holder=HOLDER, removal=REMOVAL),
    StoreUnavailable("m", unknown=False),
    StoreError("m"),
    InvalidLockName("m", name="\n"),
]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (LockTimeout, TimeoutError),
        (LockNotHeld, RuntimeError),
        (StoreUnavailable, ConnectionError),
        (InvalidLockName, ValueError),
        (LockLost, ClusterMutexError),
        (StoreError, ClusterMutexError),
    ],
)
def test_each_error_is_also_the_fitting_builtin(
    kind: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(kind, builtin)
    assert issubclass(kind, ClusterMutexError)


def test_a_timeout_on_a_free_lock_names_the_waiters_ahead() -> None:
    store = MemoryStore()
    store.wait("x", "before", hostname="other")
    with pytest.raises(LockTimeout, match="Nobody holds it, but 1 waits for it"):
        ClusterMutex("x", store=store, timeout=0).__enter__()


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling(error: ClusterMutexError, protocol: int) -> None:
    other = pickle.loads(pickle.dumps(error, protocol))
    assert type(other) is type(error)
    assert str(other) == "m"
    assert other.args == error.args
    assert vars(other) == vars(error)


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_a_copy_has_no_history(error: ClusterMutexError) -> None:
    """A loss is raised as a copy each time: the same text and fields, no traceback, no cause."""
    try:
        raise error from ValueError("cause")
    except ClusterMutexError as raised:
        other = copy.copy(raised)
    assert (type(other), str(other), vars(other)) == (type(error), "m", vars(error))
    assert (other.__traceback__, other.__cause__, other.__context__) == (None, None, None)


def test_fields_default_to_none() -> None:
    error = LockLost("m")
    assert (error.name, error.uuid, error.holder, error.removal) == (None, None, None, None)
    assert StoreUnavailable("m").unknown is True


def test_all_are_exported() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = {kind.__name__ for kind in kinds if issubclass(kind, Exception)}
    assert len(ours) > 6
    assert ours <= set(lockclient.__all__)
