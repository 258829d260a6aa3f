"""The group that all commands join: each is loaded when it is asked for, so that it starts soon."""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib import import_module

import click

from lockclient.cli.options import Session, debug_option, url_option
from lockclient.version import __version__

SECTIONS = {
    "Locks for scripts": {
        "run": "lockclient.cli.scripts.run:run",
        "lock": "lockclient.cli.scripts.lock:lock",
        "alive": "lockclient.cli.scripts.alive:alive",
        "unlock": "lockclient.cli.scripts.unlock:unlock",
    },
    "Looking and acting": {
        "ls": "lockclient.cli.operate.ls:ls",
        "show": "lockclient.cli.operate.show:show",
        "watch": "lockclient.cli.operate.watch:watch",
        "removed": "lockclient.cli.operate.removed:removed",
        "force-unlock": "lockclient.cli.operate.force_unlock:force_unlock",
        "vouch": "lockclient.cli.operate.vouch:vouch",
        "restored": "lockclient.cli.operate.restored:restored",
        "doctor": "lockclient.cli.operate.doctor:doctor",
    },
    "Setting up": {
        "up": "lockclient.cli.setup.up:up",
        "demo": "lockclient.cli.setup.demo:demo",
        "setup-auth": "lockclient.cli.setup.setup_auth:setup_auth",
        "completion": "lockclient.cli.setup.completion:completion",
    },
}
"""The commands as the help shows them, and where each is."""
_PLACES = {name: place for section in SECTIONS.values() for name, place in section.items()}


class _Commands(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_PLACES)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _PLACES:
            return None
        module, _, attribute = _PLACES[name].partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], _PLACES, 3)
            if not near:
                raise
            meant = " or ".join(f"`{name}`" for name in near)
            raise click.UsageError(f"{error.message} Did you mean {meant}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _PLACES))
        for title, names in SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(formatter.width))
                        for name, command in commands.items()
                        if command is not None
                    ]
                )


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""
    Exit status: 0 all is well; 1 it could not be done; 2 the command line is wrong; 69 the store
    does not answer or refuses; 70 a mistake of this program; 130 Ctrl-C. What else a command
    returns stands in its own help.

    Where the locks are is told by --url, or CLUSTERMUTEX_URL, or etcdctl's own variables
    (ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, ETCDCTL_USER,
    ETCDCTL_PASSWORD). NO_COLOR switches colours off. A TIME is a number of seconds, or like 90s,
    5m, 1h30m.
    """,
)
@click.version_option(__version__, prog_name="clustermutex")
@url_option
@debug_option
@click.pass_context
def group(ctx: click.Context) -> None:
    """Distributed locks that people can see and trust."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.ensure_object(Session).url is None:
        return
    command = group.get_command(ctx, ctx.invoked_subcommand or "")
    if command is None or all(param.name != "settings" for param in command.params):
        raise click.UsageError(f"`{ctx.invoked_subcommand}` asks no store: it takes no --url.")
