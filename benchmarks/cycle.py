"""Section `cycle`: taking a free lock and giving it back, all contenders in turns."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks.contenders import OURS, PEERS, opened, warm_cycles
from benchmarks.samples import LOOP, in_turns
from benchmarks.servers import Servers


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return a row for each contender that is there."""
    warm_up, rounds = (5, 2) if quick else (150, 24)
    with ExitStack() as stack:
        endpoint = stack.enter_context(servers.etcd()).endpoint
        cycles = warm_cycles(opened(stack, servers, endpoint, PEERS), warm_up)
        measured = in_turns(cycles, rounds, LOOP // 10 if quick else LOOP)
    return {name: found.row(measured[OURS]) for name, found in measured.items()}
