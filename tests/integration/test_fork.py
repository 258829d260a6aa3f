"""fork, and the end of the interpreter: nothing is inherited, nothing keeps a process alive."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.local import Etcd, free_port
from lockclient.etcd.store import EtcdStore
from tests.etcds import frozen

HEAD = """
import os, sys, threading, time
from lockclient import ClusterMutex, LockNotHeld, Settings, open_store
store = open_store(Settings.load(sys.argv[1]))

"""
FORK = """
mutex = ClusterMutex("x", store=store, expected_runtime=2, auto_unlock_after=60, keepalive=True)
mutex.acquire()
time.sleep(1.5)  # the watch for its loss stands, and pushes fly
for end in ("_exit", "exit", "work"):
    child = os.fork()
    if child == 0:
        assert not mutex.locked() and not mutex.healthy
        try:
            mutex.release()
        except LockNotHeld:
            pass
        else:
            os._exit(3)
        if end == "work":
            with ClusterMutex("y", store=store, timeout=30) as other:
                other.alive(force=True)
            assert not mutex.acquire(timeout=1)
        if end == "_exit":
            os._exit(0)
        sys.exit(0)
    until = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        time.sleep(0.05)
    assert ended[0] == child, f"the child hangs: {end}"
    assert os.waitstatus_to_exitcode(ended[1]) == 0, (end, ended[1])
    mutex.check_health()
    mutex.alive(force=True)
mutex.release()
print("done")
"""
ENDS = {
    "holding": """
mutex = ClusterMutex("x", store=store)
mutex.acquire()
time.sleep(1.2)
""",
    "holding, kept alive": """
mutex = ClusterMutex("x", store=store, keepalive=True, expected_runtime=1)
mutex.acquire()
time.sleep(1.2)
""",
    "waiting in a daemon thread": """
ClusterMutex("x", store=store).acquire()
waiter = ClusterMutex("x", store=store)
threading.Thread(target=waiter.acquire, daemon=True).start()
while not waiter.waiters():
    time.sleep(0.01)
""",
    "after an exception in the block": """
with ClusterMutex("x", store=store):
    sys.exit(0)
""",
    "after a timeout": """
ClusterMutex("x", store=store).acquire()
assert not ClusterMutex("x", store=store).acquire(timeout=0.3)
""",
    "never used": """
ClusterMutex("x", store=store)
""",
}


def run(script: str, settings: Settings) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; it must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", HEAD + script, settings.url()],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_child_holds_nothing_and_disturbs_nothing(settings: Settings) -> None:
    """However it ends, and whether it uses locks of its own or not."""
    done = run(FORK, settings)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("script", ENDS.values(), ids=ENDS)
def test_the_interpreter_ends(script: str, settings: Settings) -> None:
    """Within seconds, with status 0, and without a word."""
    began = time.monotonic()
    done = run(script, settings)
    assert time.monotonic() - began < 30
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_interpreter_ends_with_nobody_to_talk_to() -> None:
    """etcd was never there; what failed is being cleaned up in vain."""
    nowhere = Settings(endpoints=(f"127.0.0.1:{free_port()}",))
    script = """
try:
    ClusterMutex("x", store=store).acquire(timeout=0.5)
except ConnectionError as error:
    print("away")
"""
    began = time.monotonic()
    done = run(script, nowhere)
    assert time.monotonic() - began < 30
    assert (done.returncode, done.stdout) == (0, "away\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_the_interpreter_ends_while_etcd_hangs(own_etcd: Etcd, own_store: EtcdStore) -> None:
    """It holds a lock, pushes, watches and waits; the server answers nothing of it any more."""
    script = """
mutex = ClusterMutex("x", store=store, keepalive=True, expected_runtime=1)
mutex.acquire()
threading.Thread(target=ClusterMutex("x", store=store).acquire, daemon=True).start()
while not mutex.waiters():
    time.sleep(0.01)
time.sleep(1.2)
print("frozen?", flush=True)
sys.stdin.readline()
try:
    mutex.alive(force=True)
except ConnectionError:
    print("away", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + script, own_store.settings.url()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "frozen?\n"
            with frozen(own_etcd):
                out, _ = program.communicate("\n", timeout=60)
        finally:
            program.kill()
        assert (program.returncode, out) == (0, "away\n")


def test_what_is_pending_gets_a_moment_at_the_end(settings: Settings, store: EtcdStore) -> None:
    """Ctrl-C in the middle of a wait, and the program ends: its ticket is gone with it."""
    script = """
import signal
held = ClusterMutex("x", store=store)
held.acquire()
waiter = ClusterMutex("x", store=store)
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    waiter.acquire()
finally:
    held.release()
"""
    done = run(script, settings)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt"), done.stderr
    after = ClusterMutex("x", store=store)
    assert after.waiters() == []
    assert after.holder() is None
