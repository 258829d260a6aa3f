"""Copies a command's output to our own and counts it as a heartbeat (`--alive output`)."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

_CHUNK_BYTES = 64 * 1024
_DRAIN_TIMEOUT_S = 0.1
"""Seconds for data that was written to a pseudo-terminal to become readable."""


class Relay:
    """Copies a command's stdout and stderr to our own.

    Each passes a pipe, or, if ours is a terminal, a pseudo-terminal of the same size, so that the
    command prints the same as without `run`. If both are the same file, they share one, so that the
    order of the output stays.

    Args:
        printed: called, in a thread, after each piece of output.
    """

    def __init__(self, printed: Callable[[], object]) -> None:
        self._printed = printed
        self._ended, self._end = os.pipe()
        self.files: dict[int, int] = {}
        """The command's own stdout and stderr, by the numbers that it has for them."""
        self._threads: list[threading.Thread] = []
        for fd in (1, 2):
            if fd == 2 and os.path.samestat(os.fstat(1), os.fstat(2)):
                self.files[2] = self.files[1]
                continue
            source, self.files[fd] = _terminal(fd) if os.isatty(fd) else os.pipe()
            self._threads.append(
                threading.Thread(target=self._pass_on, args=(source, fd), daemon=True)
            )

    def start(self) -> None:
        """Start the threads; the command has its ends of the pipes by now."""
        for fd in set(self.files.values()):
            os.close(fd)
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Copy the rest of the output after the command's end.

        Does not wait for processes that the command left running. Blocks while no process reads our
        output.
        """
        os.close(self._end)
        for thread in self._threads:
            thread.join()

    def _pass_on(self, source: int, target: int) -> None:
        with suppress(OSError):  # EIO: the other end of a pseudo-terminal is closed
            while True:
                ready, _, _ = select.select([source, self._ended], [], [])
                if source not in ready:
                    ready, _, _ = select.select([source], [], [], _DRAIN_TIMEOUT_S)
                data = os.read(source, _CHUNK_BYTES) if source in ready else b""
                if not data:
                    break
                self._printed()
                _write(target, data)
        os.close(source)  # the command's next write fails, as ours did


def _write(target: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(target, data) :]
        except BlockingIOError:  # a process that shares it made it non-blocking
            select.select([], [target], [])


def _terminal(fd: int) -> tuple[int, int]:
    """Return both ends of a pseudo-terminal of the size of the terminal `fd`."""
    import fcntl
    import termios
    import tty

    ours, theirs = os.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[tty.OFLAG] &= ~termios.OPOST  # the real one does that
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    size = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))  # struct winsize: four shorts
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs
