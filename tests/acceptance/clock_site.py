"""An unlocker on its own clock, and whether it kept the times that holders were promised.

Early is before the holder's own deadline: its monotonic clock, read before it sent its last push,
plus its `auto_unlock_after`. Nothing is allowed for there. In time is by the bounds stated on top
of `unlocker/alert_and_removal_times.py`, plus `SLACK` for a machine that is busy with other tests.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Runtime
from lockclient.model.holder import Holder
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Transition
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Done
from lockclient.stores.request_types import Push
from lockclient.stores.settings import Settings
from tests.support.clock_shim import Clock
from tests.support.etcd_store import etcd_store
from tests.support.locks import ask, take
from tests.support.processes import wait_until
from tests.support.records import taker
from tests.support.unlocker_process import figure, ready, unlocker

SWEEP, SWEEP_PUT_BACK = 1.0, 4.0
"""Seconds between two looks for what is due, at most."""
SLACK = 6.0
ALERT = 0.8
"""The part of its time after which a silent lock is past its alert."""


@dataclass
class Promise:
    """The promise to a holder by the last push that the store executed.

    Attributes:
        lasts: seconds from a push to `auto_unlock_at`.
        sent, answered: monotonic times around the push.
        ahead: seconds that the holder's wall clock is ahead of the right time.
    """

    lasts: float
    sent: float
    answered: float
    ahead: float = 0.0


@dataclass(frozen=True)
class Report:
    """The result of a case: a sentence for each fault, and the longest delay of a due removal."""

    case: str
    locks: int
    faults: list[str]
    slowest: float


class Removals:
    """Sees when locks go, by a watch of its own."""

    def __init__(self, store: EtcdStore) -> None:
        self.at: dict[str, float] = {}
        self._table = Table(store, on_change=self._note)
        self._table.start()
        assert self._table.wait_ready(30)

    def _note(self, changes: list[Transition]) -> None:
        now = time.monotonic()
        self.at.update({change.name: now for change in changes if change.after is None})

    def stop(self) -> None:
        self._table.stop()


class Site:
    """An unlocker with a clock of its own, and the locks that it watches."""

    def __init__(self, stack: ExitStack, etcd: Etcd, library: Path) -> None:
        self.settings = Settings(endpoints=(etcd.endpoint,), root=f"/clocks-{uuid4().hex[:12]}")
        self.clock = Clock(library)
        self.promises: dict[str, Promise] = {}
        self.started_at = math.inf
        self._holders: dict[str, Holder] = {}
        self._pushed_at: dict[str, int] = {}
        self._stack = stack
        self._store = etcd_store(self.settings)
        stack.callback(self._store.close)
        self.removals = Removals(self._store)
        stack.callback(self.removals.stop)

    def start(self) -> None:
        """Start the unlocker and wait until it has read what there is."""
        started = unlocker(self.settings, env=self.clock.env)
        self.service = self._stack.enter_context(started)
        wait_until(lambda: ready(self.service), timeout=60, what="readiness")
        self.started_at = time.monotonic()

    def wait_for_its_verdict(self) -> bool:
        """Wait until it has asked for the time; return whether it trusts its clock."""
        asked = "clustermutex_unlocker_clock_offset_seconds"
        wait_until(lambda: figure(self.service, asked) is not None, what="a clock check")
        return figure(self.service, "clustermutex_unlocker_clock_trusted") == 1

    def take(self, name: str, lasts: float, *, ahead: float = 0.0, ago: float = 0.0) -> None:
        """Take a lock on a host whose clock is `ahead`; `ago`: as if it had been so long ago."""
        sent = time.monotonic() - ago
        runtime, wall = Runtime(lasts * ALERT, lasts), time.time() - ago + ahead
        holder = taker(name, runtime, wall, hostname=f"host{ahead:+g}")
        self._holders[name] = holder
        _, self._pushed_at[name] = take(self._store, holder)
        self.promises[name] = Promise(lasts, sent, time.monotonic() - ago, ahead)

    def push(self, *names: str) -> None:
        """Push locks as their holders do. (One that comes too late, on a busy machine, is gone.)"""
        for name in names:
            promise, sent = self.promises[name], time.monotonic()
            stamps = Runtime(promise.lasts * ALERT, promise.lasts).stamps(
                time.time() + promise.ahead
            )
            push = Push(name, self._holders[name].uuid or "", stamps, self._pushed_at[name])
            done = ask(self._store, push)
            if isinstance(done, Done):
                self._pushed_at[name] = done.revision
                answered = time.monotonic()
                self.promises[name] = replace(promise, sent=sent, answered=answered)

    def wait_for_the_end(self) -> None:
        """Wait until everything is removed, or should long have been."""
        last = max(promise.sent + promise.lasts for promise in self.promises.values())
        until = max(last, self.started_at + 10) + 20
        while time.monotonic() < until and self.promises.keys() - self.removals.at.keys():
            time.sleep(0.02)

    def due(self, promise: Promise) -> float:
        """Return by when a lock is to be removed, without the S and R of the unlocker."""
        whole = promise.lasts * 1.001 + 0.002
        if promise.sent > self.started_at:
            return promise.answered + whole
        return self.started_at + whole

    def report(self, case: str, sweep: float) -> Report:
        """Say which locks went too early or too late, and how long removals took."""
        faults, slowest = [], 0.0
        for name, promise in self.promises.items():
            gone = self.removals.at.get(name, math.inf)
            spare = gone - (promise.sent + promise.lasts)
            delay = gone - self.due(promise)
            slowest = max(slowest, delay)
            if spare < 0:
                faults.append(f"{case}: {name} went {-spare:.3f} s early")
            if delay > sweep + SLACK:
                faults.append(f"{case}: {name} went {delay - sweep:.3f} s late")
        return Report(case, len(self.promises), faults, slowest)
