"""The race on a bucket: credentials of a metadata server that fails, conflicts, lost and late
requests, holders that die, and takers that remove them (`expire=1`). Never two holders at once.

A holder that dies here stops to push, and has the lock by its own clock until its last push, as it
sent it, and its `auto_unlock_after`: whoever has it sooner has it too early.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from lockclient import ClusterMutex, HeldLock, LockLost, LockNotHeld, StoreUnavailable
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from tests.support.bucket.metadata_server import MetadataServer, google_bucket, metadata_server
from tests.support.bucket.server import DROP, LATE, LOSE, REPEAT, TWICE, Asked, BucketServer, Fault
from tests.support.processes import Figure
from tests.support.soak import soaking

CLIENTS = 5
PATIENCE_S = 300.0
DIES_AFTER_S = 2.0
"""Seconds that a holder may be silent."""
TOKEN_S = 229
"""Seconds of a token's life: the client wants a new one when 225 are left."""


class Storm:
    """Breaks every fifth request or so, and the metadata server each few seconds."""

    def __init__(self, server: BucketServer, metadata: MetadataServer, seed: int) -> None:
        self._server = server
        self._metadata = metadata
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.faults: Counter[str] = Counter()
        self.late = 0

    def _break(self, asked: Asked) -> Fault | None:
        if self._random.random() > 0.2:
            return None
        kind = self._random.choice((LOSE, DROP, LATE, LATE, TWICE, REPEAT, 409, 409, 503, 429))
        if asked.method == "GET" and kind in (LATE, TWICE, REPEAT, 409):
            return None
        self.faults[str(kind)] += 1
        return Fault(asked.method, kind)

    def _run(self) -> None:
        while not self._over.wait(self._random.uniform(0.2, 2.0)):
            self.late += len(self._server.deliver())
            # Well, or ill.
            self._metadata.status = self._random.choice((200, 200, 200, 500, 503))

    @contextmanager
    def raging(self) -> Iterator[None]:
        """Break things, and heal all in the end."""
        self._server.trouble = self._break
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(PATIENCE_S)
            self._server.trouble = lambda _: None
            self._metadata.status = 200


class Racer:
    """Takes the lock again and again, and sometimes dies with it."""

    def __init__(self, server: BucketServer, seed: int) -> None:
        self.store = GcsStore(GcsLocation(server.bucket.name, expire=True))
        self._random = random.Random(seed)
        self.held: list[tuple[float, float]] = []
        self.ends: Counter[str] = Counter()
        self._dead: list[HeldLock] = []

    def race(self, until: float) -> None:
        """Do so until then."""
        while time.monotonic() < until:
            self.ends[self._one()] += 1

    def _one(self) -> str:
        mutex = ClusterMutex(
            "x",
            store=self.store,
            expected_runtime=DIES_AFTER_S / 2,
            auto_unlock_after=DIES_AFTER_S,
            capture_backtrace=False,
        )
        try:
            if not (lock := mutex.acquire(timeout=self._random.choice((0.5, 10.0, 30.0)))):
                return "not had"
        except StoreUnavailable:
            return "unavailable"
        began = time.time()
        dies = self._random.random() < 0.2
        time.sleep(0.0 if dies else self._random.uniform(0.0, 0.3))
        try:
            if not dies and self._random.random() < 0.5:
                lock.alive(force=True)
            record = lock.record
            if dies and record is not None and record.alive_at is not None:
                self.held.append((began, record.alive_at + DIES_AFTER_S))
                self._dead.append(lock)  # which nobody pushes or releases any more
                return "died"
            lock.check_health()
            self.held.append((began, time.time()))
            mutex.release()
        except (LockLost, LockNotHeld):
            return "lost"
        except StoreUnavailable:
            return "unavailable"
        return "released"


@pytest.mark.parametrize("seconds", [15.0, *soaking(600.0)])
def test_there_are_never_two_holders(
    seconds: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, figure: Figure
) -> None:
    with metadata_server(monkeypatch) as metadata, google_bucket(monkeypatch, tmp_path) as server:
        metadata.expires_in = TOKEN_S
        storm, racers = Storm(server, metadata, 1), [Racer(server, n) for n in range(CLIENTS)]
        with storm.raging():
            until = time.monotonic() + seconds
            threads = [threading.Thread(target=racer.race, args=(until,)) for racer in racers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(seconds + PATIENCE_S)
                assert not thread.is_alive()
        records = sum(name.startswith("removed/") for name in server.bucket.names())
        ends = sum((racer.ends for racer in racers), Counter[str]())
        figure(
            f"{seconds:g} s: had {sum(len(racer.held) for racer in racers)} times, {dict(ends)}; "
            f"{records} expired on record; {metadata.tokens} tokens; {storm.late} late; "
            f"{len(server.asked)} requests, faults {dict(storm.faults)}"
        )
        for racer in racers:
            racer.store.close()
        held = sorted(interval for racer in racers for interval in racer.held)
        overlaps = [(one, two) for one, two in pairwise(held) if one[1] > two[0]]
        assert not overlaps
        assert len(held) > CLIENTS
