"""The programs of README.md, the guide, the recipes and the runbook, run as they stand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from lockclient.cli.setup.spawn import end
from lockclient.stores.service_store import ServiceStore
from tests.acceptance.shells import PATIENCE, held, in_line, remove
from tests.support.documents import codes, text
from tests.support.locks import has, read
from tests.support.processes import run_to_end, wait_until

SHELL = codes("programs.md#recipes", "sh", "crontab")
TRY, JOB, SEVERAL, AS_LONG_AS_IT_LIVES, ELSEWHERE = codes("programs.md#recipes", "python")
(SIGTERM,) = codes("runbook.md", "python")
FIRST, FIRST_ASYNC, HELD = codes("guide.md#ten-minutes", "python")
Make = Callable[..., None]


class Program(subprocess.Popen[bytes]):
    """A recipe that runs, and what it says."""

    def __init__(self, words: Sequence[str], env: dict[str, str], folder: Path) -> None:
        number, self._log = tempfile.mkstemp(dir=folder)
        super().__init__(words, env=env, cwd=folder, stdout=number, stderr=number)
        os.close(number)

    @property
    def said(self) -> str:
        return Path(self._log).read_text()


@contextmanager
def _running(words: Sequence[str], env: dict[str, str], folder: Path) -> Iterator[Program]:
    program = Program(words, env, folder)
    try:
        yield program
    finally:
        end(program)


# ---------------------------------------------------------------- in a shell


def recipe(words: str) -> str:
    (found,) = [block for block in SHELL if words in block]
    return found


@pytest.fixture
def env(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds the programs of the recipes in `bin`."""
    (tmp_path / "bin").mkdir()
    return env | {"PATH": f"{tmp_path / 'bin'}:{env['PATH']}"}


@pytest.fixture
def program(tmp_path: Path) -> Make:
    """Makes a program that a recipe calls: its path, and what it does besides being noted down."""

    def make(path: str, script: str = "") -> None:
        file = tmp_path / path
        note = f'echo "{file.name} $*" >> {tmp_path}/done\n'
        file.write_text(f"#!/bin/sh\n{note}{script}\n")
        file.chmod(0o755)

    return make


def _sh(script: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return run_to_end("/bin/sh", "-c", script, env=env, folder=folder, status=None)


def _done(folder: Path) -> list[str]:
    return (folder / "done").read_text().splitlines() if (folder / "done").exists() else []


def test_each_recipe_has_a_test() -> None:
    assert len(SHELL) == 7


def test_cron(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """The line's command, as cron runs it: on one host it works, on the others it does nothing."""
    program("bin/nightly-report", "clustermutex show nightly-report > shown")
    *times, command = recipe("nightly-report").strip().split(" ", 5)
    assert times == ["0", "3", "*", "*", "*"]
    done = _sh(command, env, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert _done(tmp_path) == ["nightly-report --all"]
    with ClusterMutex("nightly-report", store=store):
        done = _sh(command, env, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("clustermutex: The lock 'nightly-report' is not free.")
    assert len(_done(tmp_path)) == 1


def test_ci(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """It waits for its turn, visibly, and the job's status is the deploy's."""
    program("deploy.sh", "exit 3")
    env |= {"CI_ENVIRONMENT": "prod", "CI_JOB_URL": "https://ci.example/7"}
    with ClusterMutex("deploy/prod", store=store):
        job = subprocess.Popen(["/bin/sh", "-c", recipe("$CI_JOB_URL")], env=env, cwd=tmp_path)
        in_line(store, "deploy/prod")
        assert read(store, "deploy/prod").waiters[0].reason == "https://ci.example/7"
        assert not _done(tmp_path)
    assert job.wait(PATIENCE) == 3
    assert _done(tmp_path) == ["deploy.sh prod"]


def test_a_wrapper(env: dict[str, str], tmp_path: Path, program: Make) -> None:
    """A program that changes something has the lock, one that looks has none."""
    program("bin/terraform", "exec clustermutex show --json terraform/$(basename $PWD) > shown")
    wrapper = tmp_path / "bin" / "tf"
    wrapper.write_text(recipe("terraform"))
    wrapper.chmod(0o755)
    assert _sh("tf apply -auto-approve", env, tmp_path).returncode == 0
    assert "terraform apply by " in (tmp_path / "shown").read_text()
    _sh("tf plan", env, tmp_path)
    assert "terraform" not in (tmp_path / "shown").read_text()
    assert _done(tmp_path) == ["terraform apply -auto-approve", "terraform plan"]


def test_steps(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """Held over all steps, and pushed between them; released in the end, and after a failure."""
    for step in ("build", "upload", "restart"):
        program(step, "clustermutex show --json deploy/shop | grep alive_at >> stamps")
    assert _sh(recipe("./restart"), env, tmp_path).returncode == 0
    assert _done(tmp_path) == ["build ", "upload ", "restart "]
    assert len(set((tmp_path / "stamps").read_text().splitlines())) == 3
    assert has(store, "deploy/shop") is None
    program("upload", "exit 9")
    assert _sh(recipe("./restart"), env, tmp_path).returncode == 9
    assert _done(tmp_path)[3:] == ["build ", "upload "]
    assert has(store, "deploy/shop") is None


def test_interrupted_steps_release_the_lock(
    env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make
) -> None:
    program("build", "until test -e go; do sleep 0.05; done")
    script = tmp_path / "deploy"
    script.write_text(recipe("./restart"))
    deploy = subprocess.Popen(["/bin/sh", str(script)], env=env, cwd=tmp_path)
    wait_until(lambda: _done(tmp_path), PATIENCE, "the first step")
    assert held(store, "deploy/shop").pid == deploy.pid, "people look for the script"
    deploy.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert deploy.wait(PATIENCE) == 143
    assert _done(tmp_path) == ["build "]
    assert has(store, "deploy/shop") is None


def test_exported(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """The script knows its fencing token; without the lock it ends before it has done anything."""
    program("upload")
    script = recipe("--export")
    assert _sh(script, env, tmp_path).returncode == 0
    assert re.fullmatch(r"upload --if-newer-than \d+", _done(tmp_path)[0])
    assert has(store, "deploy/shop") is None
    with ClusterMutex("deploy/shop", store=store):
        done = _sh(script.replace("--timeout 60", "--timeout 0"), env, tmp_path)
    assert done.returncode == 75
    assert len(_done(tmp_path)) == 1


def test_its_own_word(env: dict[str, str], tmp_path: Path, program: Make) -> None:
    """Each file is a heartbeat."""
    program("import-file", "clustermutex show --json import | grep alive_at >> stamps")
    (tmp_path / "inbox").mkdir()
    for name in "ab":
        (tmp_path / "inbox" / name).touch()
    assert _sh(recipe("manual"), env, tmp_path).returncode == 0
    assert _done(tmp_path) == ["import-file inbox/a", "import-file inbox/b"]
    assert len(set((tmp_path / "stamps").read_text().splitlines())) == 2


def test_fencing(env: dict[str, str], tmp_path: Path, program: Make) -> None:
    """A token that is not larger than the last is refused."""
    program("compute-totals", "echo 42")
    for _ in range(2):
        assert _sh(recipe("totals.token"), env, tmp_path).returncode == 0
    assert (tmp_path / "totals").read_text() == "42\n"
    (tmp_path / "totals.token").write_text("999999999\n")
    assert _sh(recipe("totals.token"), env, tmp_path).returncode == 1
    assert len(_done(tmp_path)) == 2


# ---------------------------------------------------------------- in Python

GIVEN = """
import time

items = [1, 2, 3]

def work(item, held=None):
    print("item", item, flush=True)

def serve():
    print("serving", flush=True)
    time.sleep(60)
"""
ASYNC = """
import asyncio
from lockclient import AsyncClusterMutex

async def main():
    async with AsyncClusterMutex("work"):
        await asyncio.to_thread(print, "serving", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
THREADS = """
from lockclient import ClusterMutex

with ClusterMutex("work"):
    serve()
"""
QUICKER = """
import asyncio, time

def quicker(sleep):
    return lambda seconds, *rest: sleep(seconds / 5, *rest)

time.sleep, asyncio.sleep = quicker(time.sleep), quicker(asyncio.sleep)
"""
"""The first programs sleep a fifth of what they say, but are otherwise as they stand."""


@pytest.fixture
def says(env: dict[str, str]) -> Callable[[str], str]:
    """Runs a program to its end and returns what it says."""

    def run(program: str) -> str:
        done = run_to_end(sys.executable, "-c", GIVEN + program, env=env)
        return done.stdout + done.stderr

    return run


Says = Callable[[str], str]


def test_the_readme_is_short_and_has_the_first_program() -> None:
    readme = text("../README.md")
    assert len(readme) <= 9000
    assert FIRST in readme


def test_the_first_programs(env: dict[str, str], store: ServiceStore, tmp_path: Path) -> None:
    """One has the lock, the other waits for it, and has it after that."""
    files = {"sitecustomize": QUICKER, "report": FIRST, "report_async": FIRST_ASYNC}
    for name, code in files.items():
        (tmp_path / f"{name}.py").write_text(code)
    env |= {"PYTHONPATH": str(tmp_path)}
    with _running([sys.executable, "-u", "report.py"], env, tmp_path) as first:
        wait_until(lambda: "step 0" in first.said, what="the first step")
        with _running([sys.executable, "-u", "report_async.py"], env, tmp_path) as second:
            assert first.wait(180) == 0, first.said
            assert first.said.endswith("step 29\nreleased\n")
            wait_until(lambda: "step 0" in second.said, what="the next one's first step")
            assert "released" not in second.said
            assert second.wait(180) == 0, second.said
            assert second.said.startswith("I have the lock, with uuid ")


def test_the_held_lock(env: dict[str, str], store: ServiceStore, tmp_path: Path) -> None:
    run_to_end(sys.executable, "-c", HELD, env=env, folder=tmp_path)
    assert has(store, "nightly-report") is None


def test_try(says: Says, store: ServiceStore) -> None:
    assert says(TRY) == "item 1\nitem 2\nitem 3\n"
    with ClusterMutex("nightly-report", store=store, reason="by hand"):
        said = says(TRY)
    assert said.startswith("another process has it: ")
    assert "by hand" in said


def test_a_job_runs_or_is_skipped(says: Says, store: ServiceStore) -> None:
    ran = "Running report with the lock 'nightly-report'.\n"
    assert says(JOB) == f"item 1\nitem 2\nitem 3\n{ran}"
    with ClusterMutex("nightly-report", store=store, reason="by hand") as other:
        said = says(JOB)
        assert other.record.describe() in said
    assert said.startswith("Skipping report: The lock 'nightly-report' is not free.")
    assert "item" not in said


def test_several_locks_are_taken_in_one_order(says: Says, store: ServiceStore) -> None:
    said = "moving 5 from bob to ann\n"
    assert says(SEVERAL) == said
    with ClusterMutex("account/bob", store=store):
        waiting = SEVERAL.replace('"10s"', '"1s"').replace("move(5", "try:\n    move(5")
        seen = "except TimeoutError as error:\n    print(error.name)\n"
        assert says(waiting + seen) == "account/bob\n"
        assert has(store, "account/ann") is None
    assert says(SEVERAL) == said


def test_released_elsewhere(says: Says, store: ServiceStore) -> None:
    assert sorted(says(ELSEWHERE).split("\n")) == ["", "item 1", "item 2", "item 3"]
    assert has(store, "import") is None


@contextmanager
def _serving(program: str, env: dict[str, str], folder: Path) -> Iterator[Program]:
    """A program that has its lock."""
    with _running([sys.executable, "-c", GIVEN + program], env, folder) as running:
        wait_until(lambda: running.said == "serving\n", what="the lock")
        yield running


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("leader", AS_LONG_AS_IT_LIVES),
        ("work", SIGTERM + THREADS),
        ("work", SIGTERM + ASYNC),
    ],
    ids=["as-long-as-it-lives", "with", "async-with"],
)
def test_sigterm_releases_the_lock(
    name: str, program: str, env: dict[str, str], store: ServiceStore, tmp_path: Path
) -> None:
    with _serving(program, env, tmp_path) as process:
        assert has(store, name) is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert has(store, name) is None
        assert process.said == "serving\n"


def test_a_replaced_leader_ends(env: dict[str, str], store: ServiceStore, tmp_path: Path) -> None:
    with _serving(AS_LONG_AS_IT_LIVES, env, tmp_path) as process:
        remove(store, "leader")
        assert process.wait(60) == 143
        assert "was removed" in process.said
