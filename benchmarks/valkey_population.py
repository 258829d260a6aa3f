"""Servers full of locks that nobody really holds, for section `valkey`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.missing import module
from lockclient.model.holder import Holder
from lockclient.stores.valkey.keys import KeyNames, written
from lockclient.stores.valkey.location import ValkeyLocation

LASTING = 36_000.0
"""Seconds for which they are well."""
_AT_ONCE = 500


def fill(ports: Sequence[int], place: ValkeyLocation, sample: Holder, number: int) -> None:
    """Write so many locks into each server, with all that a real holder says."""
    keys = KeyNames(place.root)
    now = time.time()
    sample = replace(sample, alert_at=now + LASTING, auto_unlock_at=now + 2 * LASTING)
    names = [f"bench-{lock:06d}" for lock in range(number)]
    for port in ports:
        client: Any = module("valkey").Valkey(port=port, socket_timeout=60)
        for begin in range(0, number, _AT_ONCE):
            pipe = client.pipeline(transaction=False)
            for name in names[begin : begin + _AT_ONCE]:
                own = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
                fields = written(replace(sample, name=name, uuid=own))
                pipe.execute_command(
                    *("HSET", keys.lock(name), "take", "1", "push", "0", "expiry", "0", *fields)
                )
            pipe.execute()
        client.close()
