"""Breaks real servers and programs: `python -m tests.breaking etcd --seconds 60 --seed 1`.

Processes want locks, in threads and on event loops, and count under them; two unlockers look after
them. All of it, servers, ways and programs, is broken by a seed, one thing after another and some
together. Each writes its history, a recorder writes etcd's event stream, and the checker looks at
all of it. Status 0: no promise was broken; 1: one was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.breaking.places import PLACES
from tests.breaking.programs import Notes, Program, Worker
from tests.breaking.register import Register
from tests.proof.check import Broken, check
from tests.proof.history import Limits, read
from tests.support.clock_shim import Clock, compile_library

WORKERS = 4
CLIENTS = 3
"""Of each worker."""
RANKS = {"all_restarted": 0, "killed": 1, "majority_frozen": 3}
"""The order in which faults begin, and end the other way round: who starts serves when nothing else
is broken any more, and most faults choose a leader, which two frozen members leave none of."""
CALM_S = 3.0
"""Seconds without faults at the beginning, and at the end of the time."""
SETTLED_S = 60.0
"""Seconds within which all is gone, at most."""


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    place: str
    seed: int
    broken: list[Broken]
    acquired: int
    counted: dict[str, int]
    lost: dict[str, int]
    refused: int
    faults: Counter[str]
    silence: float
    left: list[str]

    def __str__(self) -> str:
        faults = ", ".join(f"{number} {name}" for name, number in sorted(self.faults.items()))
        return (
            f"{self.place}, seed {self.seed}: {self.acquired} acquisitions; updates "
            f"{self.counted}, lost {self.lost}, refused {self.refused}; silent for at most "
            f"{self.silence:.1f} s; {self.faults.total()} faults: {faults}; left: {self.left}"
        )


class Run:
    """One run in a folder of its own."""

    def __init__(self, place: str, seconds: float, seed: int, folder: Path) -> None:
        self._place_name, self._seconds, self._seed = place, seconds, seed
        self._choose = Random(seed)
        self._notes = Notes(folder)
        self._faults: Counter[str] = Counter()
        self._over = 0.0

    def run(self) -> Result:
        """Run it, and check what was written."""
        notes = self._notes
        with ExitStack() as stack:
            register = stack.enter_context(Register(notes.write))
            self._place = PLACES[self._place_name](notes, stack, WORKERS, self._choose)
            limits = Limits(
                max_removals=50, unlockers=2, told_within=3.0, ends_within=4.0, lag=0.02
            )
            notes.say("limits", limits=asdict(limits))
            self._begin(stack, register)
            began = time.monotonic()
            self._break_all(register, began + self._seconds - CALM_S)
            silence = register.longest_silence(began + CALM_S, time.monotonic())
            self._settle()
            left = self._place.left()
            time.sleep(1.0)  # what the recorder has not been told yet
        lines = read(notes.files())
        kinds = ("plain", "fenced")
        return Result(
            *(self._place_name, self._seed, check(lines)),
            acquired=sum(line.what == "acquired" for line in lines),
            counted={kind: register.sum(kind, "writes") for kind in kinds},
            lost={kind: register.sum(kind, "lost") for kind in kinds},
            refused=register.sum("fenced", "refused"),
            faults=self._faults,
            silence=silence,
            left=left,
        )

    def _begin(self, stack: ExitStack, register: Register) -> None:
        place, notes = self._place, self._notes
        library = compile_library(notes.folder)
        self._clocks = [Clock(library) for _ in range(2)]
        self._over = time.monotonic() + self._seconds
        said = {
            "register": register.endpoint,
            "clients": CLIENTS,
            "etcd": place.direct(),
            "auto_unlock": place.auto_unlock,
            "until": self._over,
            "seed": self._seed,
        }
        self._workers = [
            Worker(
                *(notes, f"worker{number}", place.env),
                **said,
                url=place.url(number),
                kind="threads" if number < WORKERS / 2 else "asyncio",
            )
            for number in range(WORKERS)
        ]
        words = ["-m", "unlocker", "--url", place.url(None), "--listen", "127.0.0.1:0"]
        self._unlockers = [
            Program(notes, f"unlocker{number}", words, {**place.env, **clock.env})
            for number, clock in enumerate(self._clocks)
        ]
        for program in (*self._workers, *self._unlockers):
            program.start()
            stack.callback(_end, program)

    # ------------------------------------------------------------ what goes wrong

    def _break_all(self, register: Register, until: float) -> None:
        time.sleep(CALM_S)
        kinds: list[Any] = [*self._place.faults(), *self._programs_faults(register)]
        order: list[Any] = []
        while time.monotonic() < until:
            # Each kind once in a while: all of them, in an order of chance, and again.
            order = order or self._choose.sample(kinds, len(kinds))
            chosen = [order.pop()]
            if order and self._choose.random() < 0.4:
                chosen.append(order.pop())
            chosen.sort(key=lambda fault: RANKS.get(fault.__name__, 2))
            with ExitStack() as stack:
                for fault in chosen:
                    self._faults[fault.__name__.strip("_")] += 1
                    with suppress(TimeoutError):  # no leader to be had for the second one
                        stack.enter_context(fault())
                longest = max(0.2, min(8.0, until - time.monotonic()))
                time.sleep(min(longest, self._choose.choice((1.0, 3.0, 8.0))))
            time.sleep(self._choose.uniform(0.0, 1.5))

    def _programs_faults(self, register: Register) -> Sequence[Any]:
        def client_killed() -> AbstractContextManager[None]:
            return self._choose.choice(self._workers).killed()

        def client_ended() -> AbstractContextManager[None]:
            ready = [worker for worker in self._workers if worker.can_end()]
            return self._choose.choice(ready).ended(self._look) if ready else nullcontext()

        @contextmanager
        def client_frozen() -> Iterator[None]:
            limit, reading = time.monotonic() + 2.0, None
            while reading is None and time.monotonic() < limit:  # between reading and writing
                reading = next((w for w in self._workers if w.what == register.reading), None)
            with (reading or self._choose.choice(self._workers)).frozen():
                time.sleep(self._place.auto_unlock)
                yield

        def unlocker_killed() -> AbstractContextManager[None]:
            return self._choose.choice(self._unlockers).killed()

        def unlocker_frozen() -> AbstractContextManager[None]:
            return self._choose.choice(self._unlockers).frozen()

        @contextmanager
        def unlocker_clock_jumps() -> Iterator[None]:
            clock = self._choose.choice(self._clocks)
            clock.move(self._choose.uniform(-7200, 7200), gains=self._choose.uniform(-0.5, 1.0))
            yield

        # An end begins in one of many states: so there are more of them.
        clients = (client_killed, client_ended, client_ended, client_ended, client_frozen)
        return *clients, unlocker_killed, unlocker_frozen, unlocker_clock_jumps

    def _look(self, process: str) -> None:
        """Note the locks that a process which has ended has left, if the store answers."""
        for holder in self._place.holders():
            due_at = holder.auto_unlock_at or 0.0
            if holder.reason == process and due_at > time.time():
                self._notes.say("left", process, lock=holder.name, uuid=holder.uuid or "")

    def _settle(self) -> None:
        """Wait until all calls have ended, and nothing is left that is to go."""
        limit = time.monotonic() + 2 * SETTLED_S
        while not all(map(Worker.done, self._workers)) and time.monotonic() < limit:
            time.sleep(0.2)
        limit = time.monotonic() + SETTLED_S
        while self._place.left() and time.monotonic() < limit:
            time.sleep(0.5)
        self._notes.say("settled")


def _end(program: Program) -> None:
    assert program.process is not None
    program.process.kill()
    program.process.wait()


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.breaking", description=__doc__)
    parser.add_argument("place", choices=PLACES)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long things are broken")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the histories and logs")
    said = parser.parse_args(words)
    with ExitStack() as stack:
        folder = said.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        result = Run(said.place, said.seconds, said.seed, folder).run()
    print(result)
    for broken in result.broken:
        print(broken)
    return int(bool(result.broken))


if __name__ == "__main__":
    sys.exit(main())
