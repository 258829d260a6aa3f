"""RESP, the protocol of Valkey and Redis: commands as they are sent, answers read; no I/O.

One thread waits for all servers at once, so that nothing here may ask a socket for more: libvalkey,
the parser in C of Valkey's own people, is given what has come.
"""

from __future__ import annotations

from typing import Any, Final

from libvalkey import Reader, pack_command

from lockclient.stores.valkey import errors

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one answer: twice what the longest one has, a hundred locks that say all they may."""
_UNFINISHED: Final = object()


class AnswerReader:
    """Reads the answers of one connection, each of them up to a bound: a server may begin what has
    no end."""

    def __init__(self) -> None:
        self._parser = Reader(
            protocolError=errors.MalformedReply,
            replyError=errors.server_error,
            notEnoughData=_UNFINISHED,
        )
        self._unanswered = 0

    def read(self, data: bytes) -> list[Any]:
        """Return the answers that end with these bytes; one that is an error is an exception.

        Raises:
            errors.MalformedReply: no server says that, or one of them exceeds `MAX_ANSWER_BYTES`.
        """
        self._unanswered += len(data)
        if self._unanswered > MAX_ANSWER_BYTES:
            raise errors.MalformedReply("its answer does not end")
        self._parser.feed(data)
        answers: list[Any] = []
        while (answer := self._parser.gets()) is not _UNFINISHED:
            answers.append(answer)
            self._unanswered = 0
        return answers


def packed(words: tuple[str, ...]) -> bytes:
    """Return a command as it is sent."""
    try:
        return pack_command(words)
    except UnicodeEncodeError:  # a lone surrogate
        return pack_command(tuple(word.encode(errors="replace") for word in words))
