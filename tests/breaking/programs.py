"""The programs of a run, which are killed, frozen and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.proof.history import FileSink, Line

CHECKOUT = Path(__file__).parents[2]
ENDING_S = 60.0
"""Seconds in which a program that is asked to end ends."""


class Notes:
    """The history that the harness itself writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write = FileSink(folder / "harness.history")

    def say(self, what: str, process: str = "", at: float | None = None, **more: Any) -> None:
        """Write a line."""
        self.write(Line(time.monotonic() if at is None else at, process, what, **more))

    @contextmanager
    def trouble(self, process: str = "", what: str = "trouble") -> Iterator[None]:
        """Say, when it is over, that for so long something was broken: for one process, or all."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.say(what, process, began, seconds=time.monotonic() - began)

    def files(self) -> list[Path]:
        """Return all histories."""
        return sorted(self.folder.glob("*.history"))


class Program:
    """One that is killed and frozen; `what` is its history's name for it."""

    def __init__(self, notes: Notes, name: str, words: list[str], env: dict[str, str]) -> None:
        self.name, self.words, self.env, self._notes = name, words, env, notes
        self._number = 0
        self.is_frozen = False
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin it anew: another process, with a name of its own."""
        self._number += 1
        self.what = f"{self.name}-{self._number}"
        with (self._notes.folder / f"{self.what}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._words()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=CHECKOUT,
                env={**os.environ, **self.env},
            )

    def _words(self) -> list[str]:
        return self.words

    def kill(self) -> None:
        """End it where it stands."""
        assert self.process is not None
        self._notes.say("killed", self.what)
        self.process.kill()
        self.process.wait()

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill it; another one begins at the end of the block."""
        self.kill()
        yield
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop it where it stands."""
        assert self.process is not None
        self.is_frozen = True
        with self._notes.trouble(self.what, "frozen"):
            self.process.send_signal(signal.SIGSTOP)
            yield
            self.process.send_signal(signal.SIGCONT)
        self.is_frozen = False


class Worker(Program):
    """A client: see `tests/breaking/worker.py`."""

    def __init__(self, notes: Notes, name: str, env: dict[str, str], **said: Any) -> None:
        super().__init__(notes, name, [], env)
        self.said = said

    @property
    def file(self) -> Path:
        """Its history."""
        return self._notes.folder / f"{self.what}.history"

    def _words(self) -> list[str]:
        said = {**self.said, "name": self.what, "file": str(self.file)}
        return ["-m", "tests.breaking.worker", json.dumps(said)]

    def can_end(self) -> bool:
        """Return whether it runs, and has begun its first call."""
        runs = self.process is not None and self.process.poll() is None and not self.is_frozen
        return runs and self.file.exists() and self.file.stat().st_size > 0

    @contextmanager
    def ended(self, look: Callable[[str], object]) -> Iterator[None]:
        """End it normally, and look what it has left; another one begins at the end of the block.

        Raises:
            AssertionError: it does not end, or not normally.
        """
        assert self.process is not None
        began = time.monotonic()
        self.process.terminate()
        status = self.process.wait(ENDING_S)
        self._notes.say("ended", self.what, seconds=time.monotonic() - began)
        log = self.file.with_suffix(".log")
        assert status == 0, f"{self.what} ended with {status}: {log.read_text()[-2000:]}"
        look(self.what)
        yield
        self.start()

    def done(self) -> bool:
        """Tell whether all its calls have ended.

        Raises:
            AssertionError: it has ended, which it never does by itself.
        """
        assert self.process is not None
        ended = self.process.poll()
        log = self.file.with_suffix(".log")
        assert ended is None, f"{self.what} ended with {ended}: {log.read_text()[-2000:]}"
        return Path(f"{self.file}.done").exists()
