"""Tests reach below the seams no more than today: these bounds can only fall."""

from __future__ import annotations

from tests.support.processes import Figure
from tests.support.seams import counts

MOST_BELOW = 381
MOST_PRIVATE = 34
MOST_PATCHES = 36


def test_the_counts_only_fall(figure: Figure) -> None:
    """`python -m tests.support.seams` prints them; lower a bound here when a count falls."""
    found = counts()
    figure(
        f"{found.below} of {found.tests} test functions import below the seams, "
        f"{found.private} private attributes, {found.patches} monkeypatch.setattr"
    )
    assert found.below <= MOST_BELOW
    assert found.below <= found.tests * 0.3
    assert found.private <= MOST_PRIVATE
    assert found.patches <= MOST_PATCHES
