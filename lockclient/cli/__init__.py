"""The `clustermutex` command, one file a command."""

from lockclient.cli.main import main

__all__ = ["main"]
