"""Free ports, and the ports of `up`, which stay the same from one start to the next."""

from __future__ import annotations

import json
import secrets
import socket
from contextlib import suppress
from pathlib import Path

DEFAULT_PORTS = {"etcd": 2379, "valkey": 6379, "mutexdash": 8722, "unlocker": 9722}
"""The default port of each program."""


def kept_ports(folder: Path) -> dict[str, int]:
    """Return a port for each program: that of the last start, or else its default.

    A port that another program uses is replaced by a free one. The ports are stored in `folder`,
    which only the caller uses.
    """
    file = folder / "ports.json"
    before: dict[str, int] = {}
    # No file yet, or a damaged one: use the defaults.
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
    """Return a port that is free now, and most likely still free in a moment; each only once.

    The kernel's choice is not used: it picks from the ports of outgoing connections, so that one of
    those may take the port before our program listens.
    """
    while (port := 10_000 + secrets.randbelow(20_000)) in _given or not is_free(port):
        pass
    _given.add(port)
    return port


_given: set[int] = set()
"""The ports that were returned: no program may listen on one yet."""


def is_free(port: int, *, lingering: bool = False) -> bool:
    """Return whether a program can listen on this port.

    Args:
        lingering: whether a port with old connections (TIME_WAIT) counts as free, as it does for
            servers that set SO_REUSEADDR.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, lingering)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
