"""The command's entry: runs the command line and prints errors.

An error is one line on stderr that says what happened and what to do; `--debug` shows the
traceback before it.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Any

from lockclient.cli.exit_status import (
    ENVIRONMENT,
    INTERNAL,
    INTERRUPTED,
    NO_MEMORY,
    OUTPUT,
    SYSTEM_LIMITS,
    status_of_error,
)
from lockclient.errors import ClusterMutexError
from lockclient.service.missing_extras import needing_services
from lockclient.text.escaping import plain, trace_of, without_secrets
from lockclient.text.log_format import log_uncaught

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EAGAIN)
"""`errno` of a write to stdout that fails. (click ends the command by itself on EPIPE.)"""


class _ClosedOutput(io.TextIOBase):
    """Stands for a stdout that was closed at the start, where Python has None."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def main() -> None:
    """Run the command line."""
    try:
        _run()
    except KeyboardInterrupt:  # before or after click, which has an answer of its own
        sys.exit(INTERRUPTED)


def _run() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a locale can't write is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    log_uncaught()
    # An error is one line: the library's log of an outage must not be printed as well.
    logging.getLogger("lockclient").addHandler(logging.NullHandler())
    with needing_services("clustermutex"):
        from lockclient.cli.root_command import group

        if "_CLUSTERMUTEX_COMPLETE" in os.environ:
            import lockclient.cli.setup.completion  # noqa: F401 - it gives click its class for bash

        given: dict[str, bool] = {}
        try:
            status: Any = group(prog_name="clustermutex", standalone_mode=False, obj=given)
        except Exception as error:  # noqa: BLE001 - all errors are printed here
            status = _print_error(error, debug="debug" in given)
    sys.exit(status if isinstance(status, int) else 0)


def _print_error(error: Exception, *, debug: bool) -> int:
    """Print an error and return the exit status."""
    import click

    from lockclient.cli.output import print_error

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, ModuleNotFoundError):
        raise error
    if debug:
        click.echo(trace_of(error), err=True)
    if isinstance(error, click.Abort):
        click.echo(err=True)
        return INTERRUPTED
    text, status = _sentence(error)
    color = False if os.environ.get("NO_COLOR") else None
    print_error(f"clustermutex: {' '.join(text.split())}", fg="red", color=color)
    return status


def _sentence(error: Exception) -> tuple[str, int]:
    import click

    if isinstance(error, click.ClickException):
        text, advice = error.format_message(), ""
        if isinstance(error, click.UsageError):
            text = without_secrets(text, given=True)
            if error.ctx is not None:
                advice = f" See {error.ctx.command_path} --help."
        return plain(text, block=True) + advice, error.exit_code
    if isinstance(error, ClusterMutexError):
        return str(error), status_of_error(error)
    if isinstance(error, MemoryError):
        return f"The system gives {NO_MEMORY}.", ENVIRONMENT
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "The system gives no thread (ulimit -u, a container's pids limit).", ENVIRONMENT
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "This user has no home directory: set HOME (or, for `up`, give --data).", ENVIRONMENT
    if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
        sys.stdout = None  # else Python writes the rest again at its end
        return f"The output can't be written: {error.strerror}.", OUTPUT
    if isinstance(error, OSError) and error.errno in SYSTEM_LIMITS:
        return f"The system gives {SYSTEM_LIMITS[error.errno]}.", ENVIRONMENT
    what = plain(without_secrets(f"{type(error).__name__}: {error}"), block=True)
    return f"Something went wrong in this program: {what}. Add --debug for where.", INTERNAL
