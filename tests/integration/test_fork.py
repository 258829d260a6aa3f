"""fork: a child inherits nothing and disturbs nothing. And the end of the interpreter, once each.

What is ended many times over stands in `test_interpreter_end.py`, other ways to make processes in
`test_processes.py`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockclient import Settings
from lockclient.cli.setup.etcd_server import Etcd
from tests.support.processes import Figure, run_to_end

CHILDREN = 24
LONGEST = 10.0
"""Seconds from the end of a child's main module to its own. Two are the aim (see
test_interpreter_end), but a machine may pause, and a child that hangs never ends."""

HEAD = """
import os, sys, threading, time
from lockclient import ClusterMutex, LockNotHeld, Settings, open_store
store = open_store(Settings.load(sys.argv[1]))

def expect(condition, what):
    if not condition:
        print("not so:", what, file=sys.stderr, flush=True)
        os._exit(3)

def expect_not_held(call):
    try:
        call()
    except LockNotHeld as error:
        return expect("of which this one is a fork" in str(error), error)
    expect(False, f"{call} raises LockNotHeld")

def wait_for(child):
    until = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        time.sleep(0.005)
    expect(ended[0] == child, "the child ends")
    expect(os.waitstatus_to_exitcode(ended[1]) == 0, f"the child ends well: {ended[1]}")

"""
FORK = """
mutex = ClusterMutex("x", store=store, expected_runtime=2, auto_unlock_after=60, keepalive=True)
waiter = ClusterMutex("x", store=store)

def ask_on():
    while True:
        mutex.holder()

def be_a_child(works):
    expect(not mutex.locked() and not mutex.healthy, "the child holds nothing")
    for call in (mutex.release, mutex.alive, mutex.check_health, lambda: mutex.fencing_token):
        expect_not_held(call)
    if works:
        with ClusterMutex("y", store=store, timeout=30) as other:
            other.alive(force=True)
            expect(other.holder().pid == os.getpid(), "the child's lock is its own")
        expect(not mutex.acquire(timeout=0.3), "the parent has the lock")

def main():
    mutex.acquire()
    token = mutex.fencing_token
    for work in (waiter.acquire, ask_on):
        threading.Thread(target=work, daemon=True).start()
    while not (mutex.waiters() and store.connected()):
        time.sleep(0.01)
    took = []
    for number in range(int(sys.argv[2])):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            be_a_child(works=number % 2)
            os.write(write_end, str(time.monotonic()).encode())
            if number % 3 == 0:
                os._exit(0)
            if number % 3 == 1:
                sys.exit(0)
            return
        wait_for(child)
        took.append(time.monotonic() - float(os.read(read_end, 99)))
        os.close(read_end), os.close(write_end)
        mutex.check_health()
        mutex.alive(force=True)
        expect(mutex.holder().fencing_token == token, "the lock is the parent's as before")
    expect([waiting.pid for waiting in mutex.waiters()] == [os.getpid()], "its waiter is in line")
    mutex.release()
    until = time.monotonic() + 30
    while not waiter.locked() and time.monotonic() < until:
        time.sleep(0.01)
    waiter.release()
    print(max(took))

main()
"""
HAND_OVER = """
mutex = ClusterMutex("x", store=store, timeout=60)
mutex.acquire()
token = mutex.fencing_token
child = os.fork()
if child == 0:
    with mutex:
        expect(mutex.fencing_token > token, "a later holder has a higher token")
        expect(mutex.holder().pid == os.getpid(), "it is the child's")
    os._exit(0)
while not mutex.waiters():
    time.sleep(0.01)
mutex.release()
wait_for(child)
expect(mutex.holder() is None and not mutex.locked(), "nobody has it in the end")
print("done")
"""
INSIDE = """
with ClusterMutex("x", store=store) as mutex:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    wait_for(child)
    mutex.alive(force=True)
print("done")
"""
CALLS_BEFORE_A_FORK = """
import os
calls = []
def call():
    if calls:
        calls.pop().alive(force=True)
        calls.append("called")
os.register_at_fork(before=call)
"""
HANDLER = """
import lockclient
mutex = ClusterMutex("x", store=store)
calls.append(mutex.acquire())
child = os.fork()
if child == 0:
    fields = lockclient.held_lock_fields()
    os._exit(fields["lock"] is not None)
wait_for(child)
expect(calls == ["called"], f"{calls}")
mutex.release()
print("done")
"""
INTERRUPTED = """
import signal
from lockclient.stores import timeouts
from lockclient.stores.etcd.wire import failover, fork_safety
timeouts.STORE_TIMEOUT_S = failover.FIRST_TRY_S = failover.MAX_TRY_S = 120  # one try all the time
mutex = ClusterMutex("x", store=store)
mutex.acquire()
server, children = int(sys.argv[2]), []

def raise_late(number, frame):
    raise KeyError("the handler's own")

def interrupt(number):
    while not fork_safety._forking:
        time.sleep(0.001)
    signal.pthread_kill(threading.main_thread().ident, number)  # os.kill may reach another one
    # Another thread's fork, meanwhile, is none of its business.
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)

signal.signal(signal.SIGALRM, raise_late)
os.kill(server, signal.SIGSTOP)
try:
    threading.Thread(target=mutex.holder, daemon=True).start()
    for number, kind in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, KeyError)):
        while not fork_safety._inside:
            time.sleep(0.001)
        other = threading.Thread(target=interrupt, args=[number])
        other.start()
        try:
            child = os.fork()
            if child == 0:
                os._exit(0)
            children.append(child)
            os.waitpid(child, 0)
            time.sleep(60)
        except kind:
            other.join()
            continue
        expect(False, f"{kind} arrives")
finally:
    os.kill(server, signal.SIGCONT)
expect(len(children) == 2, "it arrives when the child is known")
expect(signal.getsignal(signal.SIGURG) is signal.SIG_DFL, "all handlers are as they were")
mutex.release()
print("done")
"""

IMPORTING = """
import os, signal, sys, threading
from lockclient import ClusterMutex
os.environ["CLUSTERMUTEX_URL"] = "valkey://127.0.0.1/root"
imports, forks = threading.Event(), threading.Event()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "lockclient.stores.valkey.store":
            imports.set()
            forks.wait()

os.register_at_fork(before=forks.set)  # it runs before the library's own
sys.meta_path.insert(0, Finder())
thread = threading.Thread(target=ClusterMutex, args=["x"])
thread.start()
imports.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends it if it hangs
    ClusterMutex("x")
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def run(
    script: str, settings: Settings, *words: str, status: int = 0, first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; it must end by itself."""
    program = [sys.executable, "-c", first + HEAD + script, settings.url(), *words]
    return run_to_end(*program, status=status)


def test_a_child_holds_nothing_and_disturbs_nothing(settings: Settings, figure: Figure) -> None:
    """However it ends, whether it uses locks of its own or not, whatever threads its parent has."""
    longest = float(run(FORK, settings, str(CHILDREN)).stdout)
    figure(f"{CHILDREN} children forked beside a waiting thread: their end took {longest:.2f} s")
    assert longest < LONGEST


@pytest.mark.parametrize("script", [HAND_OVER, INSIDE], ids=["waits for it", "leaves its block"])
def test_a_child_uses_its_parents_object(script: str, settings: Settings) -> None:
    """In the child it is a mutex like any other: not held, and good for taking the lock."""
    assert run(script, settings).stdout == "done\n"


def test_a_fork_waits_for_the_import_of_a_store() -> None:
    """The child would wait for ever for a module that a thread of its parent's was importing."""
    done = run_to_end(sys.executable, "-c", IMPORTING, timeout=60)
    assert done.stdout == "done\n"


def test_a_signal_handler_may_call_during_a_fork(settings: Settings) -> None:
    """Here a hook of the program's calls in its place, which runs after the library's own.

    And a record that the child logs does not name its parent's lock.
    """
    assert run(HANDLER, settings, first=CALLS_BEFORE_A_FORK).stdout == "done\n"


def test_an_interrupt_arrives_after_the_fork(own_etcd: Etcd) -> None:
    """In the parent, whichever signal's handler raised it while the fork waited for a request."""
    assert own_etcd.process is not None
    settings = Settings(endpoints=(own_etcd.endpoint,))
    done = run(INTERRUPTED, settings, str(own_etcd.process.pid))
    assert done.stdout == "done\n", done.stderr
