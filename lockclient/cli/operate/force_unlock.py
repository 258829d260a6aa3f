"""`clustermutex force-unlock`: a person takes a lock from its holder, knowing from whom."""

from __future__ import annotations

import getpass
import os
import socket
import time

import click

from lockclient.cli.operate.show import deadlock_of, lock_lines, read_lock
from lockclient.cli.options import LockName, Uuid, hex_option, store_options
from lockclient.cli.output import can_ask, confirm, require_consent
from lockclient.cli.store_access import ANSWER_TIMEOUT_S, opened_store, suggestion_for
from lockclient.errors import StoreFull
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.retention import RECORD_RETENTION
from lockclient.overview import force_unlock_request as forcing
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from lockclient.text.escaping import ascii_json, plain, shown_name


@click.command("force-unlock")
@click.argument("name", type=LockName())
@click.option(
    "--reason",
    metavar="TEXT",
    help=f"Why; it is kept for {RECORD_RETENTION}. On a terminal it is asked for if it is not "
    "given.",
)
@click.option(
    "--yes",
    count=True,
    help="Do not ask. Given twice: not even about a removal that leaves no record.",
)
@click.option(
    "--uuid",
    type=Uuid(),
    metavar="UUID",
    help="Only if this is the holder: for scripts that decided by what `ls --json` said.",
)
@hex_option
@store_options
def force_unlock(
    settings: Settings, name: str, reason: str | None, yes: int, uuid: str | None
) -> None:
    """Take a lock from its holder, after showing who that is.

    Only the holder that was shown can lose the lock: if it changed hands meanwhile, nothing is
    removed. A record keeps who removed it, when and why (`clustermutex removed`), and the holder's
    error names them. A holder that still runs can keep working until it notices the loss: be
    sure that it is dead, or that the resource refuses its fencing token. If the store has no space
    for the record, the command asks a second time, and prints the record to stderr.

    Exit status 1: the lock was not removed, because nobody holds it, or somebody else does, or
    the answer was no.
    """
    if not (reason or "").strip() and (reason is not None or not can_ask()):
        what = "missing" if reason is None else "empty"
        raise click.UsageError(f"--reason is {what}: say why the lock is taken from its holder.")
    require_consent(yes)
    with opened_store(settings) as store:
        seen = read_lock(store, name)
        holder = _removable(store, seen, name, uuid)
        if not yes:
            _show(store, seen, holder)
            confirm(f"Take the lock from {plain(holder.describe())}?", "nothing was removed")
        why = reason or _ask_why()
        try:
            _unlock(store, holder, why, yes)
        except forcing.Changed as error:
            raise click.ClickException(f"{error} Look again with `clustermutex show`.") from error
    waiting = len(seen.waiters)
    click.echo(
        f"Removed: {shown_name(name)} was held by {plain(holder.describe())}."
        + (f" {waiting} waited for it: the first of them gets it." if waiting else "")
    )


def _unlock(store: ServiceStore, holder: Holder, reason: str, yes: int) -> None:
    def attempt(*, unrecorded: bool) -> Removal:
        deadline, uuid = Deadline.after(ANSWER_TIMEOUT_S), str(holder.uuid)
        return forcing.force_unlock(
            store, holder.name, uuid, person(), reason, deadline, unrecorded=unrecorded
        )

    try:
        attempt(unrecorded=False)
    except StoreFull:  # deletions still work
        _ask_again(yes)
        removal = attempt(unrecorded=True)
        click.echo(
            f"The record, which stands nowhere else: {ascii_json(removal.written())}", err=True
        )


def _ask_again(yes: int) -> None:
    """Ask whether to remove the lock without a record, unless `--yes` was given twice."""
    if yes >= 2:
        return
    if not can_ask():
        raise click.ClickException(
            f"Nothing was removed: {forcing.NO_RECORD} For that, give --yes a second time."
        )
    click.echo(f"Beware: {forcing.NO_RECORD}")
    confirm("Take the lock despite that?", "nothing was removed")


def _removable(store: ServiceStore, seen: ReadResult, name: str, uuid: str | None) -> Holder:
    holder = seen.holder
    if holder is None:
        nobody = f"Nobody holds the lock {name!r}, so there is nothing to remove."
        raise click.ClickException(f"{nobody}{suggestion_for(store, name)}")
    if holder.uuid is None:
        raise click.ClickException(
            f"The lock {name!r} has keys but no uuid, so nobody holds it and anybody can take it. "
            "If that was not meant, delete what stands there: docs/protocol.md says which keys "
            "of etcd's that is."
        )
    if uuid not in (None, holder.uuid):
        raise click.ClickException(
            f"The lock {name!r} is not held by {uuid!r} but by {holder.uuid} "
            f"({holder.describe()}): nothing was removed."
        )
    return holder


def _show(store: ServiceStore, seen: ReadResult, holder: Holder) -> None:
    waiters = seen.waiters if store.can.queue else None
    for line in lock_lines(holder, waiters, time.time(), deadlock_of(store, seen)):
        click.echo(line)
    click.echo()


def _ask_why() -> str:
    """Ask for the reason until there is one: a command pasted from a page has none."""
    asked = "Reason, for the former holder and for the record"
    while not (why := str(click.prompt(asked)).strip()):
        pass
    return why


def person() -> str:
    """Return the acting user and host, as this machine knows them (the user behind sudo)."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
