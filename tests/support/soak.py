"""Cuts of long tests: what `make test` tries once or small, `make soak` tries at length."""

from __future__ import annotations

from typing import Any

import pytest


def soaking(*values: Any) -> list[Any]:
    """Return parameters that are for `make soak` only, beside those of the cut."""
    return [pytest.param(value, marks=pytest.mark.soak) for value in values]
