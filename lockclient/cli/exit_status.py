"""Exit statuses: the numbers that the command can end with (see docs/command.md)."""

from __future__ import annotations

import errno
from typing import Final

from lockclient import errors

OK = 0
FAILED = 1
"""It could not be done."""
USAGE = 2
"""The command line is wrong."""
UNAVAILABLE = 69
"""The store does not answer, or refuses, or NAME can't be a lock's (EX_UNAVAILABLE)."""
INTERNAL = 70
"""A mistake of this program (EX_SOFTWARE)."""
ENVIRONMENT = 71
"""The system gives no thread, process, memory, file descriptor or home directory (EX_OSERR)."""
OUTPUT = 74
"""The output can't be written: a full disk, a closed stdout (EX_IOERR)."""
CONFLICT = 75
"""Somebody else has the lock (EX_TEMPFAIL)."""
LOST = 76
"""The lock was lost, or is not that holder's any more."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""The command of `run` can't be executed, or was not found, as a shell says it."""
SIGNALLED = 128
"""Added to the number of the signal that ended it."""
INTERRUPTED = 130
"""Ctrl-C."""

NO_MEMORY: Final = "no memory (ulimit -v, a container's limit)"
NO_DESCRIPTOR: Final = "no file descriptor (ulimit -n)"
SYSTEM_LIMITS: Final = {
    errno.EMFILE: NO_DESCRIPTOR,
    errno.ENFILE: NO_DESCRIPTOR,
    errno.ENOMEM: NO_MEMORY,
    errno.EAGAIN: "no process (ulimit -u, a container's pids limit)",
}
"""By `errno`, what the system does not give, and which limit may be the reason."""

_STATUSES = (
    (errors.LockTimeout, CONFLICT),
    (errors.LockLost, LOST),
    (errors.StoreUnavailable, UNAVAILABLE),
    (errors.StoreError, UNAVAILABLE),
    (errors.InvalidLockName, USAGE),
    (errors.ClusterMutexError, FAILED),
)


def status_of_error(error: Exception) -> int:
    """Return the status for an error, of the library or of click."""
    from lockclient.stores.common.background import NoThread  # not for `--help` and completion

    if isinstance(error, NoThread):
        return ENVIRONMENT
    other: int = getattr(error, "exit_code", INTERNAL)
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), other)
