"""Two clients at one lock in a bucket at the same time, and a busy bucket: one of them wins."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from lockclient import ClusterMutex, StoreUnavailable, open_store
from lockclient.model.clocks import Stamps
from lockclient.stores.outcomes import NotHolder, Taken
from lockclient.stores.request_types import Push, Remove, Take, Unlock, Withdraw
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, holder, removal
from tests.support.bucket.server import DROP, Answer, BucketServer
from tests.support.bucket_store import OBJECT, settings_of
from tests.support.locks import PATIENCE, ask, has, removal_of, take
from tests.support.processes import wait_until


class TestRemovals:
    @pytest.mark.parametrize("after", [1, 2])
    @pytest.mark.parametrize("by", ["taker", "holder", "remover", "withdrawer"])
    def test_a_half_done_removal_is_completed_by_the_next_client(
        self, server: BucketServer, store: ServiceStore, other: ServiceStore, after: int, by: str
    ) -> None:
        mine = holder(backtrace="  File x", reason="why")
        uuid, token = take(store, mine)
        record = removal(mine)
        part = "removed/" if after == 1 else OBJECT
        server.fault("POST", DROP, part=part, times=1000)
        with pytest.raises(StoreUnavailable):
            ask(other, Remove(record, (token, token)), 0.5)
        server.heal()
        assert has(store) is None
        if by == "taker":
            take(store)
        elif by == "holder":
            lost = ask(store, Push(NAME, uuid, Stamps(2.0, 3.0), token))
            assert isinstance(lost, NotHolder)
            assert lost.removal is not None
            assert lost.removal.removed_by == "unlocker-1"
        elif by == "remover":
            second = ask(store, Remove(replace(record, removed_by="unlocker-2"), None))
            assert isinstance(second, NotHolder)
        else:
            ask(store, Withdraw(NAME, uuid))
        kept = removal_of(store, mine)
        assert (kept.removed_by, kept.why) == ("unlocker-1", "No heartbeat.")
        assert kept.holder.backtrace == "  File x"
        assert isinstance(ask(store, Unlock(NAME, uuid)), NotHolder)


class TestContention:
    def test_a_release_just_after_a_refusal_is_noticed_at_once(
        self, server: BucketServer, store: ServiceStore, other: ServiceStore
    ) -> None:
        theirs, _ = take(other)
        server.fault("GET", "slow", part=OBJECT, seconds=0.5)
        outcomes: list[object] = []
        thread = threading.Thread(target=lambda: outcomes.append(ask(store, Take(holder()))))
        thread.start()
        wait_until(lambda: server.counted("GET"), what="the look")
        ask(other, Unlock(NAME, theirs))
        thread.join(PATIENCE)
        assert isinstance(outcomes[0], Taken)

    def test_a_hot_loop_keeps_its_pace(self) -> None:
        """`alive()` never meets that limit, however often it is called: from the take on."""
        with BucketServer(rate_limited=True) as server, pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", server.url)
            # Else a try that is late is repeated.
            patch.setattr("lockclient.stores.gcs.wire.http_client.FIRST_TRY_TIMEOUT_S", PATIENCE)
            patch.setattr("lockclient.acquisition.heartbeat_and_loss.PUSH_TRY_S", PATIENCE)
            store = open_store(settings_of(server, ""))
            held = ClusterMutex("x", store=store, keepalive=True)
            held.acquire()
            while server.counted("PATCH") < 2:
                held.alive()
            assert not server.bucket.refused
            held.release()
            store.close()


def test_a_read_of_a_lock_that_changes_hands_shows_a_holder(
    server: BucketServer, store: ServiceStore
) -> None:
    """The holder of its first request, though the second one finds that generation replaced."""
    mine, _ = take(store)
    gone = Answer(404, b"{}", {"Content-Type": "application/json"})
    server.instead = lambda asked: gone if asked.query.get("alt") == "media" else None
    assert has(store) == mine
