"""Programs of ours as a person runs them: with pipes, or in their own terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

from lockclient.cli import main
from lockclient.cli.setup.spawn import end
from lockclient.stores import registry
from lockclient.stores.settings import Settings
from lockclient.testing.memory_store import MemoryStore
from tests.support.processes import BIN, wait_until

_OF_TERMINALS = ("NO_COLOR", "COLUMNS", "LINES")
COMMAND = str(BIN / "clustermutex")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()=>].?")


def environment(settings: Settings, **more: str) -> dict[str, str]:
    """Return the environment that leads a command to a store."""
    location, of = settings.location, "ETCDCTL" if settings.url().startswith("etcd") else "VALKEY"
    user = {f"{of}_{what.upper()}": getattr(location, what, None) for what in ("user", "password")}
    return {
        **{key: value for key, value in os.environ.items() if key not in _OF_TERMINALS},
        "CLUSTERMUTEX_URL": settings.url(),
        "TERM": "xterm-256color",
        **{key: value for key, value in user.items() if value},
        **more,
    }


def piped(
    settings: Settings, *words: str, status: int | None = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command with pipes and see that it ends with `status`; None: with any."""
    done = subprocess.run(
        [COMMAND, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(settings, **more),
    )
    assert status in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return done


class _Keyboard(io.StringIO):
    """The input of a terminal: what a person types."""

    def isatty(self) -> bool:
        return True


class _Screen(io.TextIOWrapper):
    """The output of a terminal."""

    def isatty(self) -> bool:
        return True


def called(
    where: Settings | MemoryStore,
    *words: str,
    status: int | None = 0,
    columns: int = 0,
    typed: str = "",
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run the command within this process, which takes a fraction of a process's time.

    Not for a command that has children, signals or imports to prove.

    Args:
        where: a store in memory is opened whatever the URL.
        status: that it must end with; None: any.
        columns: of a terminal, where a person types `typed`; 0: there is none.
        more: environment variables.
    """
    screen = _Screen if columns else io.TextIOWrapper
    output, errors = (screen(io.BytesIO(), encoding="utf-8") for _ in range(2))
    keys = _Keyboard(typed) if columns else io.StringIO(typed)
    if columns:
        more = {"COLUMNS": str(columns), **more}
    ended, settings = 0, where if isinstance(where, Settings) else Settings()
    with (
        patch.object(registry, "open_at", lambda *_: where.another())
        if isinstance(where, MemoryStore)
        else nullcontext(),
        patch.dict(os.environ, environment(settings, **more), clear=True),
        patch.multiple(sys, argv=[COMMAND, *words], stdin=keys, excepthook=sys.excepthook),
        patch.multiple(sys, stdout=output, stderr=errors),
        patch.object(threading, "excepthook", threading.excepthook),
        _signals_as_before(),
    ):
        try:
            main()
        except SystemExit as end_:
            ended = int(end_.code or 0)
    texts = []
    for stream in (output, errors):
        stream.seek(0)
        texts.append(stream.read())
    assert status in (None, ended), (ended, *texts)
    return subprocess.CompletedProcess([COMMAND, *words], ended, *texts)


@contextmanager
def _signals_as_before() -> Iterator[None]:
    mask, handler = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def shown(done: subprocess.CompletedProcess[str]) -> str:
    """Return what was printed, without escape sequences."""
    return _ESCAPES.sub("", done.stdout)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of an error, having seen that it is all there is."""
    assert done.stdout == ""
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.rstrip("\n")


Opened = TypeVar("Opened", bound="Terminal")


class Terminal:
    """A program in a pseudo-terminal of its own; a context manager that ends it.

    Args:
        words: the program.
        env: its environment.
        folder: where it runs; None: here.
    """

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        folder: Path | None = None,
        *,
        columns: int = 120,
        rows: int = 30,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # A session of its own with this as its terminal, so that Ctrl-C is a signal there.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(env),
            cwd=folder,
        )
        os.close(slave)
        self._said = b""

    @property
    def raw(self) -> str:
        """All that it wrote so far, escape sequences and all."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                said = os.read(self._master, 65536)
            except OSError:  # Linux says so when nobody holds the other end any more
                break
            if not said:
                break
            self._said += said
        return self._said.decode(errors="replace")

    @property
    def text(self) -> str:
        """The same without escape sequences, as lines."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text, 60, f"{text!r} in {self.text!r}")

    def enter(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def ended(self) -> int:
        # Reading on: who writes into a full terminal does not end.
        wait_until(lambda: (self.raw or True) and self.process.poll() is not None, what="its end")
        return self.process.returncode

    def interrupt(self) -> int:
        self.enter("\x03")
        return self.ended()

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)
        os.close(self._master)


def in_terminal(settings: Settings, *words: str, columns: int = 120, **more: str) -> Terminal:
    return Terminal([COMMAND, *words], environment(settings, **more), columns=columns)
