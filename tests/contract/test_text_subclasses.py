"""A text that formats as another one (`class Job(str, Enum)`) is its value, in every store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockclient import ClusterMutex
from lockclient.default_store import open_store
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from tests.contract.subject import Subject


class Job(str):
    """Formats as a member of an Enum does, in every version of Python."""

    def __str__(self) -> str:
        return "Job.NIGHTLY"

    def __format__(self, how: str) -> str:
        return "Job.NIGHTLY"

    def encode(self, *how: Any) -> bytes:
        return b"Job.NIGHTLY"


def test_its_value_is_the_lock_s_name(subject: Subject, writer: ServiceStore) -> None:
    """Programs that give the subclass and its value want one lock."""
    held = ClusterMutex(Job("nightly"), store=subject.store).acquire(timeout=10)
    assert held is not None
    plain = ClusterMutex("nightly", store=writer)
    assert plain.acquire(blocking=False) is None
    held.release()
    with plain:
        assert not ClusterMutex(Job("nightly"), store=subject.store).acquire(blocking=False)


def test_the_value_of_a_str_subclass_is_written(subject: Subject, writer: ServiceStore) -> None:
    mutex = ClusterMutex(
        "x",
        store=subject.store,
        owner=Job("billing"),
        identity=Job("worker-7"),
        reason=Job("the nightly run"),
        labels={Job("team"): Job("blue")},
    )
    with mutex:
        holder = ClusterMutex("x", store=writer).holder()
    assert holder is not None
    said = (holder.owner, holder.identity, holder.reason, holder.labels)
    assert said == ("billing", "worker-7", "the nightly run", {"team": "blue"})


def test_its_value_is_a_root(subject: Subject) -> None:
    """Locks of a root given as a subclass, and of its value, exclude each other."""
    location: Any = getattr(subject.store, "location", None)
    if not hasattr(location, "root"):  # as of locks in memory
        return
    other = open_store(Settings(location=replace(location, root=Job(location.root))))
    try:
        with ClusterMutex("x", store=subject.store):
            assert not ClusterMutex("x", store=other).acquire(blocking=False)
    finally:
        other.close()
