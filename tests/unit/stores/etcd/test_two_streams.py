"""A watch by two streams: what either of them tells is told once, and no begin hides a gap."""

from __future__ import annotations

import threading
from typing import Any

from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.watch_state import News, Started
from lockclient.stores.etcd.wire.watch_stream import Watch


class Stream:
    """A stream that says what the test has it say."""

    wanted: Any = None

    def add(self, wanted: Any) -> None:
        self.wanted = wanted

    def says(self, news: News) -> None:
        self.wanted.notify(news)


def deleted(revision: int) -> list[wire.WatchEvent]:
    return [wire.WatchEvent(kv=wire.KeyValue(mod_revision=revision))]


def test_a_stream_that_begins_later_says_so_and_each_event_is_told_once_and_in_order() -> None:
    """The first one froze after its begin: what happened until the second one's is in neither."""
    one, other, told = Stream(), Stream(), list[Any]()
    streams: Any = (one, other)
    later = threading.Thread(target=other.says, args=(deleted(12),))

    def listen(news: News) -> None:
        revision = news[0].kv.mod_revision if isinstance(news, list) else None
        if revision == 11:  # the other stream's thread comes while this one hands over
            later.start()
            later.join(0.2)  # enough for a thread that waits for nothing
        told.append(revision or news)

    Watch(streams, (b"key", b""), 0, listen)
    one.says(Started(5))
    other.says(Started(9))
    assert told == [Started(5), Started(9)]
    other.says(deleted(10))
    one.says(deleted(7))  # it thaws: the listener has looked, and knows
    one.says(deleted(10))
    one.says(deleted(11))
    later.join(5)
    assert told[2:] == [10, 11, 12]


def test_a_begin_at_no_later_revision_is_told_once() -> None:
    one, other, told = Stream(), Stream(), list[News]()
    streams: Any = (one, other)
    Watch(streams, (b"key", b""), 0, told.append)
    for stream in (one, other, one):
        stream.says(Started(5))
    assert told == [Started(5)]
