"""What is sent to servers of Valkey's."""

from __future__ import annotations

from lockclient.stores.valkey.wire.connection import packed


def test_what_is_no_text_is_sent_all_the_same() -> None:
    assert packed(("GET", "\ud800")) == b"*2\r\n$3\r\nGET\r\n$1\r\n?\r\n"
