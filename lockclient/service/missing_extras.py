"""Ends a program whose extra is not installed with the `pip install` that brings it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SERVICES = ("flask", "waitress", "apscheduler", "prometheus_client", "bcrypt")
_COMMAND = ("click", "rich")


@contextmanager
def needing_services(program: str) -> Iterator[None]:
    """Block for optional imports: a missing package ends the program and names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in (*_SERVICES, *_COMMAND):
            raise
        # The services bring the command along: with them everything that is missing is there.
        extra = "command" if program == "clustermutex" and missing in _COMMAND else "services"
        sys.exit(f"{program} needs {missing}: pip install 'clustermutex[{extra}]'.")
