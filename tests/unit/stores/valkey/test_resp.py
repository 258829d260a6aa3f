"""What is sent to servers of Valkey's, and what is read of their answers."""

from __future__ import annotations

import pytest

from lockclient.stores.valkey import errors
from lockclient.stores.valkey.wire.resp import AnswerReader, packed


def test_what_is_no_text_is_sent_all_the_same() -> None:
    assert packed(("GET", "\ud800")) == b"*2\r\n$3\r\nGET\r\n$1\r\n?\r\n"


def test_an_answer_is_had_when_all_of_it_is_there() -> None:
    """And the next one after it, by the same reader."""
    said = b"*4\r\n$4\r\nseen\r\n*2\r\n$3\r\na\r\n\r\n$-1\r\n:-7\r\n*0\r\n"
    reader = AnswerReader()
    for _ in range(2):
        for at in range(len(said) - 1):
            assert reader.read(said[at : at + 1]) == []
        assert reader.read(said[-1:]) == [[b"seen", [b"a\r\n", None], -7, []]]


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n"])
def test_what_is_no_answer_is_told(said: bytes) -> None:
    with pytest.raises(errors.Unanswered):
        AnswerReader().read(said)
