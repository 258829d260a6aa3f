"""docs/recipes.md and docs/runbook.md: what stands there in Python, run as it stands."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.processes import end
from lockclient.stores.service_protocol import ServiceStore
from tests.acceptance.shells import environment, remove
from tests.support.documents import codes
from tests.support.locks import has
from tests.support.processes import run_to_end, wait_until

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


TRY, JOB, SEVERAL, AS_LONG_AS_IT_LIVES, ELSEWHERE = codes("recipes.md", "python")
(SIGTERM,) = codes("runbook.md", "python")


def _done(program: str, settings: Settings) -> str:
    done = run_to_end(sys.executable, "-c", GIVEN + program, env=environment(settings))
    return done.stdout + done.stderr


def test_try(settings: Settings, store: ServiceStore) -> None:
    assert _done(TRY, settings) == "item 1\nitem 2\nitem 3\n"
    with ClusterMutex("nightly-report", store=store, reason="by hand"):
        said = _done(TRY, settings)
    assert said.startswith("somebody else is at it: ")
    assert "by hand" in said


def test_a_job_runs_or_is_skipped(settings: Settings, store: ServiceStore) -> None:
    ran = "Running report with the lock 'nightly-report'.\n"
    assert _done(JOB, settings) == f"item 1\nitem 2\nitem 3\n{ran}"
    with ClusterMutex("nightly-report", store=store, reason="by hand") as held:
        said = _done(JOB, settings)
        assert held.record.describe() in said
    assert said.startswith("Skipping report: The lock 'nightly-report' is not free.")
    assert "item" not in said


def test_several_are_taken_in_one_order(settings: Settings, store: ServiceStore) -> None:
    """Who waits for the second has the first; and a wait that is over leaves none."""
    said = "moving 5 from bob to ann\n"
    assert _done(SEVERAL, settings) == said
    with ClusterMutex("account/bob", store=store):
        waiting = SEVERAL.replace('"10s"', '"1s"').replace("move(5", "try:\n    move(5")
        seen = "except TimeoutError as error:\n    print(error.name)\n"
        assert _done(waiting + seen, settings) == "account/bob\n"
        assert has(store, "account/ann") is None
    assert _done(SEVERAL, settings) == said


def test_released_elsewhere(settings: Settings, store: ServiceStore) -> None:
    assert sorted(_done(ELSEWHERE, settings).split("\n")) == ["", "item 1", "item 2", "item 3"]
    assert has(store, "import") is None


@contextmanager
def _serving(
    program: str, settings: Settings, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A program that has its lock, and the file of what it says."""
    said = folder / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", GIVEN + program],
            env=environment(settings),
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: said.read_text() == "serving\n", what="the lock")
        yield process, said
    finally:
        end(process)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("leader", AS_LONG_AS_IT_LIVES),
        ("work", SIGTERM + THREADS),
        ("work", SIGTERM + ASYNC),
    ],
    ids=["as-long-as-it-lives", "with", "async-with"],
)
def test_sigterm_gives_it_back(
    name: str, program: str, settings: Settings, store: ServiceStore, tmp_path: Path
) -> None:
    with _serving(program, settings, tmp_path) as (process, said):
        assert has(store, name) is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert has(store, name) is None
        assert said.read_text() == "serving\n"


def test_a_leader_that_was_replaced_ends(
    settings: Settings, store: ServiceStore, tmp_path: Path
) -> None:
    with _serving(AS_LONG_AS_IT_LIVES, settings, tmp_path) as (process, said):
        remove(store, "leader")
        assert process.wait(60) == 143
        assert "was removed" in said.read_text()
