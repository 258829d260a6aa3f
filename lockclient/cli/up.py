"""`clustermutex up`: all that locks need, on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from lockclient.cli.stack import KNOWN_DATA_BUG, Stack


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for etcd's data and the logs.",
    show_default="~/.local/state/clustermutex/up",
)
@click.option(
    "--etcd-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free one",
    help="Port of etcd.",
)
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default="a free loopback port",
    metavar="HOST:PORT",
    help="Where the dashboard listens.",
)
def up(data: Path | None, etcd_port: int, listen: str) -> None:
    """Run etcd, an unlocker and the dashboard on this machine until Ctrl-C."""
    folder = data or _state_folder()
    host = listen.rpartition(":")[0]
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        raise click.UsageError(
            f"--listen {listen}: there is no login, so `up` shows its dashboard on loopback only."
        )
    with ending_on_signals(), starting(folder, etcd_port, listen) as stack:
        introduce(stack)
        click.echo("\nWhoever reaches the dashboard may force-unlock: it has no login.")
        click.echo("Ctrl-C ends all three; the locks stay in the data directory.")
        stay(stack)
    click.echo("All three have ended.")


def _state_folder() -> Path:
    """Return where a program keeps what is neither configuration nor the user's own data."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "clustermutex" / "up"


def starting(folder: Path, etcd_port: int = 0, listen: str = "127.0.0.1:0") -> Stack:
    """Return the stack for a directory, having said that it starts."""
    stack = Stack(folder, etcd_port, listen)
    click.echo(f"Starting etcd {stack.version}, unlocker and mutexdash …")
    return stack


def introduce(stack: Stack) -> None:
    """Say where everything is."""
    if stack.version in KNOWN_DATA_BUG:
        warning = (
            f"This etcd is {stack.version}, which can lose data when it crashes: good enough for a "
            "laptop, never for production."
        )
        click.secho(warning, fg="yellow")
    for what, where in (
        ("Dashboard", stack.dashboard),
        ("Unlocker", f"{stack.unlocker}/metrics"),
        ("etcd", stack.etcd.endpoint),
        ("Data and logs", str(stack.folder)),
    ):
        click.echo(f"  {what:<14} {click.style(where, bold=True)}")
    click.echo("\nFor clients:\n")
    click.echo(f"  export CLUSTERMUTEX_URL={stack.url}")


def stay(stack: Stack) -> None:
    """Wait for a signal; fail if one of the programs ends by itself."""
    with suppress(KeyboardInterrupt):
        while True:
            if (dead := stack.dead()) is not None:
                raise click.ClickException(
                    f"{dead} has ended by itself; see {stack.log_of(dead)}. The others are ended."
                )
            time.sleep(0.5)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the program as Ctrl-C does, so that nothing is left running."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    # SIGINT, too: a shell's background job starts with it ignored.
    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.signal(number, interrupt) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
