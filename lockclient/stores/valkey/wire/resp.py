"""RESP, the protocol of Valkey and Redis: commands as they are sent, replies read; no I/O.

valkey-py's own parser asks its socket for more and waits for that. Here one thread waits for all
servers at once: libvalkey's, which valkey-py uses where it is there, is given what has come.
"""

from __future__ import annotations

from typing import Any, Final

from libvalkey import Reader, pack_command
from valkey.connection import DefaultParser

from lockclient.stores.valkey import errors

UNFINISHED: Final = object()
"""Stands for an answer of which more is to come."""


MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one answer: twice what the longest one has, a hundred locks that say all they may."""
_MAX_READS: Final = 1000
"""Reads, of 64 KiB each, for what valkey-py itself reads: who one is, and hints."""
_TOO_LONG: Final = "its answer does not end"


_Parser: Any = DefaultParser  # libvalkey's, as that is installed


class BoundedReader:
    """Reads the answers of one connection, each of them up to a bound."""

    def __init__(self, parser: Reader) -> None:
        self._parser = parser
        self._unanswered = 0

    def read(self, data: bytes) -> Any:
        """See `read`."""
        self._unanswered += len(data)
        if self._unanswered > MAX_ANSWER_BYTES:
            raise errors.MalformedReply(_TOO_LONG)
        self._parser.feed(data)
        reply = self._parser.gets()
        if reply is UNFINISHED:
            return reply
        self._unanswered = 0
        if self._parser.has_data():
            raise errors.MalformedReply("it sent an answer to no request")
        return reply


class BoundedParser(_Parser):  # type: ignore[misc]  # valkey-py has no types there
    """valkey-py's own, for its handshake and for hints: a server may begin what has no end."""

    _reads = 0

    def read_from_socket(self, *args: Any, **how: Any) -> Any:
        """Take in what has come."""
        self._reads += 1
        if self._reads > _MAX_READS:
            raise errors.MalformedReply(_TOO_LONG)
        return super().read_from_socket(*args, **how)

    def read_response(self, *args: Any, **how: Any) -> Any:
        """Return the next answer."""
        response = super().read_response(*args, **how)
        self._reads = 0
        return response


def reader() -> BoundedReader:
    """Return what reads the answers of one connection.

    An error is returned and not raised; what no server says that talks this protocol is raised as
    one of `errors.Unanswered`.
    """
    return BoundedReader(
        Reader(
            protocolError=errors.MalformedReply,
            replyError=errors.server_error,
            notEnoughData=UNFINISHED,
        )
    )


def read(reader: BoundedReader, data: bytes) -> Any:
    """Return the one answer that ends with these bytes, or `UNFINISHED`.

    Raises:
        errors.Unanswered: it is no answer of a server's, or there is more than one, or it has more
            than `MAX_ANSWER_BYTES`.
    """
    return reader.read(data)


def packed(words: tuple[str, ...]) -> bytes:
    """Return a command as it is sent."""
    try:
        return pack_command(words)
    except UnicodeEncodeError:  # a lone surrogate
        return pack_command(tuple(word.encode(errors="replace") for word in words))
