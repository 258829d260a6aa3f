"""The link from a lock to the trace in which it was taken."""

from __future__ import annotations

import re
from urllib.parse import quote

import click

from lockclient.model.holder import Holder
from mutexdash.security.access_flags import read_link

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_MAX_CHARS = 200
"""Characters of an id in the address."""


def read_trace_url(ctx: click.Context, param: click.Parameter, url: str) -> str:
    """click's callback: return a web address with names in braces behind its host."""
    if not url:
        return ""
    read_link(ctx, param, _PLACE.sub("x", url))
    host, _, path = url.partition("://")[2].partition("/")
    if not _PLACE.search(path) or _PLACE.search(host):
        raise click.UsageError(
            f"{param.opts[0]} must have a place for what a lock says, behind the host, like "
            "https://traces.example.org/trace/{trace_id}."
        )
    return url


def trace_link(url: str, holder: Holder) -> str:
    """Return the address with the holder's values in the braces; empty if it lacks one."""
    values = {**(holder.labels or {}), **(holder.context or {})}
    if not url or not all(_is_id(values.get(name, "")) for name in _PLACE.findall(url)):
        return ""
    # Any client may have written the values: all that has a meaning in an address is encoded.
    return _PLACE.sub(lambda place: quote(values[place[1]], safe=""), url)


def _is_id(text: str) -> bool:
    """Return whether this may be a part of an address; browsers resolve dots alone."""
    return 0 < len(text) <= _MAX_CHARS and text not in (".", "..")
