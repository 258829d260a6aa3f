"""A take in a bucket that was sent more than once: the lock says so itself, whoever releases it."""

from __future__ import annotations

import pytest

from lockclient import ClusterMutex
from lockclient.stores.outcomes import Taken
from lockclient.stores.requests import Reclaim, Unlock
from lockclient.stores.service_protocol import ServiceStore
from tests.contract.asking import NAME, holder
from tests.support.bucket.server import LATE, LOSE, Asked, BucketServer, Fault
from tests.support.bucket_store import OBJECT
from tests.support.locks import ask, has, held, take
from tests.support.processes import run_to_end
from tests.support.terminal import COMMAND


@pytest.mark.parametrize("lost", [(LATE,), (LATE, LATE), (LOSE, LATE)])
@pytest.mark.parametrize("how", ["reclaimed", "released"])
def test_a_late_create_takes_nothing_after_others_released_it(
    server: BucketServer, store: ServiceStore, other: ServiceStore, lost: tuple[str, ...], how: str
) -> None:
    """By who took over from a holder that was killed, or by another process with its uuid."""
    for fault in lost:
        server.fault("POST", fault)
    mine = ClusterMutex(NAME, store=store, identity="me", expected_runtime=600)
    mine.acquire()
    if how == "released":
        ask(other, Unlock(NAME, mine.uuid))
    else:
        heir = holder(identity="me")
        assert isinstance(ask(other, Reclaim(heir, held(other))), Taken)
        ask(other, Unlock(NAME, heir.uuid or ""))
    assert set(server.deliver()) == {412}
    assert has(other) is None
    take(other)


@pytest.mark.parametrize("kind", [LATE, LOSE])
def test_the_command_that_leaves_a_lock_held_ends(server: BucketServer, kind: str) -> None:
    """Where each other upload is not answered: what it leaves may be released by anybody."""
    uploads = 0

    def trouble(asked: Asked) -> Fault | None:
        nonlocal uploads
        uploads += asked.method == "POST"
        return Fault("POST", kind) if asked.method == "POST" and uploads % 2 else None

    server.trouble = trouble
    env = {"CLUSTERMUTEX_URL": f"gs://{server.bucket.name}"}

    uuid = run_to_end(COMMAND, "lock", NAME, "--timeout", "5", env=env).stdout.strip()
    assert uploads == 2
    run_to_end(COMMAND, "unlock", NAME, "--uuid", uuid, env=env)
    assert set(server.deliver()) <= {412}
    assert set(server.bucket.names()) == {OBJECT}
    assert "uuid" not in server.bucket.get(OBJECT)[0]["metadata"]
