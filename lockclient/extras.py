"""Programs whose extra is not installed say so in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SERVICES = ("click", "flask", "waitress", "apscheduler", "prometheus_client")


@contextmanager
def needing_services(program: str) -> Iterator[None]:
    """Import what a program needs in here: what is missing ends it with how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _SERVICES:
            raise
        sys.exit(f"{program} needs {error.name}: pip install 'clustermutex[services]'.")
