"""The command started by a program, and in a shell in a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockclient import Settings
from lockclient.model.holder import Holder
from lockclient.stores.mutex_store import MutexStore
from tests.support import locks, terminal
from tests.support.locks import read
from tests.support.processes import BIN, run_to_end, wait_until
from tests.support.terminal import COMMAND

PATIENCE = 30.0


def environment(settings: Settings) -> dict[str, str]:
    """Return what a shell has in which `clustermutex` is installed and told where etcd is."""
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "CLUSTERMUTEX_URL": settings.url(),
        "TERM": "dumb",
    }


def finished(
    words: Sequence[str], env: Mapping[str, str], typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; `clustermutex` unless it is a path or `sh`."""
    return run_to_end(*_program(words), env=env, typed=typed, status=None)


def _program(words: Sequence[str]) -> list[str]:
    return list(words) if words[0].startswith(("/", "sh")) else [COMMAND, *words]


class Running(subprocess.Popen[str]):
    """A `clustermutex` that runs in a folder; a context manager that ends it.

    It has a process group of its own. What is left of its command at the end is killed by the
    number that the command left in `folder/pid`, if it did.
    """

    def __init__(self, words: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self._folder = folder
        with (folder / "said").open("w") as said:
            super().__init__(
                _program(words),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return (self._folder / "said").read_text()

    def up(self) -> None:
        """Wait until its command has written a line to the file `up`."""
        written(self._folder / "up")

    def ends(self, status: int) -> None:
        try:
            self.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it still runs, and said: {self.said}") from error
        assert self.returncode == status, self.said

    def go(self, status: int = 0) -> None:
        """Let its command see the file `go`, and end."""
        (self._folder / "go").touch()
        self.ends(status)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        left = self._folder / "pid"
        if left.exists() and not gone(int(left.read_text())):
            os.kill(int(left.read_text()), signal.SIGKILL)
        self.communicate(timeout=PATIENCE)  # what still runs has the pipe, too


Start = Callable[..., Running]


def gone(pid: int) -> bool:
    """Tell whether a process has ended; a zombie that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def written(file: Path) -> str:
    """Wait for a line in a file and return the file's text."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), PATIENCE, str(file))
    return file.read_text()


# ---------------------------------------------------------------- what stands in the store


def held(store: MutexStore, name: str) -> Holder:
    """Wait until the lock is held; return its holder."""
    return wait_until(lambda: read(store, name).holder, PATIENCE, f"{name} to be held")


def in_line(store: MutexStore, name: str, number: int = 1) -> None:
    wait_until(lambda: len(read(store, name).waiters) == number, PATIENCE, "the line")


def remove(store: MutexStore, name: str) -> None:
    locks.remove(store, held(store, name), "to see it", "a person")


# ---------------------------------------------------------------- a terminal


class Terminal(terminal.Terminal):
    """A shell in a terminal, as a rule; the end of the terminal is its end."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        super().__init__(words, {**env, "PS1": "ready> "}, folder)
        self._looked = 0
        self._open = True

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until this is shown, after what was waited for last."""
        until = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.raw[self._looked :])):
            assert time.monotonic() < until, f"{pattern!r} is not shown:\n{self.raw}"
            time.sleep(0.02)
        self._looked += found.end()
        return found

    def runs(self, line: str) -> None:
        self.enter(f"{line}\n")
        self.shows("up\r+\n")

    def hang_up(self) -> None:
        if self._open:
            self._open = False
            os.close(self._master)

    def __exit__(self, *_: object) -> None:
        self.hang_up()  # the shell ends, and all that runs in it
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
