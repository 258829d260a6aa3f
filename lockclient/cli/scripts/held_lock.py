"""What `alive` and `unlock` share: which lock is meant, and that it is not held any more."""

from __future__ import annotations

import click

from lockclient.cli.exit_status import LOST
from lockclient.cli.options import combined, store_options
from lockclient.cli.scripts.errors import Failure
from lockclient.cli.scripts.lock_options import AnyLockName
from lockclient.model.removal import Removal

held_lock_arguments = combined(
    store_options,
    click.argument("name", type=AnyLockName(), envvar="CLUSTERMUTEX_NAME"),
    click.option(
        "--uuid",
        envvar="CLUSTERMUTEX_UUID",
        show_envvar=True,
        required=True,
        help="What `lock` printed.",
    ),
)
"""The name and the uuid of a lock that is held, from the environment where not given."""


def not_held(name: str, uuid: str, holder: str | None, removal: Removal | None) -> Failure:
    """Return the failure of a lock that its uuid does not hold any more."""
    how = f" It was removed: {removal.describe()}." if removal else ""
    now = f" It is now held by {holder}." if holder else " Nobody holds it now."
    return Failure(
        f"The lock {name!r} is not held by {uuid}.{how}{now} Stop the work that it protects.", LOST
    )
