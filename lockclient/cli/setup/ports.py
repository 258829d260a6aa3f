"""The ports of `up`: the same from one start to the next, so that URLs and bookmarks go on."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from lockclient.cli.setup.processes import free_port, is_free

USUAL = {"etcd": 2379, "valkey": 6379, "mutexdash": 8722, "unlocker": 9722}
"""What each program listens on where nobody says otherwise."""


def kept_ports(folder: Path) -> dict[str, int]:
    """Return a port for each program: that of the last start, or else its usual one.

    One that somebody else has by now, or had at the first start, is replaced by a free one. What
    was chosen is kept in `folder`, whose only user is the caller.
    """
    file = folder / "ports.json"
    before: dict[str, int] = {}
    # None yet, or none that can be read: begin anew.
    with suppress(OSError, ValueError, AttributeError):
        said = json.loads(file.read_text(encoding="utf-8"))
        before = {name: said[name] for name in USUAL if type(said.get(name)) is int}
    wanted = {name: before.get(name, usual) for name, usual in USUAL.items()}
    ports = {
        name: port if is_free(port, lingering=True) else free_port()
        for name, port in wanted.items()
    }
    file.write_text(json.dumps(ports), encoding="utf-8")
    return ports
