"""The scale of long tests: small in `make test`, at length in `make soak`."""

from __future__ import annotations

from typing import Any

import pytest


def soaking(*values: Any) -> list[Any]:
    """Return parameters that are for `make soak` only, beside those of the cut.

    For several arguments at once, each of `values` is a tuple of as many.
    """
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*row, marks=pytest.mark.soak) for row in rows]
