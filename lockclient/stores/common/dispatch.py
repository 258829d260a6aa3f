"""Dispatch of requests: in every store the method that does a kind of request has its name."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from lockclient.stores.requests import Request


def snake_case(kind: type) -> str:
    """Return a class's name as that of a method is written: `take_or_queue`."""
    return re.sub("(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


METHODS: Final[dict[type[Request], str]] = {kind: snake_case(kind) for kind in get_args(Request)}


def dispatch(executor: object, request: Request, *args: object) -> Any:
    """Do a request by its method: a `TakeOrQueue` by `take_or_queue`."""
    return getattr(executor, METHODS[type(request)])(request, *args)
