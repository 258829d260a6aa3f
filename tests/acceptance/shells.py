"""The command as people meet it: started by a program, and in a shell in a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lockclient import Settings
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.requests import Read, Remove
from tests.support import terminal
from tests.support.processes import BIN, wait_until
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
    words: Sequence[str], env: Mapping[str, str], typed: str = "", timeout: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; `clustermutex` unless it is a path or `sh`."""
    program = list(words) if words[0].startswith(("/", "sh")) else [COMMAND, *words]
    return subprocess.run(
        program, env=env, input=typed, capture_output=True, text=True, timeout=timeout
    )


@contextmanager
def running(
    words: Sequence[str], env: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[str]]:
    """A `clustermutex` that runs; what it says on stderr is in `folder/said`.

    It has a process group of its own. What is left of its command at the end is killed by the
    number that the command left in `folder/pid`, if it did.
    """
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [COMMAND, *words],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        left = folder / "pid"
        if left.exists() and not gone(int(left.read_text())):
            os.kill(int(left.read_text()), signal.SIGKILL)
        process.communicate(timeout=PATIENCE)  # what still runs has the pipe, too


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


# ---------------------------------------------------------------- what stands in etcd


def seen(store: EtcdStore, name: str) -> ReadResult:
    """Return what stands in etcd for a lock."""
    answer = store.ask(Read(name, waiters=True), Deadline.after(10))
    assert isinstance(answer, ReadResult)
    return answer


def holder_of(store: EtcdStore, name: str) -> Holder | None:
    """Return who holds a lock."""
    return seen(store, name).holder


def held(store: EtcdStore, name: str) -> Holder:
    """Wait until somebody holds the lock; return who."""
    return wait_until(lambda: holder_of(store, name), PATIENCE, f"{name} to be held")


def in_line(store: EtcdStore, name: str, number: int = 1) -> None:
    """Wait until so many are in line."""
    wait_until(lambda: len(seen(store, name).waiters) == number, PATIENCE, "the line")


def remove(store: EtcdStore, name: str) -> None:
    """Take a lock from its holder, as `force-unlock` does."""
    removal = Removal(held(store, name), time.time(), "a person", "force-unlock", "to see it")
    store.ask(Remove(removal, None), Deadline.after(10))


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

    def hang_up(self) -> None:
        """Close the terminal's window."""
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
