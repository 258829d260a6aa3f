"""etcd's events, folded: the holders of each lock with their times, the queue, the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from tests.proof.history import Line

Key = tuple[str, ...]
"""A key below the root, by its segments."""


@dataclass(slots=True)
class Reign:
    """One time that a client had a lock.

    Attributes:
        began, ended: revisions; `ended` is 0 while it goes on.
        ticket: the create revision of its own ticket when it began; 0: it stood in no line.
        oldest: the lowest create revision of all tickets there were then; 0: there was no line.
        stamps: what was written as `alert_at`: revision, time, text.
        record: of its removal, if there was one at the very revision of its end.
        heir: who replaced it without a deletion in between.
        lag: seconds by which the recorder may have seen one of its writes late.
    """

    lock: str
    uuid: str
    began: int
    began_at: float
    ticket: int = 0
    oldest: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    stamps: list[tuple[int, float, str]] = field(default_factory=list)
    ended: int = 0
    ended_at: float = math.inf
    record: dict[str, Any] | None = None
    heir: str = ""
    lag: float = 0.0

    @property
    def auto_unlock(self) -> float | None:
        """Seconds without a push after which it may be removed; None: never, or nobody knows."""
        found = self.about.get("auto_unlock_after")
        return float(found) if isinstance(found, int | float) else None

    def last_push(self, until: float) -> float:
        """Return when its stamps were last written up to a time."""
        return max((at for _, at, _ in self.stamps if at <= until), default=self.began_at)


class Reigns:
    """The fold.

    Args:
        lines: of a recorder.
        root: the prefix of all keys.
    """

    def __init__(self, lines: Iterable[Line], root: str) -> None:
        self.all: list[Reign] = []
        self.left: dict[Key, Line] = {}
        """What is there after the last event."""
        self.written: list[tuple[Key, Line]] = []
        self.by_uuid: dict[str, Reign] = {}
        self._root = root.rstrip("/") + "/"
        self._now: dict[str, Reign] = {}
        self._tickets: dict[str, dict[str, int]] = {}
        ours = (
            line for line in lines if line.what == "written" and line.key.startswith(self._root)
        )
        events = sorted(ours, key=_REVISION)
        for _, step in groupby(events, key=_REVISION):
            self._apply({self._key(line): line for line in step})

    def _key(self, line: Line) -> Key:
        return tuple(line.key.removeprefix(self._root).split("/"))

    def _apply(self, step: dict[Key, Line]) -> None:
        """Take in what was written at one revision."""
        self.written += step.items()
        for key, line in step.items():
            if key[0] == "locks" and key[2] == "uuid":
                self._change_holder(key[1], line, step)
        for key, line in step.items():
            reign = self._now.get(key[1]) if key[0] == "locks" else None
            if reign is not None and key[2] == "alert_at" and line.value is not None:
                reign.stamps.append((line.revision, line.at, line.value))
                reign.lag = max(reign.lag, line.seconds or 0.0)
            tickets = self._tickets.setdefault(key[1], {}) if key[0] == "queue" else {}
            if line.value is None:
                self.left.pop(key, None)
                tickets.pop(key[-1], None)
            else:
                self.left[key] = line
                tickets.setdefault(key[-1], line.revision)

    def _change_holder(self, lock: str, line: Line, step: dict[Key, Line]) -> None:
        before = self._now.pop(lock, None)
        if before is not None:
            before.ended, before.ended_at = line.revision, line.at
            before.lag = max(before.lag, line.seconds or 0.0)
            before.heir = line.value or ""
            before.record = _said(step.get(("removed", lock, before.uuid))) or None
        if line.value is None:
            return
        tickets = self._tickets.get(lock, {})
        reign = Reign(lock, line.value, line.revision, line.at, tickets.get(line.value, 0))
        reign.oldest = min(tickets.values(), default=0)
        reign.about = _said(step.get(("locks", lock, "about")))
        self._now[lock] = self.by_uuid[reign.uuid] = reign
        self.all.append(reign)


_REVISION = attrgetter("revision")


def _said(line: Line | None) -> dict[str, Any]:
    found = json.loads(line.value) if line is not None and line.value is not None else {}
    return found if isinstance(found, dict) else {}
