"""What a machine lacks is no error: it is named in the report."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Missing(Exception):
    """Something can't be measured or drawn on this machine; the text says what it lacks."""


def module(name: str) -> Any:
    """Import a module of the `bench` extra.

    Raises:
        Missing: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise Missing(f"the Python package {package} is not installed ({error})") from None
