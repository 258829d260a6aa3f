"""One case of `tests.breaking.process`: a program that uses locks while its Python is broken.

Its notes say who works under which token; nothing but `os.write` is needed for them, so that they
can be written from anywhere, and are never half done.
"""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from random import Random
from typing import Any

from lockclient import AsyncClusterMutex, ClusterMutex, ClusterMutexError
from tests.breaking.process.faults import FAULTS, Interrupted, forks, no_files, no_threads

EXPECTED_S, UNLOCK_S = 1.0, 3.0
WORK_S = 1.5
_EXPECTED_ERRORS = (
    ClusterMutexError,
    TimeoutError,
    asyncio.TimeoutError,  # another one before Python 3.11
    Interrupted,
    asyncio.CancelledError,
    SystemExit,
)


class Case:
    """One case: what its seed decides, and what the faults use."""

    def __init__(self, seed: int, notes: str) -> None:
        self.choose = Random(seed)
        self.prefix = f"case-{seed}"
        self.locks = [f"{self.prefix}/{letter}" for letter in "ab"]
        self.until = time.monotonic() + WORK_S
        self.on_lost: Any = None
        self.asyncio = False
        self._notes = os.open(notes, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(self, what: str, held: Any = None, **more: Any) -> None:
        """Write a line."""
        facts = {"at": time.monotonic(), "pid": os.getpid(), "what": what} | more
        if held is not None:
            facts |= {"lock": held.name, "token": held.fencing_token}
        os.write(self._notes, json.dumps(facts).encode() + b"\n")

    def judge(self, error: BaseException) -> None:
        """Note an error that no fault explains."""
        explained = isinstance(error, _EXPECTED_ERRORS) or (
            (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE))
            or (
                isinstance(error, RuntimeError)
                and any(word in str(error) for word in ("start new thread", "shutdown", "loop"))
            )
        )
        if not explained:
            self.note("odd", text="".join(traceback.format_exception(error))[-3000:])

    def working(self) -> bool:
        """Tell whether there is time left."""
        return time.monotonic() < self.until

    def mutex(self, kind: Any = ClusterMutex) -> Any:
        """Make a mutex, of one of the two names that all of a case want."""
        return kind(
            self.choose.choice(self.locks),
            timeout=self.choose.choice((0.1, 1.0)),
            expected_runtime=EXPECTED_S,
            auto_unlock_after=UNLOCK_S,
            keepalive=self.choose.random() < 0.3,
            on_lost=self.on_lost,
        )


def _use(case: Case, held: Any) -> None:
    case.note("enter", held)
    for _ in range(case.choose.randrange(4)):
        time.sleep(0.01)
        held.alive()
        case.note("pushes", held)
        held.alive(force=True)
        case.note("pushed", held)


def _by_statement(case: Case, mutex: Any) -> None:
    with mutex as held:
        _use(case, held)


def _by_hand(case: Case, mutex: Any) -> None:
    if (held := mutex.acquire()) is not None:
        try:
            _use(case, held)
        finally:
            held.release()


def _by_stack(case: Case, mutex: Any) -> None:
    with ExitStack() as stack:
        _use(case, stack.enter_context(mutex))


def _by_decorator(case: Case, mutex: Any) -> None:
    mutex(lambda: time.sleep(0.01))()


def _one_after_another(case: Case) -> None:
    shared = case.mutex()
    while case.working():
        how = case.choose.choice((_by_statement, _by_hand, _by_stack, _by_decorator))
        try:
            how(case, shared if case.choose.random() < 0.5 else case.mutex())
        except BaseException as error:
            case.judge(error)
            if isinstance(error, SystemExit):
                raise


def in_main(case: Case) -> None:
    """The main thread alone."""
    _one_after_another(case)


def in_threads(case: Case) -> None:
    """The main thread and three others."""
    others = [threading.Thread(target=_one_after_another, args=[case]) for _ in range(3)]
    begun = []
    for thread in others:
        try:
            thread.start()
            begun.append(thread)
        except RuntimeError as error:
            case.judge(error)
    _one_after_another(case)
    for thread in begun:
        thread.join()


def in_tasks(case: Case) -> None:
    """Tasks of event loops, one after another: cancelled, awaited with limits, copied, blocked."""
    while case.working():
        try:
            asyncio.run(_tasks(case))
        except BaseException as error:  # noqa: BLE001 - it is judged
            case.judge(error)


async def _tasks(case: Case) -> None:
    shared = case.mutex(AsyncClusterMutex)
    tasks = [asyncio.create_task(_task(case, shared)) for _ in range(4)]
    while case.working() and not all(task.done() for task in tasks):
        await asyncio.sleep(case.choose.uniform(0.0, 0.2))
        dice = case.choose.random()
        if dice < 0.3:
            case.choose.choice(tasks).cancel()
        elif dice < 0.4:
            time.sleep(0.2)
        elif dice < 0.45:
            return  # the loop is closed, and its tasks are cancelled, whatever they hold


async def _task(case: Case, shared: Any) -> None:
    while case.working():
        mutex = shared if case.choose.random() < 0.5 else case.mutex(AsyncClusterMutex)
        try:
            how = case.choose.choice((_held, _copied, _gathered))
            await asyncio.wait_for(how(case, mutex), case.choose.choice((0.01, 0.1, 2.0)))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is judged
            case.judge(error)


async def _held(case: Case, mutex: Any) -> None:
    async with mutex as held:
        case.note("enter", held)
        case.note("pushes", held)
        await held.alive(force=True)
        case.note("pushed", held)


async def _copied(case: Case, mutex: Any) -> None:
    async with mutex as held:
        await asyncio.to_thread(case.note, "enter", held)
        case.note("pushes", held)
        await asyncio.create_task(held.alive(force=True))
        case.note("pushed", held)


async def _gathered(case: Case, mutex: Any) -> None:
    await asyncio.gather(_held(case, mutex), _held(case, mutex), return_exceptions=True)


WORKLOADS = (in_main, in_threads, in_tasks)


def main(seed: int, url: str, notes: str) -> None:
    """Run one case."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(50)
    ClusterMutex.setup(url)
    # gRPC is imported now: an exception, or no descriptor, in the midst of that and a second try
    # end a process by a failed check of its own.
    ClusterMutex("first").locked()
    case = Case(seed, notes)
    work = case.choose.choice(WORKLOADS)
    case.asyncio = work is in_tasks
    chosen = case.choose.sample(FAULTS, case.choose.choice((1, 1, 2)))
    if forks in chosen and {no_threads, no_files} & set(chosen):
        chosen = [forks]  # gRPC does not survive both: its threads abort in the child
    case.note("case", text=" ".join([work.__name__, *(fault.__name__ for fault in chosen)]))
    try:
        with ExitStack() as stack:
            for fault in chosen:
                stack.enter_context(fault(case))
            work(case)
    except BaseException as error:
        case.judge(error)
        if isinstance(error, SystemExit):
            raise
    finally:
        case.note("ends")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
