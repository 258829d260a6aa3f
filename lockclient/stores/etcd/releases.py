"""Releases of etcd: which are known to lose data, and how versions compare."""

from __future__ import annotations

DATA_LOSS_VERSIONS = ("3.5.0", "3.5.1", "3.5.2")


def is_since(version: str, least: tuple[int, int]) -> bool:
    """Tell whether a version is this one or later; one that can't be read counts as later."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    known = major.isdecimal() and minor.isdecimal()
    return not known or (int(major), int(minor)) >= least
