"""The group that all commands join."""

from __future__ import annotations

import click

from lockclient.cli.demo import demo
from lockclient.cli.setup_auth import setup_auth
from lockclient.cli.up import up
from lockclient.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="clustermutex")
def group() -> None:
    """Distributed locks that people can see and trust."""


group.add_command(up)
group.add_command(demo)
group.add_command(setup_auth)
