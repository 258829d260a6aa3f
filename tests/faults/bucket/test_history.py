"""Many clients, and a bucket that loses, delays and repeats: never two holders at once."""

from __future__ import annotations

import random
import threading
import time

import pytest

from lockclient import ClusterMutex, StoreUnavailable
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from tests.support.bucket.server import DROP, LATE, LOSE, TWICE, Asked, BucketServer, Fault
from tests.support.locks import has
from tests.support.processes import Figure, wait_until
from tests.support.soak import soaking

CLIENTS = 4
PATIENCE = 240.0


class Trouble:
    """Breaks every fourth request or so, and delivers what is late at moments of its own."""

    def __init__(self, server: BucketServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.delivered = 0

    def _break(self, asked: Asked) -> Fault | None:
        if self._random.random() > 0.25:
            return None
        kinds = (LOSE, DROP, LATE, LATE, TWICE, 503, 429)
        return Fault(asked.method, self._random.choice(kinds))

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self.delivered += len(self._server.deliver())

    def __enter__(self) -> Trouble:
        self._server.trouble = self._break
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        self._server.trouble = lambda _: None


@pytest.mark.parametrize("rounds", [5, *soaking(12)])
@pytest.mark.parametrize("seed", [1, *soaking(2)])
def test_there_are_never_two_holders_and_nothing_is_left(
    seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    with BucketServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        stores = [GcsStore(GcsLocation(server.bucket.name)) for _ in range(CLIENTS)]
        held: list[tuple[float, float]] = []

        def work(store: GcsStore) -> None:
            for _ in range(rounds):
                lock = ClusterMutex("x", store=store, expected_runtime=600)
                try:
                    if not lock.acquire(timeout=5):
                        continue
                except StoreUnavailable:
                    continue
                began = time.monotonic()
                time.sleep(0.01)
                lock.check_health()
                held.append((began, time.monotonic()))
                try:
                    lock.release()
                except StoreUnavailable:
                    continue  # it goes on in the background

        with Trouble(server, seed) as trouble:
            threads = [threading.Thread(target=work, args=(store,)) for store in stores]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
                assert not thread.is_alive()
        for store in stores:
            wait_until(lambda: not store.background.unfinished(), what="the clean-up")  # noqa: B023
        late = server.deliver()
        figure(f"had {len(held)} times; {trouble.delivered + len(late)} requests came late")
        held.sort()
        assert all(held[i][1] <= held[i + 1][0] for i in range(len(held) - 1))
        assert len(held) > CLIENTS
        assert has(stores[0], "x") is None
        for store in stores:
            store.close()
