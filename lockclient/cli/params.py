"""Options that take a duration."""

from __future__ import annotations

from typing import Any

import click

from lockclient.model.clocks import LONGEST
from lockclient.text.durations import parse_duration, period


class Duration(click.ParamType[Any]):
    """A duration, in seconds then; or one of some words that stand for something else.

    Args:
        least: the shortest that is taken.
        most: the longest.
        words: what else may be given, and what it stands for.
    """

    name = "duration"

    def __init__(
        self, least: float = 0.0, most: float = LONGEST, words: dict[str, Any] | None = None
    ) -> None:
        self._least, self._most = least, most
        self._words = words or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds, or what the word stands for."""
        if isinstance(value, str) and value in self._words:
            return self._words[value]
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            others = "".join(f" Or `{word}`." for word in self._words)
            self.fail(f"{error}{others}", param, ctx)
        if not self._least <= seconds <= self._most:
            limits = f"{period(self._least)} to {period(self._most)}"
            self.fail(f"{value!r} is out of range: {limits} are taken.", param, ctx)
        return seconds
