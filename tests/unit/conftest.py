"""What unit tests have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Puts the root logger back, which a program configures for all of its process."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
