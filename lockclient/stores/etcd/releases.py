"""Releases of etcd: which are tested, which are known to lose data, and how versions compare."""

from __future__ import annotations

DATA_LOSS_VERSIONS = ("3.5.0", "3.5.1", "3.5.2")
OLDEST_TESTED, NEWEST_TESTED = (3, 4), (3, 7)


def minor_of(version: str) -> tuple[int, int] | None:
    """Return (3, 5) for 3.5.9; None: the text is no version."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
