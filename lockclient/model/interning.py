"""Interning: one copy of each number and text that many locks have in common."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeVar

_Item = TypeVar("_Item", str, float)
MAX_INTERNED_CHARS: Final = 200
"""Characters of such a text at most: so the table of them has a bound in bytes, 10 MB."""


@lru_cache(maxsize=10_000, typed=True)
def interned(item: _Item) -> _Item:
    """Return the one copy of a number or text.

    Not `sys.intern`, by which a text of others may stay for ever (in Python 3.12.0 to 3.12.6).
    """
    return item


def interned_text(text: str) -> str:
    """Return the one copy of a text, if it is short."""
    return interned(text) if len(text) <= MAX_INTERNED_CHARS else text
