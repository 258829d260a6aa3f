"""What the commands have in common: where the locks are, a lock's name, JSON, `--debug`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import cleandoc
from math import inf
from textwrap import fill
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lockclient.errors import ClusterMutexError, InvalidLockName
from lockclient.model.clocks import Deadline
from lockclient.model.fields import Fact
from lockclient.model.holder import Ticket, check_name
from lockclient.overview.columns import Listed
from lockclient.overview.search import Search
from lockclient.overview.table import Table
from lockclient.settings import LIKE, Settings
from lockclient.stores.registry import open_store
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.confusables import Looks
from lockclient.text.escaping import ascii_json
from lockclient.text.log_format import PlainFormatter

PATIENCE = 5.0
"""Seconds for etcd to answer what a person waits for."""
READING = 60.0
"""Seconds for reading everything: a million keys take their time."""
COMPLETING = 1.0
"""Seconds for etcd to answer a shell that completes a name."""
COMPLETED = 200
"""How many names a shell is given; who has more types on."""
_SUGGESTED = 3
_HELP = 78
"""Characters of a line in the help."""


def counted(number: int, what: str) -> str:
    """Write how many there are of something, like `1 lock` and `2 locks`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Session:
    """What all of one run of the command shares, as click's `ctx.obj`."""

    debug: bool = False
    url: str | None = None
    """What stood before the command."""


def _debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Session).debug = True
        handler = logging.StreamHandler()
        handler.setFormatter(PlainFormatter(logging.BASIC_FORMAT))
        logging.basicConfig(level=logging.DEBUG, handlers=[handler])


def _settings(ctx: click.Context, _param: click.Parameter, value: str | None) -> Settings:
    try:
        return Settings.load(ctx.ensure_object(Session).url if value is None else value)
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


def _noted(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).url = value


_URL_HELP = (
    f"Where the locks are, {LIKE}. "
    "[default: CLUSTERMUTEX_URL, the ETCDCTL_* variables, 127.0.0.1:2379]"
)
url_option = click.option(
    "--url", metavar="URL", expose_value=False, callback=_noted, help=_URL_HELP
)
"""Before the command: what stands after it goes before."""


def store_options(command: Command) -> Command:
    """Add `--url`, which makes the parameter `settings`, and `--debug`."""
    url = click.option("--url", "settings", metavar="URL", callback=_settings, help=_URL_HELP)
    return url(debug_option(command))


def telling(**lists: Sequence[Fact]) -> Callable[[Command], Command]:
    """Fill lists of facts into a command's help, where `{its name}` stands."""

    def filled(command: Command) -> Command:
        told = {name: _told(facts) for name, facts in lists.items()}
        command.__doc__ = cleandoc(command.__doc__ or "").format(**told)
        return command

    return filled


def _told(facts: Sequence[Fact]) -> str:
    width = max(len(fact.name) for fact in facts)
    return "\n".join(
        fill(
            fact.description.replace("`", ""),
            _HELP,
            initial_indent=f"    {fact.name:<{width}}  ",
            subsequent_indent=" " * (width + 6),
        )
        for fact in facts
    )


def searching(text: Sequence[str]) -> Search:
    """Return the search for these words of a command line."""
    search = Search.of(text)
    try:
        search.check()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return search


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
            settings = ctx.params.get("settings") or Settings.load(ctx.ensure_object(Session).url)
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


def answers_asked() -> bool:
    """Tell whether there is somebody to ask, on a terminal."""
    return bool(sys.stdin) and sys.stdin.isatty()


def similar(store: ServiceStore, name: str) -> str:
    """Say which locks that are held have a name like this one; empty if there is none.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    deadline = Deadline.after(PATIENCE)
    found = store.names(name, _SUGGESTED, deadline)
    if not found:
        found = get_close_matches(name, store.names("", COMPLETED, deadline), _SUGGESTED)
    meant = " or ".join(map(repr, found))
    return f" Did you mean {meant}?" if meant else ""


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


def locks_of(table: Table, wall: float, heads: Mapping[str, Ticket] | None = None) -> list[Listed]:
    """Return the locks of a table as listed at a wall-clock time; `heads` of `WaitQueues`."""
    waiters, rows, looks = table.waiters(), table.rows(), Looks()
    nobody = 0 if table.can.queue else None
    for name in rows:
        looks.add(name)
    firsts = heads or {}
    return [
        Listed(
            *(row.holder, row.holder.state(wall), waiters.get(name, nobody)),
            looks.like(name, rows.__contains__),
            *(inf, None) if (first := firsts.get(name)) is None else (first.revision, first.since),
        )
        for name, row in rows.items()
    ]


def print_json(document: Any, *, line: bool = False) -> None:
    """Print JSON: indented, or in one line where several follow each other.

    Outside of ASCII everything is escaped, so that no text of a lock's can steer a terminal.
    """
    click.echo(ascii_json(document, indent=None if line else 2))
