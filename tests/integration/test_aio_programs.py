"""Programs on asyncio: forks, locks that outlive their loop, the end of the interpreter."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time

import pytest

from lockclient import Settings
from lockclient.cli.setup.etcd_server import Etcd
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.processes import Figure

LONGEST = 10.0
"""Seconds for the end of a program: it takes some tenths on an idle machine."""

HEAD = """
import asyncio, logging, os, signal, sys, time
signal.alarm(60)  # one that hangs fails
from lockclient import AsyncClusterMutex, ClusterMutex, Settings, open_store
store = open_store(Settings.load(sys.argv[1]))
mutex = AsyncClusterMutex("x", store=store)

async def cycle(name):
    async with AsyncClusterMutex(name, store=store, timeout=20) as mine:
        await mine.alive(force=True)

# That a machine is slow is not a mistake of ours, though asyncio's debug mode says so.
slow = lambda record: not record.getMessage().startswith("Executing ")
logging.getLogger("asyncio").addFilter(slow)

def say(word):
    print(word, flush=True)

"""
FORK = """
async def work():
    await asyncio.gather(cycle("y"), cycle("y"))

async def main():
    held = await mutex.acquire()
    await work()
    return held

held = asyncio.run(main())
for number in range(6):
    child = os.fork()
    if child == 0:
        assert not mutex.locked()
        with ClusterMutex(f"z{number}", store=store):
            asyncio.run(asyncio.wait_for(work(), 20), debug=True)
        assert not asyncio.run(mutex.acquire(timeout=0.1))
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
asyncio.run(work())
asyncio.run(held.release())
say("fine")
"""
LOOP_GONE = """
mutex = AsyncClusterMutex("x", store=store, expected_runtime=0.5, auto_unlock_after=30,
                          keepalive=True, on_lost=lambda lost: say("told"))
asyncio.run(mutex.acquire(), debug=True)
first = mutex.record.alive_at
until = time.monotonic() + 20
while mutex.record.alive_at < first + 0.1:
    assert time.monotonic() < until
    time.sleep(0.02)
asyncio.run(cycle("y"), debug=True)
say("pushed")
sys.stdin.read()
assert not mutex.healthy
say("fine")
"""
NO_POLLER = """
import threading
start = threading.Thread.start

def refused(self):
    if "poll" in getattr(self._target, "__qualname__", ""):
        raise RuntimeError("can't start new thread")
    start(self)

threading.Thread.start = refused
asyncio.run(cycle("y"))
threading.Thread.start = start
asyncio.run(cycle("y"))
say("fine")
"""
PENDING = """
held = []
async def main():
    if sys.argv[2] != "free":
        held.append(await AsyncClusterMutex("x", store=store).acquire())
    for _ in range(3):
        asyncio.create_task(mutex.acquire())
    await asyncio.sleep(0.5)
    say("waiting")
    if sys.argv[2] in ("interrupt", "frozen"):
        await asyncio.sleep(60)

if sys.argv[2] == "left":  # no clean end: its tasks are still there when the interpreter ends
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
else:
    try:
        asyncio.run(main(), debug=True)
    except KeyboardInterrupt:
        say("interrupted")
say(f"end {time.monotonic()}")
"""


FORK_BESIDE_A_WAITER = """
async def main():
    held = await mutex.acquire()
    waiter = asyncio.create_task(AsyncClusterMutex("x", store=store).acquire())
    while not await held.waiters():
        await asyncio.sleep(0.01)
    for _ in range(20):  # meanwhile the waiter gets its answer, and watches
        await held.waiters()
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ends, 1)
        waiter.cancel()
        while not waiter.done():
            await asyncio.sleep(0)  # without a wait: parent and child share the loop's epoll
        time.sleep(1.5)  # in which the background would withdraw
        os._exit(7)
    if sys.argv[2] == "acquires":
        await held.release()
        await waiter
    os.close(end)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    if sys.argv[2] == "waits":
        (ticket,) = await held.waiters()
        await held.release()
    mine = await waiter
    await mine.alive(force=True)
    await mine.release()
    say("fine")

asyncio.run(main())
"""


def program(text: str, settings: Settings, *words: str) -> subprocess.Popen[str]:
    """Start a program that turns warnings into errors; what it says and complains is one text."""
    url = f"etcd://{settings.endpoints[0]}{settings.root}"
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", HEAD + text, url, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_children_of_a_fork(settings: Settings) -> None:
    """A loop was used before: the child's loop works all the same, and the parent's goes on."""
    with program(FORK, settings) as running:
        said, _ = running.communicate(timeout=90)
    assert (running.returncode, said) == (0, "fine\n"), "no line of gRPC's either"


@pytest.mark.parametrize("parent", ["waits", "acquires"])
def test_a_forked_child_withdraws_nothing_of_its_parent(settings: Settings, parent: str) -> None:
    with program(FORK_BESIDE_A_WAITER, settings, parent) as running:
        said, _ = running.communicate(timeout=90)
    assert (running.returncode, said) == (0, "fine\n")


def test_a_refused_grpc_thread_does_not_end_the_process(settings: Settings) -> None:
    with program(NO_POLLER, settings) as running:
        said, _ = running.communicate(timeout=90)
    assert (running.returncode, said) == (0, "fine\n")


def test_a_lock_outlives_its_event_loop(settings: Settings, etcdctl: Etcdctl) -> None:
    with program(LOOP_GONE, settings) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "pushed\n"
        etcdctl("del", "--prefix", f"{settings.root}/locks/x/")
        assert running.stdout.readline().startswith("The lock 'x' was removed")
        assert running.stdout.readline() == "told\n"
        assert running.stdin is not None
        running.stdin.close()
        assert running.stdout.read() == "fine\n"
    assert running.returncode == 0


@pytest.mark.parametrize("how", ["free", "held", "left", "interrupt", "frozen"])
def test_the_program_ends_with_waiting_tasks(
    how: str, own_etcd: Etcd, own_etcdctl: Etcdctl, figure: Figure
) -> None:
    settings = Settings((own_etcd.endpoint,))
    with program(PENDING, settings, how) as running, contextlib.ExitStack() as stack:
        assert running.stdout is not None
        assert running.stdout.readline() == "waiting\n"
        if how == "frozen":
            stack.enter_context(frozen(own_etcd))
        if how in ("interrupt", "frozen"):
            running.send_signal(signal.SIGINT)
        said = running.stdout.read()
        running.wait(60)
        ended = time.monotonic()
    assert running.returncode == 0
    found = re.fullmatch(
        r"(interrupted\n)?end (\S+)\n"
        r"(.* still holds 'x', .*\n|etcd at .* does not answer .*\n|The watch on etcd broke .*\n)+",
        said,
    )
    assert found, said
    interrupted, end, *_ = found.groups()
    assert bool(interrupted) == (how in ("interrupt", "frozen"))
    if how not in ("left", "frozen"):  # those go with the lease
        assert own_etcdctl("get", "--prefix", f"{settings.root}/queue/") == ""
    took = ended - float(end)
    figure(f"{how}: {took:.2f} s from the end of the loop to that of the interpreter")
    assert took < LONGEST
