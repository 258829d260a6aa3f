"""Locks in a bucket whose answers are lost, late or said twice: no two holders, no lock that nobody
knows of, and no failure that is none."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest

from lockclient import AsyncClusterMutex, StoreUnavailable
from lockclient.model.clocks import Deadline, Stamps
from lockclient.stores.gcs.keys import LATE_REQUEST_S
from lockclient.stores.outcomes import Conflict, Done, Taken
from lockclient.stores.request_types import (
    Delivery,
    Push,
    Reclaim,
    Remove,
    Take,
    Unlock,
    Withdraw,
)
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, holder, removal
from tests.support.bucket.server import (
    DROP,
    HANG,
    LOSE,
    REPEAT,
    Answer,
    Asked,
    BucketServer,
    Fault,
)
from tests.support.bucket.server import LATE as COMES_LATE
from tests.support.bucket_store import OBJECT
from tests.support.locks import PATIENCE, ask, has, held, left_nothing, take, unlock
from tests.support.processes import run_to_end, wait_until
from tests.support.terminal import COMMAND


class TestLateCreates:
    """A create that arrives when nobody expects it any more takes nothing."""

    def given_up(self, server: BucketServer, store: ServiceStore) -> str:
        """Send a take that nobody answers and that is on its way; return its uuid."""
        server.fault("POST", COMES_LATE)
        mine = holder()
        delivery = Delivery()
        server.fault("POST", DROP, times=100)
        with pytest.raises(StoreUnavailable) as caught:
            store.send(Take(mine, delivery=delivery), Deadline.after(0.5))
        server.heal()
        assert caught.value.unknown
        assert delivery.is_unknown
        return mine.uuid or ""

    def test_a_late_create_after_other_holders(
        self, server: BucketServer, store: ServiceStore, other: ServiceStore
    ) -> None:
        uuid = self.given_up(server, store)
        ask(store, Withdraw(NAME, uuid, tombstone=True))
        # The last is released by a client that has not taken it, and has to read it first.
        for taker, releaser in ((other, other), (store, store), (other, store)):
            theirs, _ = take(taker)
            unlock(releaser, theirs)
        assert server.deliver() == [412]
        assert has(store) is None

    @pytest.mark.parametrize("pushes", [0, 1])
    def test_a_late_create_while_another_holder_has_the_lock(
        self, server: BucketServer, store: ServiceStore, other: ServiceStore, pushes: int
    ) -> None:
        uuid = self.given_up(server, store)
        theirs, token = take(other)
        ask(store, Withdraw(NAME, uuid, tombstone=True))
        for _ in range(pushes):
            push = Push(NAME, theirs, Stamps(250.0, 350.0), token)
            moved = ask(other, push)
            assert isinstance(moved, Conflict)
            assert isinstance(ask(other, replace(push, revision=moved.revision)), Done)
        assert has(other) == theirs
        unlock(other, theirs)
        assert server.deliver() == [412]
        assert has(store) is None
        take(other)

    @pytest.mark.parametrize(
        "how",
        ["release", "let go", "removed", "reclaimed", "released elsewhere", "reclaimed elsewhere"],
    )
    def test_release_after_an_unanswered_create(
        self, server: BucketServer, store: ServiceStore, other: ServiceStore, how: str
    ) -> None:
        server.fault("POST", COMES_LATE)
        mine, delivery = holder(identity="me"), Delivery()
        got = ask(store, Take(mine, delivery=delivery))
        assert isinstance(got, Taken)
        assert not got.by_earlier_send
        uuid = mine.uuid or ""
        if how == "release":
            assert isinstance(ask(store, Unlock(NAME, uuid, delivery=delivery)), Done)
        elif how == "let go":
            ask(store, Withdraw(NAME, uuid, tombstone=True))
        elif how == "removed":
            assert isinstance(ask(other, Remove(removal(mine), None)), Done)
        elif how == "released elsewhere":
            unlock(other, uuid)
        elif how == "reclaimed elsewhere":
            heir = holder(identity="me")
            assert isinstance(ask(other, Reclaim(heir, held(other))), Taken)
            unlock(other, heir.uuid or "")
        else:
            heir = holder(identity="me")
            before = replace(mine, fencing_token=got.token)
            assert isinstance(ask(store, Reclaim(heir, before)), Taken)
            unlock(store, heir.uuid or "")
        if how == "reclaimed":  # its first process knew of it, and withdraws
            ask(store, Withdraw(NAME, uuid, tombstone=True))
        assert server.deliver() == [412]
        assert has(store) is None

    def test_a_take_over_a_tombstone(
        self, server: BucketServer, store: ServiceStore, other: ServiceStore
    ) -> None:
        first = self.given_up(server, store)
        ask(store, Withdraw(NAME, first, tombstone=True))
        server.deliver()
        mine = holder()
        asked = server.counted("POST")

        def second_post() -> None:
            wait_until(lambda: server.counted("POST") > asked, what="the create")
            server.fault("POST", COMES_LATE)
            server.fault("POST", DROP, times=100)

        thread = threading.Thread(target=second_post)
        server.fault("GET", HANG, part=OBJECT, seconds=0.5)
        thread.start()
        with pytest.raises(StoreUnavailable):
            store.send(Take(mine), Deadline.after(2.0))
        thread.join(PATIENCE)
        server.heal()
        ask(store, Withdraw(NAME, mine.uuid or "", tombstone=True))
        assert server.deliver() == [412]
        assert has(store) is None

    @pytest.mark.parametrize("over", ["nothing", "a trace", "a dead holder"])
    def test_an_unreadable_refusal_proves_nothing(
        self, server: BucketServer, store: ServiceStore, over: str
    ) -> None:
        if over == "a trace":
            ask(store, Withdraw(NAME, self.given_up(server, store), tombstone=True))
        dead, _ = take(store, holder(identity="me")) if over == "a dead holder" else ("", 0)
        mine, delivery = holder(identity="me"), Delivery()
        take_it = Take(mine, delivery=delivery)
        request = Reclaim(mine, held(store), delivery=delivery) if dead else take_it
        asked = server.counted("POST")

        def trouble(known: Asked) -> Fault | None:
            first = asked + (2 if over == "a trace" else 1)
            if known.method == "POST" and server.counted("POST") == first:
                return Fault("POST", REPEAT)
            return Fault("GET", DROP) if server.counted("POST") >= first else None

        server.trouble = trouble
        with pytest.raises(StoreUnavailable) as caught:
            store.send(request, Deadline.after(1.0))
        server.trouble = lambda _: None
        assert has(store) == mine.uuid
        assert caught.value.unknown
        assert delivery.is_unknown

    def test_the_clock_of_a_proxy_is_ignored(
        self, server: BucketServer, store: ServiceStore
    ) -> None:
        server.fault("POST", COMES_LATE)
        mine, delivery = holder(), Delivery()
        got = ask(store, Take(mine, delivery=delivery))
        assert isinstance(got, Taken)
        uuid = mine.uuid or ""
        server.ahead = 2 * LATE_REQUEST_S
        server.instead = lambda _: Answer(502, b"Bad gateway")
        with pytest.raises(StoreUnavailable):
            ask(store, Push(NAME, uuid, Stamps(2.0, 3.0), got.token, delivery=delivery), 0.5)
        server.ahead, server.instead = 0.0, lambda _: None
        assert isinstance(ask(store, Unlock(NAME, uuid, delivery=delivery)), Done)
        assert server.deliver() == [412]

    def test_a_day_later_nothing_is_left(self, server: BucketServer, store: ServiceStore) -> None:
        """By the bucket's clock: then no token is accepted that was sent with it."""
        uuid = self.given_up(server, store)
        ask(store, Withdraw(NAME, uuid, tombstone=True))
        theirs, _ = take(store)
        server.ahead = LATE_REQUEST_S - 60
        ask(store, Unlock(NAME, theirs))
        assert server.bucket.names() == [OBJECT]
        theirs, _ = take(store)
        server.ahead = LATE_REQUEST_S + 60
        ask(store, Push(NAME, theirs, Stamps(2.0, 3.0), 0))  # any answer tells the time
        unlock(store, theirs)
        assert server.bucket.names() == []

    @pytest.mark.parametrize("seconds", [0.2, 1.0])
    def test_a_cancelled_task_leaves_no_lock(
        self, server: BucketServer, store: ServiceStore, seconds: float
    ) -> None:
        async def main() -> None:
            server.fault("POST", HANG, seconds=seconds)
            task = asyncio.create_task(AsyncClusterMutex(NAME, store=store).acquire())
            while not server.counted("POST"):
                await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(main())
        left_nothing(store)
        assert seconds == 1.0 or (server.bucket.names(), server.counted("DELETE")) == ([], 1)
        take(store)


@pytest.mark.parametrize(
    ("fault", "creates"),
    [*((unanswered, 1) for unanswered in (LOSE, DROP, COMES_LATE, 408, 409, 503)), (429, 2)],
)
def test_only_a_failed_create_is_retried(
    server: BucketServer, store: ServiceStore, fault: str | int, creates: int
) -> None:
    server.fault("POST", fault)
    take(store)
    sent = [asked for asked in server.asked if asked.query.get("ifGenerationMatch") == "0"]
    assert sum(b'"uuid"' in asked.body for asked in sent) == creates


@pytest.mark.parametrize("fates", [*product((None, LOSE, COMES_LATE), repeat=3)])
@pytest.mark.parametrize("arrive", ["while it is held", "after its release"])
def test_lost_and_late_uploads_take_the_lock_once(
    server: BucketServer,
    store: ServiceStore,
    other: ServiceStore,
    fates: tuple[str | None, ...],
    arrive: str,
) -> None:
    left = iter(fates)

    def trouble(asked: Asked) -> Fault | None:
        fate = next(left, None) if asked.method == "POST" else None
        return None if fate is None else Fault("POST", fate)

    server.trouble = trouble
    uuid, _ = take(store)
    if arrive == "while it is held":
        assert set(server.deliver()) <= {412}
    assert has(other) == uuid
    server.trouble = lambda _: None
    unlock(other, uuid)
    assert set(server.deliver()) <= {412}
    assert has(store) is None


@pytest.mark.parametrize(("kind", "sent", "left"), [(COMES_LATE, 4, {OBJECT}), (LOSE, 1, set())])
def test_a_command_that_leaves_a_lock_held_ends(
    server: BucketServer, kind: str, sent: int, left: set[str]
) -> None:
    uploads = 0

    def trouble(asked: Asked) -> Fault | None:
        nonlocal uploads
        uploads += asked.method == "POST"
        return Fault("POST", kind) if asked.method == "POST" and uploads % 2 else None

    server.trouble = trouble
    env = {"CLUSTERMUTEX_URL": f"gs://{server.bucket.name}"}

    uuid = run_to_end(COMMAND, "lock", NAME, "--timeout", "5", env=env).stdout.strip()
    assert uploads == sent
    run_to_end(COMMAND, "unlock", NAME, "--uuid", uuid, env=env)
    assert set(server.deliver()) <= {412}
    assert set(server.bucket.names()) == left
    assert not left or "uuid" not in server.bucket.get(OBJECT)[0]["metadata"]
