"""Errors of `run`, `lock`, `alive` and `unlock`: each is one line on stderr and an exit status."""

from __future__ import annotations

from contextlib import suppress

import click

from lockclient.cli.exit_status import LOST, UNAVAILABLE
from lockclient.cli.output import print_error
from lockclient.errors import InvalidLockName
from lockclient.model.lock_name import check_name
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


def checked_name(name: str) -> str:
    """Return a lock's name; a bad one has the status of a lock that can't be had."""
    try:
        return check_name(name)
    except InvalidLockName as error:
        raise Failure(str(error), UNAVAILABLE) from error


def not_held(name: str, uuid: str, holder: str | None, removal: Removal | None) -> Failure:
    """Return the failure of a lock that this uuid does not hold."""
    how = f" It was removed: {removal.describe()}." if removal else ""
    now = f" It is now held by {holder}." if holder else " Nobody holds it now."
    return Failure(
        f"The lock {name!r} is not held by {uuid}.{how}{now} Stop the work that it protects.", LOST
    )
