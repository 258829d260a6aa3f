"""A history prepared for the rules: lines by kind, etcd's events folded, times of trouble."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from tests.proof.history import Limits, Line
from tests.proof.reigns import Reigns

RECONNECTED_S = 20.0
"""Seconds after trouble in which a connection that was cut may still be found dead."""
WITHOUT_THREADS = "without threads"
"""The key of `ending` lines of a process that starts no thread from then on, as Python 3.12."""


@dataclass
class History:
    """All that the rules look at."""

    lines: list[Line]
    limits: Limits = field(default_factory=Limits)

    @cached_property
    def reigns(self) -> Reigns:
        """The fold over etcd's events."""
        return Reigns(self.lines, self.limits.root)

    @cached_property
    def by_what(self) -> dict[str, list[Line]]:
        """The lines of each kind, in the order of their times."""
        found: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            found[line.what].append(line)
        return found

    @cached_property
    def stopped(self) -> dict[str, float]:
        """When each process was ended, by itself or by others."""
        lines = (*self.by_what["killed"], *self.by_what["ended"])
        return {line.process: line.at for line in sorted(lines, key=attrgetter("at"), reverse=True)}

    @cached_property
    def without_threads(self) -> dict[str, float]:
        """When the end of each process began that starts no thread then, and so opens no watch."""
        lines = self.by_what["ending"]
        return {line.process: line.at for line in lines if line.key == WITHOUT_THREADS}

    @cached_property
    def acquired(self) -> dict[str, Line]:
        """By uuid, what clients were told to have."""
        return {line.uuid: line for line in self.by_what["acquired"]}

    def quiet(self, process: str, begin: float, end: float, after: float = RECONNECTED_S) -> bool:
        """Tell whether nothing troubled a process in this time, and so many seconds before it."""
        for line in (*self.by_what["trouble"], *self.by_what["frozen"]):
            mine = line.process in ("", process)
            if mine and line.at < end and line.at + (line.seconds or 0.0) + after > begin:
                return False
        stopped_at = self.without_threads.get(process, self.stopped.get(process, math.inf))
        return stopped_at > end
