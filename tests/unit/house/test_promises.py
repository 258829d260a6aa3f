"""Each promise of the README has a test that is found by its number, and no test has another."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
_, _, _AFTER = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition("## What is promised")
PROMISED = set(re.findall(r"^(\d+)\. ", _AFTER.partition("\n## ")[0], re.MULTILINE))
MARK = re.compile(r"^\s*@pytest\.mark\.promise\(number=(\d+)\)$", re.MULTILINE)


def test_each_has_tests() -> None:
    """`pytest -m 'promise(number=3)'` finds them."""
    proved: set[str] = set()
    for path in (CHECKOUT / "tests").rglob("test_*.py"):
        proved.update(MARK.findall(path.read_text(encoding="utf-8")))
    assert PROMISED
    assert proved == PROMISED
