"""Which watches there are and where each stands: told in order, once, and begun again safely."""

from __future__ import annotations

from typing import cast

import pytest

from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.watch_state import (
    MAX_HELD_BYTES,
    REFUSAL_BELIEVED_S,
    Events,
    Missed,
    News,
    StaleToken,
    Started,
    Wanted,
    Watches,
)

REFUSED = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"


class Client:
    """The watches of one client, and what each was told; the test plays etcd and the clock."""

    def __init__(self) -> None:
        self.watches = Watches()
        self.now = 1000.0
        self.told: list[News] = []
        self.watches.opened(self.now)

    def add(self, revision: int, *, tell_start: bool = False) -> tuple[Wanted, wire.WatchCreate]:
        watch = Wanted((b"k", b""), revision, self.told.append, tell_start=tell_start)
        return watch, self.watches.add(watch).create

    def hear(self, answer: wire.WatchAnswer) -> list[wire.WatchRequest]:
        requests, watch, news = self.watches.answered(answer, self.now)
        if watch is not None and news is not None:
            watch.notify(news)
        return requests

    def created(self, number: int, revision: int) -> list[wire.WatchRequest]:
        header = wire.Header(revision=revision)
        return self.hear(wire.WatchAnswer(header=header, watch_id=number, created=True))

    def refused(self, number: int = -1) -> list[wire.WatchRequest]:
        return self.hear(
            wire.WatchAnswer(watch_id=number, created=True, canceled=True, cancel_reason=REFUSED)
        )

    def events(self, number: int, *revisions: int) -> None:
        self.hear(
            wire.WatchAnswer(watch_id=number, events=[event(revision) for revision in revisions])
        )

    def revisions(self) -> list[int]:
        return [told.kv.mod_revision for news in self.told for told in cast(Events, news)]


def event(revision: int) -> wire.WatchEvent:
    return wire.WatchEvent(kv=wire.KeyValue(key=b"k", mod_revision=revision))


@pytest.fixture
def client() -> Client:
    return Client()


class TestWhereItBegins:
    def test_in_the_future_it_begins_right_there(self, client: Client) -> None:
        """Where nothing can be compacted; so it is served at once."""
        _, create = client.add(8)
        assert create.start_revision == 8
        assert client.created(create.watch_id, 7) == []
        assert client.told == []

    def test_in_the_past_it_begins_one_revision_earlier(self, client: Client) -> None:
        """Because of what may have been compacted there; the other one is ended, and not heard."""
        _, create = client.add(8)
        cancel, again = client.created(create.watch_id, 8)
        assert cancel.cancel.watch_id == create.watch_id
        assert again.create.start_revision == 7
        client.events(create.watch_id, 8)
        assert client.told == []
        assert client.created(again.create.watch_id, 9) == []
        client.events(again.create.watch_id, 7, 8, 9)
        assert client.revisions() == [8, 9]

    def test_the_first_revision_of_all(self, client: Client) -> None:
        """0 would mean "from now on"."""
        _, create = client.add(1)
        (_, again) = client.created(create.watch_id, 5)
        assert (create.start_revision, again.create.start_revision) == (1, 1)
        client.events(again.create.watch_id, 1, 2)
        assert client.revisions() == [1, 2]

    def test_now_is_when_etcd_says_it_was(self, client: Client) -> None:
        """And it is told, once; a stream that breaks before leaves it at "now"."""
        _, create = client.add(0)
        assert create.start_revision == 0
        (again,) = client.watches.opened(client.now)
        assert again.create.start_revision == 0
        client.created(again.create.watch_id, 12)
        assert client.told == [Started(12)]
        (again,) = client.watches.opened(client.now)
        assert again.create.start_revision == 12
        client.created(again.create.watch_id, 15)
        assert client.told == [Started(12)]

    def test_who_wants_to_know_is_told_that_it_stands(self, client: Client) -> None:
        """Not before the one that counts, and again on each stream."""
        _, create = client.add(8, tell_start=True)
        (_, again) = client.created(create.watch_id, 9)
        assert client.told == []
        client.created(again.create.watch_id, 9)
        assert client.told == [Started(7)]
        (again,) = client.watches.opened(client.now)
        client.created(again.create.watch_id, 9)
        assert client.told == [Started(7), Started(7)]


class TestAgain:
    def test_an_etcd_that_went_back_in_time(self, client: Client) -> None:
        """Put back from a backup: what is known does not hold there."""
        _, create = client.add(8)
        client.created(create.watch_id, 7)
        (again,) = client.watches.opened(client.now)
        client.created(again.create.watch_id, 6)
        assert client.told == [Missed()]
        assert client.watches.opened(client.now) == []
        client.add(9)
        client.created(create.watch_id + 2, 6)  # a new one may well be ahead of a late member
        assert client.told == [Missed()]


class TestRefusals:
    @pytest.mark.parametrize("says_which", [True, False])
    def test_on_a_fresh_stream_it_is_believed(self, client: Client, says_which: bool) -> None:
        """And told to the one that it is for, even where etcd does not say which one it is."""
        told: list[News] = []
        allowed = client.watches.add(Wanted((b"a", b""), 8, told.append)).create
        _, create = client.add(8)
        client.created(allowed.watch_id, 7)
        client.refused(create.watch_id if says_which else -1)
        assert client.told == [Missed("permission denied")]
        assert told == []
        assert len(client.watches.opened(client.now)) == 1

    def test_it_is_not_doubted_with_each_try(self, client: Client) -> None:
        """A watch without the right must not disturb all others once a second."""
        client.add(8)
        client.refused()
        for _ in range(int(REFUSAL_BELIEVED_S) - 1):
            client.now += 1
            client.add(8)
            client.refused()
        client.now += 1
        client.add(8)
        with pytest.raises(StaleToken):
            client.refused()

    def test_without_a_reason(self, client: Client) -> None:
        """Something is said all the same."""
        _, create = client.add(8)
        client.hear(wire.WatchAnswer(watch_id=create.watch_id, created=True, canceled=True))
        assert client.told == [Missed("no reason given")]


class TestAnswersInPieces:
    """etcd cuts what is more than about one request: a revision is told whole all the same."""

    def hear(self, client: Client, number: int, *revisions: int, more: bool) -> None:
        events = [event(revision) for revision in revisions]
        client.hear(wire.WatchAnswer(watch_id=number, events=events, fragment=more))

    def test_the_last_revision_waits_for_its_rest(self, client: Client) -> None:
        _, create = client.add(8)
        assert create.fragment
        client.created(create.watch_id, 7)
        self.hear(client, create.watch_id, 8, 9, 9, more=True)
        assert client.revisions() == [8]
        self.hear(client, create.watch_id, 9, 9, more=True)
        assert client.revisions() == [8]
        self.hear(client, create.watch_id, 9, 10, more=False)
        assert client.told[1:] == [[event(9)] * 5 + [event(10)]]

    def test_what_was_held_back_is_told_again_by_the_next_stream(self, client: Client) -> None:
        watch, create = client.add(8)
        client.created(create.watch_id, 7)
        self.hear(client, create.watch_id, 8, 9, more=True)
        (again,) = client.watches.opened(client.now)
        assert again.create.start_revision == 8
        client.created(again.create.watch_id, 9)
        self.hear(client, again.create.watch_id, 8, 9, 9, more=False)
        assert client.revisions() == [8, 9, 9]
        assert watch.held == []

    def test_one_revision_without_end_is_missed(self, client: Client) -> None:
        """Somebody has deleted very many keys with long names: whoever follows reads anew."""
        _, create = client.add(8)
        client.created(create.watch_id, 7)
        many = [wire.WatchEvent(kv=wire.KeyValue(key=b"k" * 1000, mod_revision=8))] * 1000
        for _ in range(MAX_HELD_BYTES // 1_000_000 + 1):
            client.hear(wire.WatchAnswer(watch_id=create.watch_id, events=many, fragment=True))
        assert client.told == [Missed()]
        assert client.watches.empty()
