"""The command's entry: the group that all commands join."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from lockclient.cli.group import group
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("clustermutex: the command needs the extra: pip install 'clustermutex[command]'.")
    group(prog_name="clustermutex")
