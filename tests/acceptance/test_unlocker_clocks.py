"""The `unlocker` program on wrong clocks: no lock is removed early, and none is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from subprocess import PIPE

import pytest

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Now
from tests.acceptance.clock_site import SWEEP, SWEEP_PUT_BACK, Report, Site
from tests.support.clock_shim import Clock, compile_library
from tests.support.processes import Figure, line_from, tell, wait_until
from tests.support.soak import soaking

HOUR = 3600.0


# ---------------------------------------------------------------- clocks of the unlocker


@dataclass(frozen=True)
class Case:
    """The course of the unlocker's clock.

    Attributes:
        ahead, gains: as it starts.
        jumps: where it is put every `STEP` seconds once it has looked at what it found; with
            `restless` from before its start on.
        trusted: what it is to say of its clock; None: that depends on the moment.
    """

    ahead: float = 0.0
    gains: float = 0.0
    jumps: tuple[float, ...] = ()
    restless: bool = False
    trusted: bool | None = None


CASES = {
    "right": Case(trusted=True),
    "an hour ahead": Case(HOUR, trusted=False),
    "an hour behind": Case(-HOUR, trusted=False),
    "put forward": Case(jumps=(HOUR, HOUR, 2 * HOUR), trusted=True),
    "put back": Case(jumps=(-HOUR, -HOUR, -2 * HOUR), trusted=True),
    "wrong, then set right": Case(HOUR, jumps=(0.0,), trusted=False),
    "restless": Case(jumps=(HOUR, 0, -HOUR, 0, 5, -5, 0), restless=True),
    "drifting ahead": Case(gains=0.1),
    "drifting behind": Case(gains=-0.1),
}
STEP = 0.4


def run(case: str, etcd: Etcd, library: Path) -> Report:
    """Let an unlocker with such a clock find locks and see others, until it has removed all."""
    plan = CASES[case]
    with ExitStack() as stack:
        site = Site(stack, etcd, library)
        site.take("found", 8)
        site.take("found, its host 8 s behind", 8, ahead=-8)
        site.take("found, its host an hour ahead", 8, ahead=HOUR)
        site.take("found, pushed later", 8)
        site.take("found, dead for long", 3, ago=1000)
        site.take("found, its host an hour behind", 8, ahead=-HOUR)
        site.push("found, pushed later")
        site.clock.move(plan.ahead, gains=plan.gains)
        moving = stack.enter_context(moved(site.clock, plan.jumps)) if plan.restless else None
        site.start()
        pushed = ["found, pushed later"]
        for ahead in (0.0, HOUR, -HOUR):
            for lasts in (1.5, 3.0, 4.5):
                site.take(f"seen for {lasts} s, its host {ahead:+g} s", lasts, ahead=ahead)
            pushed.append(f"pushed, its host {ahead:+g} s")
            site.take(pushed[-1], 3, ahead=ahead)
        if plan.trusted is not None:
            assert site.wait_for_its_verdict() is plan.trusted
        for step in range(10):
            if step < len(plan.jumps) and moving is None:
                site.clock.move(plan.jumps[step])
            site.push(*pushed)
            time.sleep(STEP)
        site.wait_for_the_end()
        sweep = SWEEP_PUT_BACK if plan.jumps else SWEEP
        return site.report(case, sweep)


@contextmanager
def moved(clock: Clock, jumps: Sequence[float]) -> Iterator[None]:
    """Move a clock to and fro for the time of the block."""
    ended = threading.Event()

    def move() -> None:
        for ahead in cycle(jumps):
            if ended.wait(0.15):
                return
            clock.move(ahead)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("clocks"))


def test_programs_see_the_moved_clock(library: Path) -> None:
    clock = Clock(library)
    program = (
        "import sys, time, datetime, threading\n"
        "for _ in sys.stdin:\n"
        "    threading.Event().wait(0.01)\n"
        "    other = datetime.datetime.now().timestamp()\n"
        "    print(time.time(), other, time.monotonic(), flush=True)\n"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(
        words, env={**os.environ, **clock.env}, stdin=PIPE, stdout=PIPE, text=True
    ) as process:
        for ahead in (0.0, HOUR, -HOUR, 0.0):
            clock.move(ahead)
            before = Now.read()
            tell(process)
            wall, other, monotonic = map(float, line_from(process).split())
            after = Now.read()
            for shown in (wall, other):
                assert before.wall - 0.001 <= shown - ahead <= after.wall + 0.001
            assert before.monotonic <= monotonic <= after.monotonic
        clock.move(0.0, gains=1.0)
        before = Now.read()
        wait_until(lambda: time.monotonic() > before.monotonic + 0.2)
        tell(process)
        assert float(line_from(process).split()[0]) >= before.wall + 0.4 - 0.01


CUT = ("an hour ahead", "put forward", "put back", "restless")
REST = tuple(case for case in CASES if case not in CUT)


@pytest.mark.promise(number=2)
@pytest.mark.parametrize("cases", [CUT, *soaking((REST,))], ids=["some", "others"])
def test_no_lock_is_removed_early_on_any_clock(
    cases: tuple[str, ...], etcd: Etcd, library: Path, figure: Figure
) -> None:
    with ThreadPoolExecutor(len(cases)) as pool:
        reports = list(pool.map(lambda case: run(case, etcd, library), cases))
    _check(reports, figure)


def _check(reports: Sequence[Report], figure: Figure) -> None:
    for report in reports:
        figure(
            f"{report.case}: {report.locks} locks, none early, "
            f"{report.slowest:.1f} s after due at most"
        )
    assert [fault for report in reports for fault in report.faults] == []
