"""RESP, the protocol of Valkey and Redis: commands as they are sent, replies read; no I/O.

valkey-py's own parser asks its socket for more and waits for that. Here one thread waits for all
servers at once: libvalkey's, which valkey-py uses where it is there, is given what has come.
"""

from __future__ import annotations

from typing import Any, Final

from libvalkey import Reader, pack_command

from lockclient.stores.valkey import errors

UNFINISHED: Final = object()
"""Stands for an answer of which more is to come."""


def reader() -> Reader:
    """Return what reads the answers of one connection.

    An error is returned and not raised; what no server says that talks this protocol is raised as
    one of `errors.Unanswered`.
    """
    return Reader(
        protocolError=errors.MalformedReply,
        replyError=errors.server_error,
        notEnoughData=UNFINISHED,
    )


def read(reader: Reader, data: bytes) -> Any:
    """Return the one answer that ends with these bytes, or `UNFINISHED`.

    Raises:
        errors.Unanswered: it is no answer of a server's, or there is more than one.
    """
    reader.feed(data)
    reply = reader.gets()
    if reply is not UNFINISHED and reader.has_data():
        raise errors.MalformedReply("it answered what nobody had asked")
    return reply


def packed(words: tuple[str, ...]) -> bytes:
    """Return a command as it is sent."""
    try:
        return pack_command(words)
    except UnicodeEncodeError:  # a lone surrogate
        return pack_command(tuple(word.encode(errors="replace") for word in words))
