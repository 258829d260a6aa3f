"""The end of the interpreter: in whatever state a program ends, it ends, within two seconds.

Measured from the end of the main module to the end of the process. What can go wrong here goes
wrong once in many times (a thread of gRPC's that is stopped with a lock in its hand), so each
state is ended several times, and in `make soak` many times over.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.cli.setup.etcd_server import Etcd
from tests.support.etcd_binary import frozen
from tests.support.processes import Figure
from tests.support.soak import soaking

AT_ONCE = 5
SHORTEST = 2.0
"""Seconds that a program may wait at its end, of its own will: the quickest of all shows that, as
noise only adds. How much that is shows one beside them, which has nothing to wait for. The longest
such wait is 1.5 s, for a clean-up that can't be done."""
BARE = "turn()"
LONGEST = 10.0
"""Seconds for each of them: a machine may stand still for a moment, a program that hangs does for
good."""

BEGIN = """
import contextlib, os, sys, threading, time
from lockclient import ClusterMutex, Settings, StoreUnavailable, open_store

store = open_store(Settings.load(sys.argv[1]))
name = f"lock-{os.getpid()}"


def in_line():
    threading.Thread(target=ClusterMutex(name, store=store).acquire, daemon=True).start()
    while not held.waiters():
        time.sleep(0.01)


def turn():
    print("ready", flush=True)
    sys.stdin.readline()

"""
END = """
print(time.monotonic(), flush=True)
"""
HOLDING = """
held = ClusterMutex(name, store=store, keepalive=True, expected_runtime=1, auto_unlock_after=900)
held.acquire()
"""
SUSPENDED = """
def hold():
    with ClusterMutex(name, store=store):
        yield

suspended = hold()
next(suspended)
"""
FINALIZED = """
class Job:
    def __init__(self):
        self.mutex = ClusterMutex(name, store=store)
        self.mutex.acquire()
    def __del__(self, suppress=contextlib.suppress, unavailable=StoreUnavailable):
        with suppress(unavailable):
            self.mutex.release()

job = Job()
"""
WATCHED = """
while not store.connected():
    time.sleep(0.01)
"""

Etcds = Literal["runs", "gone", "frozen"]


@dataclass(frozen=True)
class State:
    """The state as a program ends: its last lines, and what etcd does meanwhile."""

    script: str
    etcd: Etcds = "runs"


STATES = {
    "a generator holds it, etcd frozen": State(f"{SUSPENDED}turn()", "frozen"),
    "a finalizer releases it, etcd frozen": State(f"{FINALIZED}turn()", "frozen"),
    "holding": State(f"{HOLDING}{WATCHED}turn()"),
    "waiting in a daemon thread": State(f"{HOLDING}in_line()\nturn()"),
    "in the middle of requests": State(
        """
def work(number):
    mutex = ClusterMutex(f"{name}-{number % 3}", store=store)
    while True:
        with contextlib.suppress(StoreUnavailable):  # 20 ms can be too short for any answer
            if mutex.acquire(timeout=0.02):
                mutex.release()
turn()
for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
time.sleep(0.1)
"""
    ),
    "etcd away": State(f"{HOLDING}in_line()\n{WATCHED}turn()", "gone"),
    "etcd away, never there": State(
        """
turn()
try:
    ClusterMutex(name, store=store).acquire(timeout=0.5)
except StoreUnavailable:
    pass
""",
        "gone",
    ),
    "etcd frozen": State(f"{HOLDING}in_line()\n{WATCHED}turn()", "frozen"),
    "etcd frozen, in the middle of requests": State(
        f"""{HOLDING}{WATCHED}turn()
for call in (held.holder, lambda: held.alive(force=True), held.release):
    threading.Thread(target=call, daemon=True).start()
threading.excepthook = lambda _: None
time.sleep(0.3)
""",
        "frozen",
    ),
    "in the middle of a clean-up": State(
        f"""{HOLDING}{WATCHED}turn()
try:
    ClusterMutex(f"{{name}}-other", store=store).acquire(timeout=0.5)
except StoreUnavailable:
    pass
""",
        "frozen",
    ),
}


class Program:
    """A program on its way to its end."""

    def __init__(self, state: State, settings: Settings) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + state.script + END, settings.url()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> None:
        """Wait until it is in its state."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "ready\n", self._process.communicate()[1]

    def end(self) -> tuple[float, str]:
        """Let it end; return the seconds that took and what it had to say."""
        out, err = self._process.communicate("\n", timeout=60)
        seconds = time.monotonic() - float(out)
        return seconds, err

    def kill(self) -> None:
        """End it in any case."""
        with self._process:
            self._process.kill()


@contextlib.contextmanager
def becomes(server: Etcd, fate: Etcds) -> Iterator[None]:
    """Let etcd be frozen or gone for the time of the block."""
    if fate == "gone":
        server.stop()
        yield
        server.start()
    elif fate == "frozen":
        with frozen(server):
            yield
    else:
        yield


@pytest.fixture(scope="module")
def server(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd of this module's own, to freeze and stop."""
    folder = tmp_path_factory.mktemp("etcd")
    with Etcd(etcd_binary, folder / "data", folder / "etcd.log") as running:
        yield running


@pytest.mark.parametrize("times", [2, *soaking(40)])
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_program_ends(state: State, times: int, server: Etcd, root: str, figure: Figure) -> None:
    """In time, without an error, and without a traceback of any thread."""
    settings = Settings(endpoints=(server.endpoint,), root=root)
    took: list[float] = []
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        programs = []
        for began in [State(BARE), *([state] * times)]:
            programs.append(Program(began, settings))
            stack.callback(programs[-1].kill)
        for program in programs:
            program.ready()
        with becomes(server, state.etcd):
            for seconds, said in pool.map(Program.end, programs):
                took.append(seconds)
                assert "Traceback" not in said
                assert "Fatal" not in said
    noise, *took = took
    figure(f"the end of {times} programs took {max(took):.2f} s at most")
    assert min(took) < SHORTEST + noise
    assert max(took) < LONGEST


AT_EXIT = "held = ClusterMutex(name, store=store, release_at_exit=True).acquire()\n"
IN_CHILD = """
import multiprocessing

def hold(name):
    global held
    held = ClusterMutex(name, store=store, release_at_exit=True).acquire()

child = multiprocessing.get_context("fork").Process(target=hold, args=(name,))
with ClusterMutex("another", store=store):
    pass
child.start()
child.join()
with ClusterMutex(name, store=store, timeout=0):
    turn()
"""
IN_FORK = """
with ClusterMutex("another", store=store):
    turn()
if os.fork() == 0:
    held = ClusterMutex(name, store=store).acquire()
    sys.exit()
os.wait()
"""
IN_STACK = """
stack = contextlib.ExitStack()
stack.enter_context(ClusterMutex(name, store=store))
turn()
"""
REFUSED = """
import atexit

begin = threading.Event()

def acquire():
    begin.wait()
    ClusterMutex(name, store=store).acquire()

def let_it_begin():
    begin.set()
    while not store.background.acquisitions:
        time.sleep(0.01)

threading.Thread(target=acquire, daemon=True).start()
atexit.register(let_it_begin)
with ClusterMutex("another", store=store):
    pass
turn()
"""
NAMED = (
    r"The program ends and still holds 'NAME', taken at {}:\d+; unless its owner still releases "
    r"it, it stays locked until \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.\n"
)
LAST_WORDS = {
    "a generator holds it": (f"{SUSPENDED}turn()", "runs", NAMED.format(".*"), False),
    "a finalizer releases it too late": (
        *(f"{FINALIZED}turn()", "runs", NAMED.format(".*"), False),
    ),
    "multiprocessing is there": (
        *(f"import multiprocessing.util\n{HOLDING}turn()", "runs", NAMED.format("<string>")),
        False,
    ),
    "released at exit": (f"{AT_EXIT}turn()", "runs", "", True),
    "released at a child's exit": (IN_CHILD, "runs", "", True),
    "a fork's child holds it": (IN_FORK, "runs", NAMED.format(".*"), False),
    "a daemon thread begins an acquisition too late": (REFUSED, "frozen", "", True),
    "an exit stack's line": (IN_STACK, "runs", NAMED.format("<string>"), False),
}
"""What a program does, what becomes of etcd, what the program says, and whether the lock is free.

What is still held is named, once; a finalizer that the end of the interpreter runs leaves it
alone. The child of a fork has inherited what its parent wanted done at the end, and does it once.
"""


@pytest.mark.parametrize("how", LAST_WORDS)
def test_locks_held_at_the_end_are_released_or_named(how: str, server: Etcd, root: str) -> None:
    script, etcd, says, free = LAST_WORDS[how]
    settings = Settings(endpoints=(server.endpoint,), root=root)
    program = Program(State(script), settings)
    with contextlib.closing(open_store(settings)) as store, contextlib.ExitStack() as stack:
        stack.callback(program.kill)
        program.ready()
        name = f"lock-{program.pid}"
        with becomes(server, etcd):  # type: ignore[arg-type]
            _, said = program.end()
        assert re.fullmatch(says.replace("NAME", name), said)
        if etcd == "runs":
            assert (ClusterMutex(name, store=store).holder() is None) == free
