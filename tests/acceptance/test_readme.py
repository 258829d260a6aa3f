"""README.md and docs/start.md: their programs, as they stand, in a directory of their own."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from lockclient import Settings
from lockclient.cli.setup.processes import end
from lockclient.model.clocks import Deadline
from lockclient.stores.service_protocol import ServiceStore
from tests.support.documents import codes, text
from tests.support.processes import wait_until
from tests.support.terminal import environment

README = text("../README.md")
PROGRAMS = codes("start.md", "python")

QUICKER = """
import asyncio, time

def quicker(sleep):
    return lambda seconds, *rest: sleep(seconds / 5, *rest)

time.sleep, asyncio.sleep = quicker(time.sleep), quicker(asyncio.sleep)
"""


def test_the_readme_is_short_and_has_the_first_program() -> None:
    assert len(README) <= 9000
    assert PROGRAMS[0] in README


def test_the_first_programs(settings: Settings, store: ServiceStore, tmp_path: Path) -> None:
    """One has the lock, the other waits for it, and has it after that.

    They sleep a fifth of what they say, but are otherwise as they stand.
    """
    (tmp_path / "sitecustomize.py").write_text(QUICKER)
    with ExitStack() as running:

        def start(number: int, name: str) -> subprocess.Popen[bytes]:
            (tmp_path / name).write_text(PROGRAMS[number])
            with (tmp_path / f"{name}.log").open("wb") as log:
                program = subprocess.Popen(
                    [sys.executable, "-u", name],
                    cwd=tmp_path,
                    env=environment(settings, PYTHONPATH=str(tmp_path)),
                    stdout=log,
                    stderr=log,
                )
            running.callback(end, program)
            return program

        def said(name: str) -> str:
            return (tmp_path / f"{name}.log").read_text()

        first = start(0, "report.py")
        wait_until(lambda: "step 0" in said("report.py"), what="the first step")
        second = start(1, "report_async.py")
        wait_until(lambda: len(store.names("", 9, Deadline.after(20))) == 1, what="the lock")
        assert first.wait(180) == 0, said("report.py")
        assert said("report.py").endswith("step 29\nreleased\n")
        wait_until(lambda: "step 0" in said("report_async.py"), what="the next one's first step")
        assert "released" not in said("report_async.py")
        assert second.wait(180) == 0, said("report_async.py")
        assert said("report_async.py").startswith("I have the lock, with uuid ")


def test_the_held_lock(settings: Settings, store: ServiceStore, tmp_path: Path) -> None:
    """The third one, of which the text tells what its block does."""
    subprocess.run(
        [sys.executable, "-c", PROGRAMS[2]], cwd=tmp_path, env=environment(settings), check=True
    )
    assert store.names("", 9, Deadline.after(20)) == []
