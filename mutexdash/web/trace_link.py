"""Trace link: from a lock to the trace, or whatever else, in which it was taken."""

from __future__ import annotations

import re
from urllib.parse import quote

import click

from lockclient.model.holder import Holder
from mutexdash.security.access_flags import read_link

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_MAX_CHARS = 200
"""Characters of what is put into the address: more is no id of anything."""


def read_trace_url(ctx: click.Context, param: click.Parameter, url: str) -> str:
    """Return an address with places in braces, as click's callback.

    Raises:
        click.UsageError: it is no address of a web page, or has no such place behind its host.
    """
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
    """Return the address with what a holder says in its places; empty if it says not all of it."""
    said = {**(holder.labels or {}), **(holder.context or {})}
    if not url or not all(_is_id(said.get(name, "")) for name in _PLACE.findall(url)):
        return ""
    # Anybody may have written it: with nothing left as it is that means something in an address.
    return _PLACE.sub(lambda place: quote(said[place[1]], safe=""), url)


def _is_id(text: str) -> bool:
    """Tell whether this may stand in an address; a browser takes dots alone for a folder above."""
    return 0 < len(text) <= _MAX_CHARS and text not in (".", "..")
