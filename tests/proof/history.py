"""Histories: the operations that each process began and completed, and etcd's events.

Each process writes a file of its own, one JSON object a line, each line in one step, so that a kill
cuts none in two. A recorder writes etcd's whole event stream below the root into another. Times are
monotonic ones of one machine.

| what | by whom | fields beside `at` and `process` |
| --- | --- | --- |
| `acquire` | client | call, lock, timeout (null: none) |
| `acquired` | client | call, lock, uuid, revision: the fencing token, seconds: is kept alive, key |
| `missed` | client | call, lock: no lock came of that call |
| `push`, `pushed` | client | call, lock, uuid |
| `working` | client | lock, uuid: `healthy` was true when it was asked after that time |
| `release`, `released` | client | call, lock, uuid |
| `lost` | client | lock, uuid: `on_lost` was called |
| `killed`, `frozen` | harness | process; of `frozen`: seconds |
| `ending`, `ended` | harness | process: it ends normally; of `ended`: seconds that this took |
| `left` | harness | process, lock, uuid: it has ended, and the store has this lock of it |
| `marked` | harness | process: from now on no acquire of another thread returns |
| `named` | client | lock, uuid: its log names it at the end, key: `held`, `unreleased`, `granted` |
| `trouble` | harness | seconds: for so long not every message comes at once |
| `outage` | harness | process, lock, seconds: its waiters reach no etcd, and none gives up |
| `full` | harness | seconds: for so long etcd takes no write |
| `settled` | harness | all trouble is over, and the last client has ended |
| `limits` | harness | see `Limits` |
| `counted` | register | call: the value, lock, revision: the token, key: `plain` or `fenced` |
| `written` | recorder | revision, key, value (null: deleted), lease, seconds: by which it is late |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a history; see the table."""

    at: float
    process: str
    what: str
    call: int = 0
    lock: str = ""
    uuid: str = ""
    revision: int = 0
    seconds: float | None = None
    key: str = ""
    value: str | None = None
    lease: int = 0
    limits: dict[str, float] = field(default_factory=dict)


_FIELDS = {one.name for one in fields(Line)}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a history is checked against.

    Attributes:
        root: the prefix of all keys.
        max_removals: auto-unlocks in a minute that always pass; 0: no limit.
        unlockers: how many there are at most at once.
        lag: seconds by which the recorder may see a write late.
        told_within: seconds in which a holder learns of a loss, when all is well.
        ends_within: seconds that the normal end of a process takes at most.
        drift: part of a second by which two monotonic clocks may part in a second.
    """

    root: str = "/clustermutex"
    max_removals: float = 50
    unlockers: float = 2
    lag: float = 0.0
    told_within: float = 1.2
    ends_within: float = 1.6
    drift: float = 0.001

    @classmethod
    def of(cls, said: dict[str, Any]) -> Limits:
        """Return what a line says."""
        return cls(**said)


Sink = Callable[[Line], object]


class FileSink:
    """Writes lines to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, line: Line) -> None:
        os.write(self._file, text_of(line).encode())


def text_of(line: Line) -> str:
    """Return a line as it stands in a file; what says nothing is left out."""
    plain = Line(0.0, "", "")
    said = asdict(line)
    kept = {name: value for name, value in said.items() if value != getattr(plain, name)}
    return json.dumps({"at": line.at, "process": line.process, "what": line.what} | kept) + "\n"


def read(files: Iterable[Path]) -> list[Line]:
    """Return all lines of these files, in the order of their times.

    Raises:
        ValueError: one can't be read; which one, and why.
    """
    found: list[Line] = []
    for file in files:
        for number, text in enumerate(file.read_text().splitlines(), 1):
            try:
                said = json.loads(text)
                found.append(Line(**{name: said[name] for name in said if name in _FIELDS}))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{file}:{number} is no line of a history: {error}") from error
    return sorted(found, key=lambda line: line.at)
