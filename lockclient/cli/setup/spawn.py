"""Child processes that live no longer than the program that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

_BOUND_TO_PARENT = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
# Linux: get SIGTERM when the parent dies. It may have died before this line: then no signal comes,
# so check.
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
os.execvp(command[0], command)
"""


def spawn(
    command: list[str],
    *,
    output: IO[bytes] | int = subprocess.DEVNULL,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that gets SIGTERM when this one ends, even by SIGKILL (on Linux).

    It has a session of its own: Ctrl-C in the terminal reaches only this process, which ends its
    programs in the right order.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-c", _BOUND_TO_PARENT, str(os.getpid()), *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], patience: float = 10.0) -> int:
    """End a program by SIGTERM, after `patience` seconds by SIGKILL; return its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
