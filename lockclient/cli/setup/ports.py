"""Ports: free ones, and those of `up`, which stay from one start to the next."""

from __future__ import annotations

import json
import secrets
import socket
from contextlib import suppress
from pathlib import Path

DEFAULT_PORTS = {"etcd": 2379, "valkey": 6379, "mutexdash": 8722, "unlocker": 9722}
"""The port of each program where nobody says otherwise."""


def kept_ports(folder: Path) -> dict[str, int]:
    """Return a port for each program: that of the last start, or else its usual one.

    One that somebody else has by now, or had at the first start, is replaced by a free one. What
    was chosen is kept in `folder`, whose only user is the caller.
    """
    file = folder / "ports.json"
    before: dict[str, int] = {}
    # None yet, or none that can be read: begin anew.
    with suppress(OSError, ValueError, AttributeError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        before = {name: kept[name] for name in DEFAULT_PORTS if type(kept.get(name)) is int}
    wanted = {name: before.get(name, usual) for name, usual in DEFAULT_PORTS.items()}
    ports = {
        name: port if is_free(port, lingering=True) else free_port()
        for name, port in wanted.items()
    }
    file.write_text(json.dumps(ports), encoding="utf-8")
    return ports


def free_port() -> int:
    """Return a port that is free now, and likely to be so in a moment.

    Not one that the kernel picks: those are also what it picks for outgoing connections, so that
    another program's may sit on it before ours listens.
    """
    while not is_free(port := 10_000 + secrets.randbelow(20_000)):
        pass
    return port


def is_free(port: int, *, lingering: bool = False) -> bool:
    """Tell whether a program could listen on this port; with `lingering` also one that stands for
    connections of before, which keep nobody from it who says so (SO_REUSEADDR), as servers do."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, lingering)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
