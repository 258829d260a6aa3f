"""Locks as they are written to a store."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from lockclient.model.fields import ABOUT
from lockclient.model.holder import SUBKEYS, Found, Holder
from tests.contract.asking import taker as taker  # so that all is had here

REVISION = 5
BACKTRACE = 'File "/srv/report.py", line 41, in rebuild\n    with ClusterMutex("nightly"):\n'


def found(values: Mapping[str, bytes | str | None], revision: int = REVISION) -> dict[str, Found]:
    """Return subkeys as they are read when all were written at one revision."""
    return {
        key: (value.encode() if isinstance(value, str) else value, revision)
        for key, value in values.items()
    }


def written(holder: Holder, revision: int = REVISION) -> Holder:
    """Return a holder as it is read after it took its lock at this revision."""
    return Holder.read(holder.name, found(holder.subkeys(), revision))


def subkeys(
    *, held_for: float = 60.0, alert: float = 300.0, unlock: float | None = 900.0, **values: Any
) -> dict[str, bytes]:
    """Return a lock's subkeys, of a holder that took it `held_for` seconds ago.

    `values` are facts that are to be otherwise, missing where None; whole subkeys may be bytes.
    """
    taken = round(time.time() - held_for, 3)
    facts: dict[str, Any] = {
        "uuid": "b6a1e1d2-70a3-4a53-9b5c-8f5d2d3c0001",
        "hostname": "worker-1",
        "pid": 4711,
        "thread": "MainThread",
        "reason": "rebuild totals",
        "locked_at": taken,
        "alert_at": f"{taken + alert:.3f}",
        "auto_unlock_at": None if unlock is None else f"{taken + unlock:.3f}",
        "expected_runtime": alert,
        "auto_unlock_after": unlock,
        "backtrace": BACKTRACE,
        "client": "clustermutex/0.1.0 python/3.11.2",
    }
    facts |= values
    found = {part: facts.pop(part, None) for part in SUBKEYS}
    found[ABOUT] = found[ABOUT] or json.dumps(facts)
    return {
        part: value if isinstance(value, bytes) else str(value).encode()
        for part, value in found.items()
        if value is not None
    }
