"""The group that all commands join: each is loaded when it is asked for, so that it starts soon."""

from __future__ import annotations

import os
from importlib import import_module

import click

from lockclient.cli.options import debug_option
from lockclient.model.retention import RECORD_RETENTION
from lockclient.model.version import __version__
from lockclient.service.service_flags import url_option
from lockclient.stores.settings import Settings

SECTIONS = {
    "Locks for scripts": {
        "run": "Hold the lock NAME while COMMAND runs.",
        "lock": "Take the lock NAME, print its uuid and leave it held.",
        "alive": "Push the alert and the auto-unlock of the lock NAME forward.",
        "unlock": "Release the lock NAME, if it is still this holder's.",
    },
    "Looking and acting": {
        "ls": "List the locks that are held.",
        "show": "Show all that is known of one lock, and the code that took it.",
        "removed": f"List what was auto-unlocked and force-unlocked in {RECORD_RETENTION}.",
        "force-unlock": "Take a lock from its holder, after showing who that is.",
        "vouch": "State that nobody holds a lock of a keyspace, so that its servers vote at once.",
        "doctor": "Check everything that locks need, one line each, with what to do.",
    },
    "Setting up": {
        "up": "Run etcd (or Valkey), an unlocker and the dashboard on this machine until Ctrl-C.",
        "demo": "Watch locks being taken, held, alerted on, removed and shown.",
        "setup-auth": "Print a script that gives etcd, or Valkey, the least rights for each "
        "program.",
        "completion": "Print what makes a shell complete commands and lock names.",
    },
}
"""The commands as the help shows them; each section is a folder, and each command a file in it.

The first sentences of their helps stand here, so that `--help` need not import them.
"""
_FOLDERS = {
    name: folder
    for folder, names in zip(("scripts", "operate", "setup"), SECTIONS.values(), strict=True)
    for name in names
}


_FIRST_STEPS = """\
Most useful:
  clustermutex ls                    who holds what, the most urgent first
  clustermutex show NAME             one lock: its holder, queue and code
  clustermutex run NAME -- COMMAND   run a command while holding a lock

Nothing is set up yet? `clustermutex up` tries it out.
All commands: clustermutex --help"""


class _Commands(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_FOLDERS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _FOLDERS:
            return None
        file = name.replace("-", "_")
        module = import_module(f"lockclient.cli.{_FOLDERS[name]}.{file}")
        found: click.Command = getattr(module, file)
        return found

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _FOLDERS))
        for title, helps in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in helps.items()])


def _hand_down(ctx: click.Context, _param: click.Parameter, settings: Settings | None) -> None:
    """Make a `--url` before a command the default of the command's own `--url`."""
    if settings is not None:
        ctx.default_map = {name: {"settings": settings} for name in _FOLDERS}


@click.group(
    cls=_Commands,
    commands=[click.Command(name) for name in _FOLDERS],  # click suggests one of these names
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""
    Exit status: 0 success; 1 it could not be done; 2 the command line is wrong; 69 the store
    does not answer or refuses; 70 a bug in this program; 71 the system gives no thread, memory,
    file descriptor or home directory; 74 the output can't be written; 130 Ctrl-C. A command's own
    help names what else it returns.

    Where the locks are: --url, or CLUSTERMUTEX_URL, or etcdctl's own variables
    (ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, ETCDCTL_USER,
    ETCDCTL_PASSWORD). Of Valkey and Redis: VALKEY_USER, VALKEY_PASSWORD, VALKEY_CACERT,
    VALKEY_CERT, VALKEY_KEY. A password can come from a file: ETCDCTL_PASSWORD_FILE,
    VALKEY_PASSWORD_FILE.

    NO_COLOR switches colours off. A TIME is a number of seconds, or like 90s, 5m, 1h30m.
    """,
)
@click.version_option(__version__, prog_name="clustermutex")
@url_option(expose_value=False, callback=_hand_down)
@debug_option
@click.pass_context
def group(ctx: click.Context) -> None:
    """Distributed locks that people can see and trust."""
    if ctx.invoked_subcommand is None:
        click.echo(_FIRST_STEPS)
        return
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.default_map is None:
        return
    command = group.get_command(ctx, ctx.invoked_subcommand or "")
    if command is None or all(param.name != "settings" for param in command.params):
        raise click.UsageError(f"`{ctx.invoked_subcommand}` asks no store: it takes no --url.")
