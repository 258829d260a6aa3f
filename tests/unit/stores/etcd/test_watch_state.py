"""Watches and their positions: events in order, once, and safe restarts."""

from __future__ import annotations

import math
from typing import cast

import pytest

from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.watch_state import (
    MAX_HELD_BYTES,
    REFUSAL_BELIEVED_S,
    SILENCE_S,
    Events,
    News,
    OpenStream,
    StaleToken,
    Started,
    Watch,
    WatchEnded,
)

REFUSED = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"


class Client:
    """The watches of one client, and the events of each; the test plays etcd and the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.told: list[News] = []
        self.wanted: dict[Watch, None] = {}
        self.reopen()

    def reopen(self) -> list[wire.WatchRequest]:
        """Go on by a new stream; return what begins there."""
        self.stream = OpenStream(self.wanted, b"/below/", self.now)
        return self.sent()

    def sent(self) -> list[wire.WatchRequest]:
        """Return what was to be sent since this was last called."""
        self.stream.stop()
        return list(self.stream.requests())

    def add(self, revision: int, *, tell_start: bool = False) -> tuple[Watch, wire.WatchCreate]:
        watch = Watch((b"k", b""), revision, self.told.append, self.close, tell_start=tell_start)
        self.wanted[watch] = None
        self.stream.begin(watch)
        (request,) = self.sent()
        return watch, request.create

    def close(self, watch: Watch) -> None:
        del self.wanted[watch]
        self.stream.end(watch)

    def hear(self, answer: wire.WatchAnswer) -> list[wire.WatchRequest]:
        found = self.stream.answered(answer, self.now)
        if found is not None:
            found[0].notify(found[1])
        return self.sent()

    def created(self, number: int, revision: int) -> list[wire.WatchRequest]:
        header = wire.Header(revision=revision)
        return self.hear(wire.WatchAnswer(header=header, watch_id=number, created=True))

    def refused(self, number: int = -1, reason: str = REFUSED) -> list[wire.WatchRequest]:
        return self.hear(
            wire.WatchAnswer(watch_id=number, created=True, canceled=True, cancel_reason=reason)
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


class TestStart:
    def test_a_watch_of_a_future_revision_begins_there(self, client: Client) -> None:
        _, create = client.add(8)
        assert create.start_revision == 8
        assert client.created(create.watch_id, 7) == []
        assert client.told == []

    @pytest.mark.parametrize(("revision", "earlier"), [(8, 7), (1, 1)])
    def test_a_watch_of_a_past_revision_begins_one_earlier(
        self, client: Client, revision: int, earlier: int
    ) -> None:
        _, create = client.add(revision)
        assert create.start_revision == revision
        cancel, again = client.created(create.watch_id, revision)
        assert cancel.cancel.watch_id == create.watch_id
        assert again.create.start_revision == earlier
        client.events(create.watch_id, revision)
        assert client.told == []
        assert client.created(again.create.watch_id, 9) == []
        client.events(again.create.watch_id, *sorted({earlier, revision, revision + 1}))
        assert client.revisions() == [revision, revision + 1]

    def test_a_watch_from_now_begins_at_the_revision_that_etcd_names(self, client: Client) -> None:
        _, create = client.add(0)
        assert create.start_revision == 0
        (again,) = client.reopen()
        assert again.create.start_revision == 0
        client.created(again.create.watch_id, 12)
        assert client.told == [Started(12)]
        (again,) = client.reopen()
        assert again.create.start_revision == 12
        client.created(again.create.watch_id, 15)
        assert client.told == [Started(12)]

    def test_a_watch_reports_its_start(self, client: Client) -> None:
        _, create = client.add(8, tell_start=True)
        (_, again) = client.created(create.watch_id, 9)
        assert client.told == []
        client.created(again.create.watch_id, 9)
        assert client.told == [Started(7)]
        (again,) = client.reopen()
        client.created(again.create.watch_id, 9)
        assert client.told == [Started(7), Started(7)]


def test_each_watch_begins_and_ends_once_in_any_order(client: Client) -> None:
    watch, create = client.add(8)
    client.stream.begin(watch)
    assert client.sent() == [], "it came as the stream was opened"
    # One that is closed is ended and not heard, also before it is begun one revision earlier.
    header = wire.Header(revision=9)
    answer = wire.WatchAnswer(header=header, watch_id=create.watch_id, created=True)
    client.stream.answered(answer, client.now)
    watch.close()
    (request,) = client.sent()
    assert request.cancel.watch_id == create.watch_id
    client.events(create.watch_id, 8)
    assert client.told == []
    # One that is closed before it is begun is never begun.
    watch = Watch((b"k", b""), 8, client.told.append, client.close)
    client.wanted[watch] = None
    client.stream.begin(watch)
    watch.close()
    assert client.sent() == []


class TestSilence:
    def test_a_silent_stream_has_a_second_for_a_proof(self, client: Client) -> None:
        client.add(8)
        assert client.stream.check(client.now + SILENCE_S / 4) == SILENCE_S * 3 / 4
        assert client.sent() == []
        assert client.stream.check(client.now + SILENCE_S) == SILENCE_S
        create, cancel = client.sent()
        assert create.create.key == b"/below/"
        assert cancel.cancel.watch_id == create.create.watch_id
        # A process that was stopped can't tell whether the answer has come meanwhile.
        assert client.stream.check(client.now + 3600) == SILENCE_S
        assert len(client.sent()) == 2
        assert client.stream.check(client.now + 3600 + SILENCE_S) is None
        client.stream.heard_at = math.inf  # an answer that is being handled is no silence
        assert client.stream.check(client.now + 3600 + SILENCE_S) == SILENCE_S

    @pytest.mark.parametrize("is_allowed", [True, False])
    def test_any_answer_is_a_proof(self, client: Client, is_allowed: bool) -> None:
        """A refusal, too; it neither is a stale token, however old, nor counts for a watch."""
        watch, create = client.add(8)
        client.created(create.watch_id, 7)
        client.now += 3600
        client.stream.check(client.now)
        proof = client.sent()[0].create
        if is_allowed:
            client.created(proof.watch_id, 9)
        else:
            client.refused()
        client.stream.heard_at = client.now + SILENCE_S / 2
        assert client.stream.check(client.now + SILENCE_S) == SILENCE_S / 2
        assert client.told == []
        assert watch in client.wanted
        client.events(create.watch_id, 8)
        assert client.revisions() == [8]


class TestReopening:
    def test_an_etcd_whose_revision_went_back(self, client: Client) -> None:
        _, create = client.add(8)
        client.created(create.watch_id, 7)
        (again,) = client.reopen()
        client.created(again.create.watch_id, 6)
        assert client.told == [WatchEnded()]
        assert client.reopen() == []
        client.add(9)
        client.created(create.watch_id + 2, 6)  # a new one may well be ahead of a late member
        assert client.told == [WatchEnded()]


class TestRefusals:
    @pytest.mark.parametrize(
        ("says_which", "reason", "told"),
        [
            (True, REFUSED, "permission denied"),
            (False, REFUSED, "permission denied"),
            (True, "", "no reason given"),
        ],
    )
    def test_a_refusal_on_a_fresh_stream_is_believed(
        self, client: Client, says_which: bool, reason: str, told: str
    ) -> None:
        _, allowed = client.add(8)
        refused, create = client.add(8)
        client.created(allowed.watch_id, 7)
        client.refused(create.watch_id if says_which else -1, reason)
        assert client.told == [WatchEnded(told)]
        assert refused not in client.wanted
        assert len(client.reopen()) == 1

    def test_a_refused_watch_does_not_reopen_the_stream_each_time(self, client: Client) -> None:
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


class TestFragments:
    """etcd splits a large revision into several messages; it is reported whole all the same."""

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

    def test_fragments_held_back_are_read_again_from_the_next_stream(self, client: Client) -> None:
        watch, create = client.add(8)
        client.created(create.watch_id, 7)
        self.hear(client, create.watch_id, 8, 9, more=True)
        (again,) = client.reopen()
        assert again.create.start_revision == 8
        client.created(again.create.watch_id, 9)
        self.hear(client, again.create.watch_id, 8, 9, 9, more=False)
        assert client.revisions() == [8, 9, 9]
        assert watch.held == []

    def test_an_endless_revision_is_reported_as_missed(self, client: Client) -> None:
        _, create = client.add(8)
        client.created(create.watch_id, 7)
        many = [wire.WatchEvent(kv=wire.KeyValue(key=b"k" * 1000, mod_revision=8))] * 1000
        for _ in range(MAX_HELD_BYTES // 1_000_000 + 1):
            client.hear(wire.WatchAnswer(watch_id=create.watch_id, events=many, fragment=True))
        assert client.told == [WatchEnded()]
        assert not client.wanted
