"""The end of a program and of a store, as docs/programs.md describes it, on each Python there is.

How long it takes in many other states is in test_interpreter_end.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockclient import ClusterMutex, LockNotHeld, Settings, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import etcdctl_of, frozen, served
from tests.support.locks import has, held, remove
from tests.support.processes import Figure, line_from, tell, wait_until
from tests.support.pythons import OWN, Python, equip, python_programs
from tests.support.relay import Relay

PROGRAM = Path(__file__).with_name("ending_program.py")
LONGEST_S = 150.0
"""Seconds after which a program counts as hanging. Only a guard: a busy machine may be slow."""
LIMIT_S = 1.5
"""Seconds that the end of a program waits for its stores, by docs/programs.md."""
NOISE_S = 0.75
HAND_OVER_S = 30.0
"""Seconds for a waiter that is woken, or polls; without either it reads its position every 60 s."""
AT_ONCE_S = 0.5
"""Seconds for a waiter that is woken. One that polls once a second needs more, as the test releases
the lock soon after a poll."""
MOMENTS = ("first-acquisition", "after-import", "import")
"""After which an `atexit` function was registered, in the order of their calls."""


class Program:
    """A run of `ending_program.py`; a context manager that ends it and its children."""

    def __init__(self, python: Python, settings: Settings, scenario: str, *words: object) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python.program, PROGRAM, scenario, settings.url(), *map(str, words)],
            env={**os.environ, **python.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._timer = threading.Timer(LONGEST_S, self._kill)
        self._timer.start()

    def line(self) -> str:
        """Return the next line; without one, fail."""
        line = line_from(self.process)
        assert line, self.errors()
        return line

    def go_on(self) -> None:
        tell(self.process)

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def named(self) -> set[str]:
        """Return the locks that the log names at the end."""
        return set(re.findall(r"The program ends and \D+? '([^']+)'", self.errors()))

    def end(self, status: int = 0) -> str:
        """Wait for the end of the program; return what it said on stderr."""
        assert self.process.wait() == status, self.errors()
        return self.errors()

    def seconds_of_end(self) -> float:
        """Let it go on to its end; return the seconds from its last statement on."""
        self.go_on()
        began = float(self.line())
        self.end()
        return time.monotonic() - began

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._kill()
        with self.process, self._errors:
            pass

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture(params=sorted(python_programs()), scope="module")
def python(request: pytest.FixtureRequest) -> Python:
    return equip(request.param)


@pytest.fixture(scope="module")
def server(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd of this module's own, to freeze and to count its requests."""
    folder = tmp_path_factory.mktemp("etcd")
    with Etcd(etcd_binary, folder / "data", folder / "etcd.log") as running:
        yield running


@pytest.fixture
def settings(server: Etcd, root: str) -> Settings:
    return Settings(endpoints=(server.endpoint,), root=root)


@pytest.fixture
def store(settings: Settings) -> Iterator[ServiceStore]:
    with contextlib.closing(open_store(settings)) as opened:
        yield opened


Hold = Callable[[str], ClusterMutex]


@pytest.fixture
def hold(store: ServiceStore) -> Iterator[Hold]:
    """A function that acquires a lock, which is released after the test."""
    locks: list[ClusterMutex] = []

    def acquire(name: str) -> ClusterMutex:
        locks.append(ClusterMutex(name, store=store))
        locks[-1].acquire()
        return locks[-1]

    yield acquire
    for lock in locks:
        with contextlib.suppress(LockNotHeld):  # the test has released it
            lock.release()


def wait_for_tickets(mutex: ClusterMutex, number: int = 1) -> None:
    wait_until(lambda: len(mutex.waiters()) == number, what="the waiters in the queue")


def below(limit: float, measure: Callable[[], float]) -> float:
    """Measure, and again if it is not below the limit, because noise only adds."""
    took = [measure()]
    while min(took) >= limit and len(took) < 3:
        took.append(measure())
    assert min(took) < limit
    return min(took)


# ------------------------------------------------------------------ 1: what `atexit` waits for


@pytest.mark.parametrize("begun", ["beginning", "waiting"])
@pytest.mark.parametrize("scenario", ["workers", "workers_of_a_child"])
def test_threads_and_executors_get_their_locks(
    scenario: str, begun: str, python: Python, settings: Settings, store: ServiceStore, hold: Hold
) -> None:
    busy = [hold(name) for name in ("thread", "worker")]
    with Program(python, settings, scenario, begun) as program:
        assert program.line() == "ends"
        for mutex in busy:
            wait_for_tickets(mutex)
        time.sleep(0.3)  # an end that does not wait for them has begun by now
        for mutex in busy:
            mutex.release()
        released = time.monotonic()
        assert {program.line(), program.line()} == {"thread", "worker"}
        assert time.monotonic() - released < HAND_OVER_S
        assert program.end() == ""
    assert not any(has(store, name) for name in ("thread", "worker"))


# ------------------------------------------------------------------ 2, 3: `atexit` functions


def seconds_to_hand_over(mutex: ClusterMutex, program: Program) -> float:
    """Release a lock soon after the program has queued; return when it had the lock."""
    wait_for_tickets(mutex)
    time.sleep(0.1)
    released = time.monotonic()
    mutex.release()
    return float(program.line().removeprefix("acquired ")) - released


@pytest.mark.parametrize("idle_s", [0, 6], ids=["at once", "after six idle seconds"])
def test_atexit_functions_use_locks(
    idle_s: float,
    python: Python,
    server: Etcd,
    settings: Settings,
    store: ServiceStore,
    hold: Hold,
    figure: Figure,
) -> None:
    """Other threads do not: what they begin then does not return. After the end no watch opens."""
    kinds = ("thread", "task")
    busy = {(kind, moment): hold(f"{kind}-{moment}") for moment in MOMENTS for kind in kinds}
    seconds: dict[tuple[str, str], float] = {}
    with Program(python, settings, "atexit_functions", idle_s) as program:
        for moment in MOMENTS:
            assert program.line() == f"begins {moment}"
            watches = served(server)["Watch"]
            program.go_on()
            for kind in kinds:
                seconds[kind, moment] = seconds_to_hand_over(busy[kind, moment], program)
            assert program.line() == "holds"
            remove(store, held(store, f"lost-{moment}"))
            program.go_on()
            assert program.line() == "lost"
            assert program.line() == "ends []"
        assert served(server)["Watch"] == watches
        assert all("was removed from this holder" in line for line in program.end().splitlines())
    figure(f"handed over after {max(seconds.values()):.2f} s at most")
    assert max(seconds.values()) < HAND_OVER_S
    if python.starts_threads_at_exit:
        watched = [seconds[kind, moment] for kind in kinds for moment in MOMENTS[:2]]
        assert min(watched) < AT_ONCE_S
    other = ClusterMutex("other", store=store)
    assert (other.holder(), other.waiters()) == (None, [])


def test_an_atexit_function_is_the_first_user_of_a_store(
    python: Python, settings: Settings, hold: Hold
) -> None:
    """Where no thread renews the lease of its ticket, it gets a new one itself: it waits longer."""
    busy = hold("busy")
    with Program(python, settings, "first_used_at_exit") as program:
        wait_for_tickets(busy)
        (first,) = busy.waiters()
        until = time.monotonic() + (0 if python.starts_threads_at_exit else 13)
        while time.monotonic() < until:
            time.sleep(0.2)
            assert [waiter.uuid for waiter in busy.waiters()] == [first.uuid]
        assert seconds_to_hand_over(busy, program) < HAND_OVER_S
        assert program.end() == ""


def test_atexit_functions_close_stores(python: Python, settings: Settings, hold: Hold) -> None:
    busy = hold("busy")
    with Program(python, settings, "closed_at_exit") as program:
        program.line()
        wait_for_tickets(busy, 2)
        program.go_on()
        for _ in range(2):
            seconds, outcome = program.line().split()
            assert float(seconds) < 10
            assert outcome == "StoreClosed"
        assert program.end() == ""
    assert busy.waiters() == []


# ------------------------------------------------------------------ 4, 7: what is running


def test_waiters_of_a_program_that_ends_hold_nobody_up(
    python: Python, settings: Settings, hold: Hold
) -> None:
    """Their threads and tasks do not return, and nothing is printed of them."""
    busy = hold("busy")
    with Program(python, settings, "waiting") as program:
        program.line()
        wait_for_tickets(busy, 3)
        program.go_on()
        assert program.end() == ""
    assert busy.waiters() == []


def test_each_lock_that_is_left_is_named(
    python: Python, settings: Settings, store: ServiceStore
) -> None:
    """The program ends while daemon threads and a loop acquire and release."""
    names = ["task", *(f"thread-{number}" for number in range(3))]
    for _ in range(3):
        with Program(python, settings, "cycling") as program:
            program.end()
            time.sleep(0.2)  # for requests that etcd has yet to read
            left = {name for name in names if has(store, name)}
            assert left <= program.named(), program.errors()
        for name in left:
            remove(store, held(store, name))


def test_a_take_that_may_still_arrive_is_named(
    python: Python, server: Etcd, settings: Settings, store: ServiceStore
) -> None:
    """etcd is frozen: the takes stand in its connections."""
    sent = bytearray()

    def note(data: bytes) -> bytes:
        sent.extend(data)
        return data

    with Relay(server.endpoint) as relay:
        relay.change = note
        through = Settings(endpoints=(relay.endpoint,), root=settings.root)
        with Program(python, through, "taking", "thread", "task") as program:
            assert program.line() == "connected"
            with frozen(server):
                program.go_on()
                assert program.line() == "taking"
                for key in (b"locks/thread/", b"locks/task/"):
                    wait_until(lambda key=key: key in sent, what="the take")  # type: ignore[misc]
                program.go_on()
                assert program.line() == "ends"
                program.go_on()
                errors = program.end()
            assert program.named() == {"thread", "task"}
            assert errors.count("the lock may still be granted when the store answers") == 2
            assert errors.count("The program ends") == 2


def test_a_lease_that_is_granted_late_is_revoked(
    python: Python, server: Etcd, settings: Settings, hold: Hold
) -> None:
    hold("thread")
    with Relay(server.endpoint) as relay:

        def hold_answers(data: bytes) -> bytes:
            if b"Lease/LeaseGrant" in data:
                relay.hold(requests=False)
            return data

        relay.change = hold_answers
        through = Settings(endpoints=(relay.endpoint,), root=settings.root)
        with Program(python, through, "taking", "thread") as program:
            assert program.line() == "connected"
            before = ticket_leases(server)
            program.go_on()
            assert program.line() == "taking"
            wait_until(lambda: ticket_leases(server) - before, what="the lease")
            program.go_on()
            time.sleep(0.3)  # the end has begun
            relay.change = bytes
            relay.mend()
            assert program.line() == "ends"
            wait_until(lambda: ticket_leases(server) <= before, 5, "the end of the lease")
            program.go_on()
            program.end()


def ticket_leases(server: Etcd) -> set[str]:
    """Return the leases that tickets can be bound to, by their time to live."""
    etcdctl = etcdctl_of(server)
    leases = etcdctl("lease", "list").split()[3:]
    return {lease for lease in leases if "with TTL(10s)" in etcdctl("lease", "timetolive", lease)}


# ------------------------------------------------------------------ 5, 6: the deadline, the log


def seconds_of_bare(python: Python, settings: Settings) -> float:
    with Program(python, settings, "bare") as program:
        program.line()
        return program.seconds_of_end()


def test_nothing_is_sent_for_nothing(
    python: Python,
    server: Etcd,
    settings: Settings,
    store: ServiceStore,
    hold: Hold,
    figure: Figure,
) -> None:
    """A program that has released its locks and left the queue ends as if it had had none."""
    hold("busy")
    wait_until(store.connected, what="the watch of the test's own lock")
    with Program(python, settings, "nothing_open") as program:
        program.line()
        before = served(server)
        program.seconds_of_end()
        assert served(server) == before

    def measure() -> float:
        with Program(python, settings, "nothing_open") as program:
            program.line()
            with frozen(server):
                return program.seconds_of_end()

    bare = seconds_of_bare(python, settings)
    took = below(bare + AT_ONCE_S, measure)
    figure(f"ends in {took:.2f} s, a bare program in {bare:.2f} s")


@pytest.mark.parametrize("fate", ["frozen", "gone"])
def test_forty_stores_have_one_deadline(
    fate: str,
    python: Python,
    server: Etcd,
    settings: Settings,
    hold: Hold,
    figure: Figure,
) -> None:
    """The log names twenty locks, and how many more there are."""
    busy = hold("busy")

    def measure() -> float:
        with Program(python, settings, "stores", 40) as program, contextlib.ExitStack() as stack:
            program.line()
            wait_for_tickets(busy, 40)
            if fate == "frozen":
                stack.enter_context(frozen(server))
            else:
                server.stop()
                stack.callback(server.start)
            took = program.seconds_of_end()
            lines = program.errors().splitlines()
            ends = [line for line in lines if "The program ends" in line]
            assert sum("could not release 'lock-" in line for line in ends) == 20
            assert "The program ends, and 20 more locks may be left." in ends[-1]
            assert "Traceback" not in program.errors()
        return took

    bare = seconds_of_bare(python, settings)
    took = below(LIMIT_S + bare + NOISE_S, measure)
    figure(f"ends in {took:.2f} s, a bare program in {bare:.2f} s")


def test_a_second_ctrl_c_ends_the_waiting(
    python: Python, server: Etcd, settings: Settings, store: ServiceStore, hold: Hold
) -> None:
    busy = hold("busy")

    def measure() -> float:
        with Program(python, settings, "stores", 1) as program:
            program.line()
            wait_for_tickets(busy)
            with frozen(server):
                program.process.send_signal(signal.SIGINT)
                wait_until(lambda: program.errors().endswith("KeyboardInterrupt\n"))
                time.sleep(0.2)
                program.process.send_signal(signal.SIGINT)
                began = time.monotonic()
                errors = program.end(-signal.SIGINT)
                took = time.monotonic() - began
        assert "The program ends and could not release 'lock-" in errors
        assert errors.count("Traceback") == 1
        return took

    below(0.6, measure)


def test_the_log_names_twenty_held_locks(python: Python, settings: Settings) -> None:
    with Program(python, settings, "holding", 25) as program:
        program.line()
        program.go_on()
        errors = program.end()
    *lines, last = errors.splitlines()
    assert len(lines) == 20
    for number, line in enumerate(lines):
        assert re.fullmatch(
            rf"The program ends and still holds 'lock-{number}', taken at .*ending_program.py:\d+; "
            r"unless its owner still releases it, it stays locked until .* UTC\.",
            line,
        )
    assert last == "The program ends, and 5 more locks may be left."


# ------------------------------------------------------------------ 8: close()


def test_close_ends_waiters_and_leaves_held_locks(
    python: Python, settings: Settings, store: ServiceStore, hold: Hold
) -> None:
    busy = hold("busy")
    with Program(python, settings, "closing") as program:
        program.line()
        wait_for_tickets(busy, 2)
        program.go_on()
        lines = [program.line() for _ in range(3)]
        assert sorted(lines) == ["StoreClosed", "StoreClosed", "closed"]
        assert busy.waiters() == []
        assert has(store, "held")
        program.go_on()
        program.end()


def test_close_withdraws_what_is_being_taken(
    python: Python, server: Etcd, settings: Settings, store: ServiceStore
) -> None:
    """The answer comes while the store closes, which waits for 0.4 s at most."""
    with Relay(server.endpoint) as relay:
        through = Settings(endpoints=(relay.endpoint,), root=settings.root)
        for _ in range(3):
            with Program(python, through, "closing_while_taking") as program:
                program.line()
                relay.hold(requests=False)
                program.go_on()
                program.line()
                wait_until(lambda: has(store, "free"), what="the take")
                program.go_on()
                assert program.line() == "closes"
                relay.mend()
                assert program.line() == "StoreClosed"
                program.go_on()
                program.end()
            if has(store, "free") is None:
                return
            remove(store, held(store, "free"))
    pytest.fail("the lock is left")


def test_closed_stores_leave_no_thread(python: Python, settings: Settings, hold: Hold) -> None:
    busy = hold("busy")
    with Program(python, settings, "many_closed", 40) as program:
        for number in range(40):
            assert program.line() == f"waits {number}"
            wait_for_tickets(busy)
            program.go_on()
        assert program.line() == "left"
        assert program.end() == ""


# ------------------------------------------------------------------ more


@pytest.mark.parametrize("call", ["acquire", "alive", "release"])
def test_a_fork_in_a_handler_ends_the_childs_wait(
    call: str, python: Python, server: Etcd, settings: Settings, hold: Hold
) -> None:
    busy = hold("busy")
    with Program(python, settings, "fork_in_handler", call) as program:
        program.line()
        with contextlib.ExitStack() as stack:
            if call != "acquire":
                stack.enter_context(frozen(server))
            program.go_on()
            program.line()
            if call == "acquire":
                wait_for_tickets(busy)
            time.sleep(0.3)  # until the main thread waits
            program.process.send_signal(signal.SIGUSR1)
            assert program.line() == "child LockNotHeld"
        busy.release()
        assert program.line().startswith("parent ")
        program.end()


@pytest.mark.parametrize(
    ("python", "part", "limit"),
    [*((version, "/grpc/", 6) for version in python_programs()), (OWN, "/state_machine", 13)],
    indirect=["python"],
)
def test_a_finalizer_that_waits_for_the_main_thread_is_named(
    part: str, limit: float, python: Python, settings: Settings, store: ServiceStore
) -> None:
    """In the middle of a request, and before the first one."""
    with Program(python, settings, "stuck_finalizer", part) as program:
        seconds, outcome = program.line().split()
        assert outcome == "StoreUnavailable"
        assert float(seconds) < limit
        wait_until(lambda: not has(store, "free"), what="the withdrawal")
        program.go_on()
        assert "in __del__" in program.end()
    assert not has(store, "free")


@pytest.mark.parametrize("python", [OWN], indirect=True)
def test_a_stop_of_the_process_ends_no_wait(python: Python, settings: Settings, hold: Hold) -> None:
    """After it the main thread may run before the thread that waits for it."""
    busy = hold("busy")
    with Program(python, settings, "slow_to_wake") as program:
        wait_for_tickets(busy)
        time.sleep(0.3)
        program.process.send_signal(signal.SIGSTOP)
        time.sleep(4)  # two more than until it logs the holder
        program.process.send_signal(signal.SIGCONT)
        time.sleep(1)
        busy.release()
        assert "HeldLock" in program.line()
        program.end()


def test_a_short_timeout_is_kept_in_a_queue_that_freezes(
    python: Python, server: Etcd, settings: Settings, hold: Hold, figure: Figure
) -> None:
    """The ticket is withdrawn in the background."""

    def measure() -> float:
        busy = hold("busy")
        with Program(python, settings, "short_timeout") as program:
            wait_for_tickets(busy)
            with frozen(server):
                seconds, outcome = program.line().split()
            assert outcome in ("None", "False")
            wait_until(lambda: not busy.waiters(), what="the withdrawal")
            program.go_on()
            program.end()
        busy.release()
        return float(seconds)

    figure(f"returned after {below(2.6, measure):.2f} s")
