"""The long-lived programs of docs/programs.md, while etcd is unreachable and when locks are lost.

All of them run at the same time, so that they share each outage.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.cli.setup.ports import free_port
from lockclient.cli.setup.spawn import spawn
from lockclient.stores.service_store import ServiceStore
from tests.acceptance.shells import held, in_line, remove
from tests.support.documents import codes
from tests.support.etcd_binary import frozen
from tests.support.locks import read
from tests.support.processes import run_to_end
from tests.support.recipe_packages import python_with

LEADER, API, _API_TEST, GUNICORN, _POOL, _POD, TASKS, JOBS, *_ = codes(
    "programs.md#frameworks", "python"
)
WORKER = codes("programs.md#recipes", "python")[3]

OUTAGE_S = 15.0
"""Seconds for which etcd is unreachable after each program has noticed it, or begun to end."""
LIMIT_S = 60.0
"""Seconds until a program that has not done what a step of the test waits for has failed."""

SHOP = """
from tasks import app, rebuild

app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control",
    },
    result_backend="file://results",
)
"""
JOB = """
import os, time

def parts(stop=None):
    print("the job begins", flush=True)
    while not (os.path.exists("end") or (stop and stop.is_set())):
        time.sleep(0.1)
        yield None
"""
PARTS = '__import__("job").parts'
"""Replaces the parts of a recipe's job, which then ends when the test wants it."""
SERVE = "def serve():\n    __import__('time').sleep(3600)\n"
SOONER = {"exc=error, countdown=60": "exc=error, countdown=1", "max_retries=5": "max_retries=99"}


@dataclass(frozen=True)
class Recipe:
    """A program of the page.

    Args:
        lock: the name of its lock.
        files: their texts, by their names.
        words: what starts it, after `python`; PORT is replaced.
        unreleased: the pattern of the line that it logs if it can't release its lock.
        skipped: the text that it logs for a job while another holder has the lock; empty: it
            queues for the lock.
        status: its exit status, after SIGTERM if its job does not end it.
        is_supervised: whether it ends after a loss, and a supervisor starts it again.
        has_job: whether its work is a job that ends.
    """

    lock: str
    files: Mapping[str, str]
    words: str
    unreleased: str
    skipped: str = ""
    status: int = 0
    is_supervised: bool = False
    has_job: bool = False


def _changed(code: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in code, old
        code = code.replace(old, new)
    return code


RECIPES = {
    "fastapi": Recipe(
        lock="shop-worker",
        files={"api.py": API},
        words="-m uvicorn api:app --port PORT",
        unreleased="Releasing 'shop-worker' failed",
        status=-signal.SIGTERM,  # uvicorn sends it to itself in the end
    ),
    "gunicorn": Recipe(
        lock="mailer",
        files={"gunicorn.conf.py": GUNICORN, "app.py": "def app(environ, start): ..."},
        words="-m gunicorn app:app --workers 1 --bind 127.0.0.1:PORT",
        unreleased="mailer: etcd .* did not answer",
    ),
    "leader": Recipe(
        lock="leader",
        files={
            "leader.py": _changed(LEADER, {"while not stop.wait(1)": f"for _ in {PARTS}(stop)"})
        },
        words="leader.py",
        unreleased="etcd .* did not answer",
        has_job=True,
    ),
    "plain worker": Recipe(
        lock="worker",
        files={"worker.py": SERVE + _changed(WORKER, {'"leader"': '"worker"'})},
        words="worker.py",
        unreleased="could not release 'worker'",
        status=143,
        is_supervised=True,
    ),
    "apscheduler": Recipe(
        lock="nightly",
        files={"jobs.py": _changed(JOBS, {"range(3)": f"{PARTS}()"})},
        words="jobs.py",
        unreleased=r"StoreUnavailable: etcd .* did not answer",
        skipped="Skipping job: The lock 'nightly' is not free. It is held by ",
        status=143,
        has_job=True,
    ),
    "celery": Recipe(
        lock="report",
        files={
            "tasks.py": _changed(TASKS, SOONER | {"range(parts)": f"{PARTS}()"}),
            "shop.py": SHOP,
        },
        words="-m celery -A shop worker --concurrency 1 --loglevel INFO",
        unreleased="report is done, but not released yet",
        skipped="'skipped'",
        has_job=True,
    ),
}


class Program:
    """A recipe that runs in a folder of its own; `output`: what it has printed and logged."""

    def __init__(self, recipe: Recipe, python: Path, folder: Path, etcd: Etcd) -> None:
        self.recipe = recipe
        self.folder = folder
        self._python = python
        self._env = {**os.environ, "CLUSTERMUTEX_URL": etcd.url, "PYTHONUNBUFFERED": "1"}
        for name in ("queue", "control", "results"):
            (folder / name).mkdir(parents=True)
        for name, text in {**recipe.files, "job.py": JOB}.items():
            (folder / name).write_text(text)
        self.start()

    def start(self) -> None:
        words = [str(self._python), *self.recipe.words.replace("PORT", str(free_port())).split()]
        with (self.folder / "log").open("ab") as log:
            self.process = spawn(words, output=log.fileno(), env=self._env, cwd=self.folder)

    def ask_for_job(self) -> None:
        """Send Celery a task; the other programs start their jobs themselves."""
        if "tasks.py" in self.recipe.files:
            words = "-c", "import shop; shop.rebuild.delay(1)"
            run_to_end(self._python, *words, env=self._env, folder=self.folder)

    @property
    def output(self) -> str:
        return (self.folder / "log").read_text()

    def is_own(self, pid: int | None) -> bool:
        """Return whether a process is one of this program: all are in its session."""
        try:
            return pid is not None and os.getsid(pid) == self.process.pid
        except ProcessLookupError:
            return False

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Programs:
    """All programs; those that failed a step are ended, and take no part in further steps."""

    running: dict[str, Program] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Program]:
        return iter(list(self.running.values()))

    def each(self, what: str, condition: Callable[[Program], object]) -> None:
        """Wait until the condition is true of each program; the others have failed."""
        waiting = dict(self.running)
        until = time.monotonic() + LIMIT_S
        while waiting and time.monotonic() < until:
            waiting = {name: one for name, one in waiting.items() if not condition(one)}
            time.sleep(0.05)
        for name, program in waiting.items():
            self.failed[name] = f"not seen: {what}\n{program.output[-3000:]}"
            self.running.pop(name).kill()

    def kill(self) -> None:
        for program in self:
            program.kill()


@contextmanager
def _unreachable(etcd: Etcd, how: str) -> Iterator[None]:
    if how == "frozen":
        with frozen(etcd):
            yield
        return
    etcd.stop()
    yield
    etcd.start()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with(tmp_path_factory.mktemp("venv"), ("fastapi", "uvicorn", "celery"))


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_each_program_survives_outages_and_losses(
    how: str, python: Path, own_etcd: Etcd, own_store: ServiceStore, tmp_path: Path
) -> None:
    programs = Programs()
    stamps: dict[str | None, float | None] = {}

    def works(program: Program) -> bool:
        """Return whether it has its lock, and has sent a heartbeat since this first saw it."""
        holder = read(own_store, program.recipe.lock).holder
        if holder is None or not program.is_own(holder.pid):
            return False
        return holder.alert_at != stamps.setdefault(holder.uuid, holder.alert_at)

    try:
        with _unreachable(own_etcd, how):  # at their start
            for name, recipe in RECIPES.items():
                folder = tmp_path / name.replace(" ", "-")
                programs.running[name] = Program(recipe, python, folder, own_etcd)
                programs.running[name].ask_for_job()
            programs.each("a log line about the outage", lambda it: "not answer" in it.output)
            time.sleep(OUTAGE_S)
        programs.each("work after an outage at its start", works)
        _lose(programs, own_store)
        programs.each("work after a loss", works)
        before = {program.recipe.lock: len(program.output) for program in programs}
        with _unreachable(own_etcd, how):  # at their end
            for program in programs:
                (program.folder / "end").touch()
                if program.recipe.lock != "leader":  # which ends with its job
                    program.process.terminate()
            began = time.monotonic()
            programs.each(
                "a log line about the lock that was not released",
                lambda it: re.search(it.recipe.unreleased, it.output[before[it.recipe.lock] :]),
            )
            time.sleep(max(0.0, began + OUTAGE_S - time.monotonic()))
        programs.each("its end", _ended)
        programs.each(  # the second time after the loss
            "each job run once by its process",
            lambda it: not it.recipe.has_job or it.output.count("the job begins") == 2,
        )
        programs.each("its exit status", lambda it: it.process.returncode == it.recipe.status)
    finally:
        programs.kill()
    assert not programs.failed, "\n".join(f"--- {n}: {why}" for n, why in programs.failed.items())


def _lose(programs: Programs, store: ServiceStore) -> None:
    """Remove each lock, which a waiter gets; release that when the program has stopped its work."""
    successors = []
    with ThreadPoolExecutor(1) as thread:
        for program in programs:
            lock = program.recipe.lock
            waiter = thread.submit(ClusterMutex(lock, store=store).acquire, timeout=LIMIT_S)
            in_line(store, lock)
            before = held(store, lock)
            remove(store, lock)
            successor = waiter.result()
            assert successor is not None
            assert successor.fencing_token > before.fencing_token
            successors.append(successor)

    def has_stopped(program: Program) -> bool:
        recipe = program.recipe
        if recipe.is_supervised:
            return _ended(program)
        if recipe.skipped:
            return recipe.skipped in program.output
        queue = read(store, recipe.lock).waiters
        return any(program.is_own(ticket.pid) for ticket in queue)

    programs.each("the end of its work after a loss", has_stopped)
    programs.each(
        "a log line about the loss",
        lambda it: f"The lock '{it.recipe.lock}' was removed" in it.output,
    )
    for successor in successors:
        successor.release()
    for program in programs:
        program.ask_for_job()
        if program.recipe.is_supervised:
            program.start()


def _ended(program: Program) -> bool:
    return program.process.poll() is not None
