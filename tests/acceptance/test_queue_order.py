"""The queue over several processes: the order of the tickets, also when waiters die."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.model.clocks import Deadline
from lockclient.stores.service_store import ServiceStore
from tests.support.locks import has
from tests.support.processes import Figure, tell, wait_until
from tests.support.soak import soaking

WORKER = Path(__file__).with_name("waiting_worker.py")
KILLED, INTERRUPTED, TIMED_OUT = 3, 5, 7
"""By the last digit of a waiter's number: every tenth each."""
NAME = "deploy/prod"


class Workers:
    """The processes of the test, and what they said."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self.all: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start one; its output goes to a file of its own."""
        with (self._folder / str(len(self.all))).open("w") as output:
            worker = subprocess.Popen(
                [sys.executable, str(WORKER), self._settings.url(), NAME, *words],
                stdin=subprocess.PIPE,
                stdout=output,
                text=True,
            )
        self.all.append(worker)
        return worker

    def said(self) -> dict[int, str]:
        """Return what each waiter reported: its fencing token, or why it has none."""
        lines = [line for file in self._folder.iterdir() for line in file.read_text().splitlines()]
        return {int(number): word for number, word in map(str.split, lines)}


@pytest.fixture
def workers(settings: Settings, tmp_path: Path) -> Iterator[Workers]:
    team = Workers(settings, tmp_path)
    yield team
    for worker in team.all:
        worker.kill()
        worker.communicate()


def _in_line(store: ServiceStore) -> list[int]:
    line = store.wait_queue(NAME, 1000, Deadline.after(30))
    return [int(ticket.reason or -1) for ticket in line.first]


@pytest.mark.promise(number=4)
@pytest.mark.promise(number=5)
@pytest.mark.promise(number=6)
@pytest.mark.parametrize(("waiters", "processes"), [(40, 3), *soaking((200, 8))])
def test_waiters_in_several_processes_keep_their_order(
    waiters: int,
    processes: int,
    store: ServiceStore,
    workers: Workers,
    figure: Figure,
) -> None:
    """Every tenth is killed, every tenth times out, every tenth is interrupted while it waits."""
    holder = ClusterMutex(NAME, store=store)
    holder.acquire()
    hosts = [workers.start() for _ in range(processes)]
    killed, interrupted = [], []
    for number in range(waiters):
        if number % 10 == KILLED:
            killed.append(workers.start(str(number)))
        elif number % 10 == INTERRUPTED:
            interrupted.append(workers.start(str(number)))
        else:
            timeout = 5 if number % 10 == TIMED_OUT else 600
            tell(hosts[number % processes], f"{number} {timeout}")
        wait_until(lambda: number in _in_line(store), 60, f"waiter {number} in line")  # noqa: B023
    for worker in interrupted:
        worker.send_signal(signal.SIGINT)
    for worker in killed:
        worker.kill()
    left = [n for n in range(waiters) if n % 10 not in (INTERRUPTED, TIMED_OUT)]
    wait_until(lambda: set(_in_line(store)) <= set(left), what="those who gave up to leave")
    holder.release()
    released = time.monotonic()

    served = [number for number in left if number % 10 != KILLED]
    wait_until(lambda: set(served) <= workers.said().keys(), 120, "all others to be served")
    figure(
        f"{len(served)} of {waiters} waiters served in {time.monotonic() - released:.1f} s, "
        "the wait for the leases of the killed included"
    )
    said = workers.said()
    assert all(said[n] == "timeout" for n in range(waiters) if n % 10 == TIMED_OUT)
    assert all(said[n] == "interrupt" for n in range(waiters) if n % 10 == INTERRUPTED)
    tokens = [int(said[number]) for number in served]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == len(served)
    wait_until(lambda: not (_in_line(store) or has(store, NAME)), 30, "nothing to be left")
