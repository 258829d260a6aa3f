"""`clustermutex up`: all that locks need, on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import click

from lockclient.cli.setup.stack import Stack


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the store's data and the logs; nobody else may read it. "
    "[default: ~/.local/state/clustermutex/up]",
)
@click.option(
    "--store",
    type=click.Choice(["etcd", "valkey"]),
    default="etcd",
    show_default=True,
    help="What keeps the locks: etcd, or a server of Valkey or Redis.",
)
@click.option(
    "--etcd-port",
    type=click.IntRange(0, 65535),
    help="Port of etcd. [default: that of the last start, at first 2379 if it is free]",
)
@click.option(
    "--valkey-port",
    type=click.IntRange(0, 65535),
    help="Port of Valkey. [default: that of the last start, at first 6379 if it is free]",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where the dashboard listens. [default: that of the last start, at first 127.0.0.1:8722 "
    "if it is free]",
)
def up(
    data: Path | None,
    store: str,
    etcd_port: int | None,
    valkey_port: int | None,
    listen: str | None,
) -> None:
    """Run etcd (or Valkey), an unlocker and the dashboard on this machine until Ctrl-C.

    They keep their ports from one start to the next.
    """
    folder = data or _state_folder()
    if listen and listen.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        raise click.UsageError(
            f"--listen {listen}: there is no login, so `up` shows its dashboard on loopback only."
        )
    port, other = (etcd_port, valkey_port) if store == "etcd" else (valkey_port, etcd_port)
    if other is not None:
        raise click.UsageError(f"The port is another store's than that of --store {store}.")
    end_on_signals()
    with Stack(folder, store, port, listen, keeps_ports=True) as stack:
        introduce(stack)
        click.echo("\nThe dashboard has no login: anybody who reaches it may force-unlock.")
        click.echo("Ctrl-C ends all three; the locks stay in the data directory.")
        stay(stack)
    click.echo("All three have ended.")


def _state_folder() -> Path:
    """Return the folder for state: neither configuration nor the user's own data."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "clustermutex" / "up"


def introduce(stack: Stack) -> None:
    """Print the address of each program."""
    if warning := stack.store.warning:
        click.secho(warning, fg="yellow")
    for what, where in (
        ("Dashboard", stack.dashboard),
        ("Unlocker", f"{stack.unlocker}/metrics"),
        (stack.store.name, stack.store.endpoint),
        ("Data and logs", str(stack.folder)),
    ):
        click.echo(f"  {what:<14} {click.style(where, bold=True)}")
    click.echo("\nFor clients:\n")
    click.echo(f"  export CLUSTERMUTEX_URL={stack.store.url}")
    for name, value in stack.store.exports.items():
        click.echo(f"  export {name}={value}")


def stay(stack: Stack) -> None:
    """Wait for a signal; fail if one of the programs ends by itself."""
    with suppress(KeyboardInterrupt):
        while True:
            stack.check(" by itself, and so all end")
            time.sleep(0.5)


def end_on_signals() -> None:
    """Make SIGTERM and SIGHUP end the program as Ctrl-C does, so that nothing is left running."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    # SIGINT, too: a shell's background job starts with it ignored.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interrupt)
