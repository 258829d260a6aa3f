"""`clustermutex force-unlock`: a person takes a lock from its holder, knowing from whom."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import sys
import time

import click

from lockclient import unlocking
from lockclient.cli.common import PATIENCE, LockName, opened, store_options
from lockclient.cli.show import lines, look_at
from lockclient.record import Holder
from lockclient.settings import Settings
from lockclient.shown import plain
from lockclient.store import Seen
from lockclient.timing import Deadline


@click.command("force-unlock")
@click.argument("name", type=LockName())
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is kept for seven days.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--uuid",
    metavar="UUID",
    help="Only if this is the holder: for scripts that decided by what `ls --json` said.",
)
@store_options
def force_unlock(settings: Settings, name: str, reason: str, yes: bool, uuid: str | None) -> None:
    """Take a lock from its holder, after showing who that is.

    The holder that was shown loses the lock, nobody else: if it changed hands meanwhile, nothing
    is removed. Who did it, when and why is recorded (`clustermutex removed`), and the holder is
    told so. A holder that still runs can go on working until it looks: be sure that it is dead,
    or that what it works on refuses its fencing token.

    Exit status 1: the lock was not removed, because nobody holds it, or somebody else does, or
    the answer was no.
    """
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why the lock is taken from its holder.")
    if not yes and not (sys.stdin and sys.stdin.isatty()):
        raise click.UsageError("There is no terminal to ask on: add --yes if you are sure.")
    # The one thing that the library logs here stands nowhere else: an etcd that is out of space
    # takes the lock away, but not the record of it.
    logging.getLogger("lockclient.etcd.store").addHandler(logging.StreamHandler())
    with opened(settings) as store:
        seen = look_at(store, name)
        holder = _removable(seen, name, uuid)
        if not yes:
            _ask(seen, holder)
        try:
            unlocking.force_unlock(
                store, name, str(holder.uuid), person(), reason, Deadline.after(PATIENCE)
            )
        except unlocking.Changed as error:
            raise click.ClickException(f"{error} Look again with `clustermutex show`.") from error
    waiting = len(seen.waiters)
    click.echo(
        f"Removed: {plain(name)} is not held by {plain(holder.describe())} any more."
        + (f" {waiting} waited for it: the first of them gets it." if waiting else "")
    )


def _removable(seen: Seen, name: str, uuid: str | None) -> Holder:
    holder = seen.holder
    if holder is None:
        raise click.ClickException(
            f"Nobody holds the lock {name!r}, so there is nothing to remove."
        )
    if holder.uuid is None:
        raise click.ClickException(
            f"The lock {name!r} has keys but no uuid, so nobody holds it and anybody can take it. "
            "If that was not meant, delete its keys with etcdctl (docs/protocol.md says which)."
        )
    if uuid not in (None, holder.uuid):
        raise click.ClickException(
            f"The lock {name!r} is not held by {uuid!r} but by {holder.uuid} "
            f"({holder.describe()}): nothing was removed."
        )
    return holder


def _ask(seen: Seen, holder: Holder) -> None:
    for line in lines(holder, seen.waiters, time.time()):
        click.echo(line)
    click.echo()
    question = f"Take the lock from {plain(holder.describe())}?"
    if not click.confirm(question, default=False):
        raise click.ClickException("The answer was no: nothing was removed.")


def person() -> str:
    """Return who acts, as far as this machine knows: the user behind sudo, and the host."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
