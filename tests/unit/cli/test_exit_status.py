"""The help texts, which docs/command.md repeats, name each exit status and no other."""

from __future__ import annotations

import re

from lockclient.cli import exit_status
from reference.commands import reference


def test_the_help_texts_name_each_status() -> None:
    told = [
        block
        for block in reference().split("\n\n")
        if re.match(r"\s*(Exit status|Statuses|COMMAND|Nothing is written)", block)
    ]
    numbers = {int(number) for block in told for number in re.findall(r"\b\d+\b", block)}
    values = {value for value in vars(exit_status).values() if isinstance(value, int)}
    assert numbers == values
