"""Locks as they are written to a store, and as they stand in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from lockclient.model.clocks import Runtime
from lockclient.model.holder import Found, Holder

REVISION = 5


def taker(name: str, runtime: Runtime, wall: float | None = None, **facts: Any) -> Holder:
    """Return what a client writes that takes this lock, now or at the wall-clock time `wall`."""
    wall = time.time() if wall is None else wall
    holder = Holder(
        *(name, str(uuid4()), "host", 7),
        locked_at=wall,
        expected_runtime=runtime.expected,
        auto_unlock_after=runtime.auto_unlock,
    )
    return replace(holder.stamped(runtime.stamps(wall)), **facts)


def found(values: Mapping[str, bytes | str | None], revision: int = REVISION) -> dict[str, Found]:
    """Return subkeys as they are read when all were written at one revision."""
    return {
        key: (value.encode() if isinstance(value, str) else value, revision)
        for key, value in values.items()
    }


def written(holder: Holder, revision: int = REVISION) -> Holder:
    """Return a holder as it is read after it took its lock at this revision."""
    return Holder.read(holder.name, found(holder.subkeys(), revision))
