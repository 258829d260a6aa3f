"""What locks are for, seen from outside: processes that share one, and one that dies with it."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.cli.setup.store_server import fetch
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.requests import Read
from tests.support.processes import Figure, start_service, wait_until
from tests.support.soak import soaking

HERE = Path(__file__).parent


@pytest.mark.promise(number=1)
@pytest.mark.promise(number=4)
@pytest.mark.parametrize(("processes", "times"), [(4, 60), *soaking((8, 200))])
def test_processes_never_interleave(
    processes: int, times: int, settings: Settings, tmp_path: Path, figure: Figure
) -> None:
    """Each takes the lock again and again: the file is in whole pairs, the tokens only rise."""
    path = tmp_path / "shared"
    began = time.monotonic()
    words = [settings.url(), "append", str(path), str(times)]
    workers = [
        subprocess.Popen([sys.executable, str(HERE / "append_worker.py"), *words])
        for _ in range(processes)
    ]
    try:
        assert [worker.wait(240) for worker in workers] == [0] * processes
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    lines = [line.split() for line in path.read_text().splitlines()]
    assert len(lines) == 2 * processes * times
    begins, ends = lines[::2], lines[1::2]
    assert all(
        begin[:2] == end[:2] and (begin[2], end[2]) == ("begin", "end")
        for begin, end in zip(begins, ends, strict=True)
    )
    tokens = [int(line[0]) for line in begins]
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))
    figure(f"{len(tokens)} holders in {time.monotonic() - began:.1f} s, none interleaved")


def test_a_waiter_wakes_at_once(store: EtcdStore, figure: Figure) -> None:
    """From the call of `release()` to the next holder: by watch, which takes milliseconds."""
    took: list[float] = []
    for _ in range(30):
        holder, waiter = ClusterMutex("wake", store=store), ClusterMutex("wake", store=store)
        holder.acquire()
        had_at: list[float] = []

        def wait(waiter: ClusterMutex = waiter, had_at: list[float] = had_at) -> None:
            waiter.acquire()
            had_at.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(holder.waiters, what="the waiter in line")
        released_at = time.monotonic()
        holder.release()
        thread.join()
        waiter.release()
        took.append((had_at[0] - released_at) * 1000)
    figure(
        f"from release() to the next holder: median {statistics.median(took):.1f} ms, "
        f"longest {max(took):.1f} ms"
    )
    assert statistics.median(took) < 100


DOOMED = """
import sys, time
from lockclient import ClusterMutex, Settings, open_store
store = open_store(Settings.load(sys.argv[1]))
ClusterMutex("doomed", expected_runtime=2, auto_unlock_after=4, store=store).acquire()
print("has it", flush=True)
time.sleep(600)
"""


def test_kill_9_of_a_holder(settings: Settings, store: EtcdStore, figure: Figure) -> None:
    """The alert's metric, then the removal, then the next waiter: each at its time."""
    times: dict[str, float] = {}
    with start_service(
        ["unlocker", "--listen", "127.0.0.1:0", "--url", settings.url()]
    ) as unlocker:
        wait_until(lambda: fetch(unlocker.url, "/readyz")[0] == 200, what="the unlocker")
        doomed = subprocess.Popen(
            [sys.executable, "-c", DOOMED, settings.url()], stdout=subprocess.PIPE
        )

        def seen() -> ReadResult:
            found = store.ask(Read("doomed"), Deadline.after(10))
            assert isinstance(found, ReadResult)
            return found

        # Not before it knows itself: a take that was slow is followed by a push.
        assert doomed.stdout is not None
        with doomed.stdout as told:
            assert told.readline() == b"has it\n"
        holder = seen().holder
        assert holder is not None
        waiter = ClusterMutex("doomed", store=store)

        def wait() -> None:
            waiter.acquire(timeout=120)
            times["next holder"] = time.time()

        thread = threading.Thread(target=wait)
        thread.start()
        doomed.kill()
        doomed.wait()

        metric = b'clustermutex_lock_alert_timestamp_seconds{name="doomed"}'
        wait_until(lambda: metric in fetch(unlocker.url, "/metrics")[1], what="the alert's metric")
        times["alert"] = time.time()
        assert seen().holder == holder, "alerted on, and still held"
        thread.join()
        removal = store.ask(Read("doomed", holder.uuid), Deadline.after(10))
        assert isinstance(removal, ReadResult)
        assert removal.removal is not None
        times["removal"] = removal.removal.removed_at or 0
        waiter.release()
    assert holder.alert_at is not None
    assert holder.auto_unlock_at is not None
    assert holder.alert_at <= times["alert"] < holder.auto_unlock_at
    assert holder.auto_unlock_at <= times["removal"] <= times["next holder"]
    figure(
        f"after kill -9: alert {times['alert'] - holder.alert_at:.2f} s after alert_at, "
        f"removal {times['removal'] - holder.auto_unlock_at:.2f} s after auto_unlock_at, "
        f"next holder {times['next holder'] - times['removal']:.3f} s after that"
    )


def test_a_name_is_what_it_is_everywhere(settings: Settings, store: EtcdStore) -> None:
    """Two names never share a key, whatever they look like; the dashboard shows them so."""
    names = ["a/b", "a%2Fb", "..", "💥 boom", "<b>bold</b>", "a b+c"]
    others = ["a", "b", "a%2fb", "%", ".", "bold"]
    theirs = open_store(settings)
    mutexes = [ClusterMutex(name, store=theirs) for name in names]
    for mutex in (*mutexes, *(ClusterMutex(other, store=store) for other in others)):
        assert mutex.acquire(blocking=False)
    with start_service(["mutexdash", "--listen", "127.0.0.1:0", "--url", settings.url()]) as dash:
        wait_until(lambda: fetch(dash.url, "/readyz")[0] == 200, what="the dashboard")
        for mutex in mutexes:
            assert not ClusterMutex(mutex.name, store=store).acquire(blocking=False)
            assert mutex.healthy
            status, body = fetch(dash.url, f"/api/locks?q={quote(mutex.name, safe='')}")
            assert status == 200
            assert mutex.uuid.encode() in body
