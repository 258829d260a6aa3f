"""The command's entry: the group that all commands join."""

from __future__ import annotations

from lockclient.extras import needing_services


def main() -> None:
    """Run the command line."""
    with needing_services("clustermutex"):
        from lockclient.cli.group import group
    group(prog_name="clustermutex")
