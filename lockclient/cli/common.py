"""What the commands have in common: where the locks are, a lock's name, JSON, `--debug`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lockclient.config import open_store
from lockclient.errors import ClusterMutexError, InvalidLockName
from lockclient.record import check_name
from lockclient.settings import Settings
from lockclient.shown import Listed
from lockclient.store import ServiceStore
from lockclient.table import Table
from lockclient.timing import Deadline

PATIENCE = 5.0
"""Seconds for etcd to answer what a person waits for."""
READING = 60.0
"""Seconds for reading everything: a million keys take their time."""
COMPLETING = 1.0
"""Seconds for etcd to answer a shell that completes a name."""
COMPLETED = 200
"""How many names a shell is given; who has more types on."""


def counted(number: int, what: str) -> str:
    """Write how many there are of something, like `1 lock` and `2 locks`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Session:
    """What all of one run of the command shares, as click's `ctx.obj`."""

    debug: bool = False


def _debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Session).debug = True
        logging.basicConfig(level=logging.DEBUG)


def _settings(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Settings:
    try:
        return Settings.load(value)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_debug,
    help="Log to stderr what is done, and show an error's traceback.",
)


def store_options(command: Command) -> Command:
    """Add `--url`, which makes the parameter `settings`, and `--debug`."""
    url = click.option(
        "--url",
        "settings",
        metavar="URL",
        callback=_settings,
        help="Where the locks are, like etcd://host1:2379,host2:2379/clustermutex. "
        "[default: CLUSTERMUTEX_URL, the ETCDCTL_* variables, 127.0.0.1:2379]",
    )
    return url(debug_option(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, as told below.")


class LockName(click.ParamType[str]):
    """A lock's name; shells complete it by the locks that are held."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        try:
            return check_name(value)
        except InvalidLockName as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin so; none if etcd does not say so quickly."""
        try:
            settings = ctx.params.get("settings") or Settings.load()
            with opened(settings) as store:
                names = store.names(incomplete, COMPLETED, Deadline.after(COMPLETING))
        except (ClusterMutexError, ValueError):
            return []  # a shell in the middle of a line is no place for an error
        return [CompletionItem(name) for name in names]


@contextmanager
def opened(settings: Settings) -> Iterator[ServiceStore]:
    """Open a store, and close it in the end."""
    store = open_store(settings)
    try:
        yield store
    finally:
        store.close()


def answering(store: ServiceStore) -> None:
    """See quickly whether the store answers this user, before much is asked of it.

    Raises:
        StoreUnavailable, StoreError: it does not.
    """
    store.names("", 1, Deadline.after(PATIENCE))


def picture_of(store: ServiceStore, *, removals: int = 0) -> Table:
    """Return the table of all locks, read once.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    answering(store)
    table = Table(store, removals=removals)
    table.read(Deadline.after(READING))
    return table


def followed(table: Table) -> None:
    """Start a table, and wait until it is read and followed.

    A watch takes a moment to begin: until then nobody should be told that etcd is away.
    """
    table.start()
    table.wait_ready()
    deadline = Deadline.after(PATIENCE)
    while not table.connected() and not deadline.expired():
        time.sleep(0.01)


def locks_of(table: Table, wall: float) -> list[Listed]:
    """Return the locks of a table as they are listed at a wall-clock time."""
    waiters = table.waiters()
    return [
        Listed(row.holder, row.holder.state(wall), waiters.get(name, 0))
        for name, row in table.rows().items()
    ]


def print_json(document: Any, *, line: bool = False) -> None:
    """Print JSON: indented, or in one line where several follow each other.

    Outside of ASCII everything is escaped, so that no text of a lock's can steer a terminal.
    """
    click.echo(json.dumps(document, indent=None if line else 2))
