"""Which watches there are and where each stands: told in order, once, and begun again safely."""

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
    Missed,
    News,
    OpenStream,
    StaleToken,
    Started,
    Watch,
)

REFUSED = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"


class Client:
    """The watches of one client, and what each was told; the test plays etcd and the clock."""

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


class TestWhereItBegins:
    def test_in_the_future_it_begins_right_there(self, client: Client) -> None:
        """Where nothing can be compacted; so it is served at once."""
        _, create = client.add(8)
        assert create.start_revision == 8
        assert client.created(create.watch_id, 7) == []
        assert client.told == []

    @pytest.mark.parametrize(("revision", "earlier"), [(8, 7), (1, 1)])
    def test_in_the_past_it_begins_one_revision_earlier(
        self, client: Client, revision: int, earlier: int
    ) -> None:
        """Because of what may have been compacted there; the other one is ended, and not heard.

        But at 1 at the earliest: 0 would mean "from now on".
        """
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

    def test_now_is_when_etcd_says_it_was(self, client: Client) -> None:
        """And it is told, once; a stream that breaks before leaves it at "now"."""
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

    def test_who_wants_to_know_is_told_that_it_stands(self, client: Client) -> None:
        """Not before the one that counts, and again on each stream."""
        _, create = client.add(8, tell_start=True)
        (_, again) = client.created(create.watch_id, 9)
        assert client.told == []
        client.created(again.create.watch_id, 9)
        assert client.told == [Started(7)]
        (again,) = client.reopen()
        client.created(again.create.watch_id, 9)
        assert client.told == [Started(7), Started(7)]


def test_each_watch_is_begun_and_ended_once_whatever_comes_first(client: Client) -> None:
    """A caller, gRPC's thread and the reader of the stream share no lock."""
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


class TestAgain:
    def test_an_etcd_that_went_back_in_time(self, client: Client) -> None:
        """Put back from a backup: what is known does not hold there."""
        _, create = client.add(8)
        client.created(create.watch_id, 7)
        (again,) = client.reopen()
        client.created(again.create.watch_id, 6)
        assert client.told == [Missed()]
        assert client.reopen() == []
        client.add(9)
        client.created(create.watch_id + 2, 6)  # a new one may well be ahead of a late member
        assert client.told == [Missed()]


class TestRefusals:
    @pytest.mark.parametrize(
        ("says_which", "reason", "told"),
        [
            (True, REFUSED, "permission denied"),
            (False, REFUSED, "permission denied"),
            (True, "", "no reason given"),
        ],
    )
    def test_on_a_fresh_stream_it_is_believed(
        self, client: Client, says_which: bool, reason: str, told: str
    ) -> None:
        """And told to the one that it is for, even where etcd does not say which one it is."""
        _, allowed = client.add(8)
        refused, create = client.add(8)
        client.created(allowed.watch_id, 7)
        client.refused(create.watch_id if says_which else -1, reason)
        assert client.told == [Missed(told)]
        assert refused not in client.wanted
        assert len(client.reopen()) == 1

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
        (again,) = client.reopen()
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
        assert not client.wanted
