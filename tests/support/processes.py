"""Real programs for the tests: services, and waiting for their effects."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from lockclient.cli.setup.spawn import end, spawn
from tests.support.machine_needs import find

T = TypeVar("T")
Figure = Callable[[str], None]
"""Takes a sentence with a measured figure, to be shown at the end of the run (fixture `figure`)."""

BIN = Path(sys.executable).parent


def wait_until(condition: Callable[[], T | None], timeout: float = 90, what: str = "") -> T:
    """Return the condition's value as soon as it is true; fail after `timeout` seconds."""
    until = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout} s in vain for {what or condition}")
        time.sleep(0.02)


def run_to_end(
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    typed: str = "",
    folder: Path | None = None,
    status: int | None = 0,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and see that it ends with `status`; None: with any."""
    done = subprocess.run(
        words,
        env={**os.environ, **(env or {})},
        input=typed,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
        start_new_session=True,
    )
    assert status in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return done


def line_from(process: subprocess.Popen[str]) -> str:
    """Wait for a program's next line and return it, without its end."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def tell(process: subprocess.Popen[str], line: object = "") -> None:
    """Write a line to a program."""
    print(line, file=process.stdin, flush=True)


def needed(name: str) -> str:
    """Return the path of something that `machine_needs.py` lists; without it, leave the test out.

    At the top of a module, all that is in the module.
    """
    found = find(name)
    if found is None:
        pytest.skip(f"no {name}", allow_module_level=True)
    return found


class Service:
    """A running program of ours; a context manager that ends it."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        number, name = tempfile.mkstemp(prefix="service-", suffix=".log")
        self._log = Path(name)
        program = BIN / command[0]
        words = [str(program) if program.exists() else command[0], *command[1:]]
        self.process: subprocess.Popen[bytes] = spawn(
            words, output=number, env={**os.environ, **(env or {})}
        )
        os.close(number)

    @property
    def url(self) -> str:
        """The address it says it listens on, once it has said so."""
        return wait_until(self._said_url, what=f"the URL in the log:\n{self.log_text()}")

    def _said_url(self) -> str | None:
        if self.process.poll() is not None:
            raise AssertionError(f"it ended with {self.process.returncode}:\n{self.log_text()}")
        found = re.search(r"http://[\w.\[\]:-]+", self.log_text())
        return found[0] if found else None

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def terminate(self) -> int:
        return end(self.process)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)
        self._log.unlink()


def start_service(command: list[str], env: dict[str, str] | None = None) -> Service:
    return Service(command, env)
