"""A take in a bucket that was sent more than once: the lock says so itself, whoever releases it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex
from lockclient.acquisition.attempt import Attempt
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.outcomes import Taken
from lockclient.stores.requests import Reclaim, Unlock
from tests.contract.asking import NAME, holder
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import LATE, LOSE, Asked, BucketServer, Fault
from tests.support.bucket_store import OBJECT
from tests.support.locks import ask, has, held, left_nothing, take
from tests.support.processes import run_to_end, wait_until
from tests.support.terminal import COMMAND


@pytest.mark.parametrize("lost", [(LATE,), (LATE, LATE), (LOSE, LATE)])
@pytest.mark.parametrize("how", ["reclaimed", "released"])
def test_a_late_create_takes_nothing_after_others_released_it(
    server: BucketServer, store: GcsStore, other: GcsStore, lost: tuple[str, ...], how: str
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


def test_a_take_that_waits_for_a_thread_is_not_sent_once_nobody_wants_it(
    server: BucketServer, store: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the loop's thread comes to say so after the clean-up has begun."""
    let_go = Attempt.let_go
    server.bucket.insert(OBJECT, b"", Conditions(), metadata={"uuid": "other", "hostname": "h"})

    def late(attempt: Attempt) -> None:
        wait_until(lambda: not store.background.unfinished(), what="the clean-up")
        queued.pop()()
        let_go(attempt)

    queued = list[Callable[[], object]]()
    to_thread = store._bridge._takers.submit

    def hand_over(work: Callable[[], object]) -> None:
        if server.counted("GET") > 1:  # it is free: the take
            queued.append(work)
        else:
            to_thread(work)

    async def main() -> None:
        task = asyncio.create_task(AsyncClusterMutex(NAME, store=store).acquire())
        while not server.counted("GET"):
            await asyncio.sleep(0.01)
        server.bucket.delete(OBJECT, Conditions())
        monkeypatch.setattr(store._bridge._takers, "submit", hand_over)
        while not queued:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(Attempt, "let_go", late)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    left_nothing(store)
