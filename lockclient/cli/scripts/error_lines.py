"""Errors of `run`, `lock`, `alive` and `unlock`: each is one line on stderr and an exit status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from lockclient.cli.exit_status import CONFLICT, LOST, status_of_error
from lockclient.cli.output import print_error
from lockclient.errors import ClusterMutexError, InvalidLockName, LockLost, LockTimeout
from lockclient.model.removal import Removal
from lockclient.text.escaping import plain


def print_message(text: str) -> None:
    """Print a line for the user on stderr."""
    with suppress(OSError):  # stderr is closed: the command must still be supervised
        print_error(f"clustermutex: {plain(text)}")


class Failure(click.ClickException):
    """Ends the command with this message and exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(plain(message))
        vars(self)["exit_code"] = status  # which click has for each class


@contextmanager
def errors_as_statuses() -> Iterator[None]:
    """Turn the library's errors into exit statuses, each with one line."""
    try:
        yield
    except LockTimeout as error:
        raise Failure(str(error), CONFLICT) from error
    except LockLost as error:
        raise Failure(str(error), LOST) from error
    except (InvalidLockName, ClusterMutexError) as error:
        raise Failure(str(error), status_of_error(error)) from error
    except ValueError as error:  # as the library names them, but for how they are spelled here
        raise click.UsageError(re.sub(r"\b(\w+_\w+)\b", _as_option, str(error))) from error


def _as_option(found: re.Match[str]) -> str:
    name = found[0]
    known = ("expected_runtime", "auto_unlock_after")
    return f"--{name.replace('_', '-')}" if name in known else name


def not_held(name: str, uuid: str, holder: str | None, removal: Removal | None) -> Failure:
    """Return the failure of a lock that this uuid does not hold."""
    how = f" It was removed: {removal.describe()}." if removal else ""
    now = f" It is now held by {holder}." if holder else " Nobody holds it now."
    return Failure(
        f"The lock {name!r} is not held by {uuid}.{how}{now} Stop the work that it protects.", LOST
    )
