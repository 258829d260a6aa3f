"""Reentrancy: a signal handler or a finalizer calls the library on top of any of its lines."""

from __future__ import annotations

import sys

import pytest

from lockclient import Settings
from tests.support.processes import Figure, run_to_end

SCRIPT = """
import asyncio, contextlib, faulthandler, sys, threading, time
from lockclient import AsyncClusterMutex, ClusterMutex, ClusterMutexError, Settings, open_store

LONGEST_S = 20.0
store = open_store(Settings.load(sys.argv[1]))
other = ClusterMutex("other", store=store).acquire()
seen, longest = set(), [0.0]


def called(frame, event, arg):
    return at_line if "lockclient/" in frame.f_code.co_filename else None


def at_line(frame, event, arg):
    # What a handler or a finalizer does there. (Python traces nothing meanwhile in this thread.)
    line = frame.f_code.co_filename, frame.f_lineno
    if event == "line" and line not in seen:
        seen.add(line)
        began = time.monotonic()
        with contextlib.suppress(ClusterMutexError):
            ClusterMutex("other", store=store).acquire(timeout=0.01)
        longest[0] = max(longest[0], time.monotonic() - began)
    return at_line


def in_turn(name):
    for _ in range(3):
        with ClusterMutex(name, store=store) as held:
            held.alive(force=True)


async def in_turn_on_a_loop(name):
    for _ in range(3):
        with contextlib.suppress(ClusterMutexError):  # its requests are late as its loop stands
            async with AsyncClusterMutex(name, store=store) as held:
                await held.alive(force=True)


async def loop():
    sys.settrace(called)  # the main thread's, where handlers run
    await asyncio.gather(*(in_turn_on_a_loop("x") for _ in range(3)))
    sys.settrace(None)


def threads():
    threading.settrace(called)  # also those of the library, and gRPC's
    workers = [threading.Thread(target=in_turn, args=["x"]) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    threading.settrace(None)


faulthandler.dump_traceback_later(240, exit=True)
{"loop": lambda: asyncio.run(loop()), "threads": threads}[sys.argv[2]]()
other.release()
files = {name for name, _ in seen}
for name in ("acquire.py", "store.py", "ticket_leases.py", "watch_stream.py"):
    assert any(file.endswith(name) for file in files), (name, files)
assert longest[0] < LONGEST_S, longest
print(f"{len(seen)} lines; the longest call on top of one took {longest[0]:.2f} s")
"""


@pytest.mark.parametrize("who", ["loop", "threads"])
def test_a_reentrant_call_at_any_line_returns(settings: Settings, who: str, figure: Figure) -> None:
    figure(run_to_end(sys.executable, "-c", SCRIPT, settings.url(), who).stdout.strip())
