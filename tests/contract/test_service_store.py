"""A store for services: reading and following all keys, announcements, clean-up."""

from __future__ import annotations

import threading
from functools import partial
from time import monotonic

import pytest

from lockclient.stores.request_types import Take, Withdraw
from lockclient.stores.service_store import MAX_DOCUMENT_BYTES, Batch, Document, ServiceStore
from tests.contract.asking import Ask, holder, queue
from tests.contract.following import (
    Follower,
    loaded,
    read,
    remove,
    soon,
    standing,
    take,
    unlock,
)
from tests.support.processes import wait_until

pytestmark = pytest.mark.needs("services")

TTL_S = 2.0
SIGN = '{"ttl": 2}'


class TestLoad:
    def test_load_reads_everything_at_one_revision(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        assert loaded(reader) == []
        first = take(writer, "a", backtrace="long " * 500)
        held = take(writer, "ü/b", reason="a reason")
        record = remove(writer, first)
        writer.announce("u", SIGN, TTL_S, soon())
        batches = list(reader.load(("locks", "unlockers", "removed"), soon()))
        assert len({batch.revision for batch in batches}) == 1
        found = standing([change for batch in batches for change in batch.changes])
        parts = {part: value.encode() for part, value in held.subkeys().items()}
        assert {key: value for key, value in found.items() if key[0] == "locks"} == {
            ("locks", "ü/b", part): value for part, value in parts.items()
        }
        assert found["unlockers", "u", ""] == SIGN.encode()
        assert ("removed", "a", record.holder.uuid) in found
        assert len(found) == len(parts) + 2

    def test_load_reads_only_the_requested_kinds(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        take(writer, "a")
        remove(writer, take(writer, "b"))
        writer.announce("u", SIGN, TTL_S, soon())
        for kind in ("locks", "removed", "unlockers"):
            assert {change.kind for change in loaded(reader, kind)} == {kind}

    def test_the_revision_of_a_load_grows_with_each_write(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        revisions = []
        for number in range(3):
            take(writer, f"lock-{number}")
            (*batches, last) = reader.load(("locks",), soon())
            revisions.append(last.revision)
            for batch in (*batches, last):
                assert all(change.revision <= last.revision for change in batch.changes)
        assert revisions == sorted(set(revisions))

    @pytest.mark.needs("queue")
    def test_tickets_and_tombstones_are_loaded_without_values(
        self, ask: Ask, reader: ServiceStore
    ) -> None:
        mine, waiter, late = holder(), holder(), holder()
        ask(Take(mine))
        queue(ask, waiter)
        ask(Withdraw(mine.name, late.uuid or "", tombstone=True))
        found = loaded(reader, "queue", "withdrawn")
        assert {(change.kind, change.part, change.value) for change in found} == {
            ("queue", waiter.uuid, b""),
            ("withdrawn", late.uuid, b""),
        }


class TestFollow:
    def test_load_and_follow_together_equal_the_store(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        gone, kept = take(writer, "gone"), take(writer, "kept")
        loading = list(reader.load(("locks", "unlockers", "removed", "withdrawn"), soon()))
        take(writer, "between")
        batches: list[Batch] = []
        following = reader.follow(loading[-1].revision + 1, batches.append)
        unlock(writer, gone)
        other = take(writer, "gone", reason="again")
        remove(writer, kept)
        writer.announce("u", SIGN, 60.0, soon())
        last = take(writer, "last")
        kinds = ("locks", "removed", "unlockers")
        there = {key: v for key, v in standing(loaded(writer)).items() if key[0] in kinds}
        assert there["locks", "gone", "uuid"] == (other.uuid or "").encode()
        assert ("locks", "between", "uuid") in there
        assert there["locks", "last", "uuid"] == (last.uuid or "").encode()

        def told() -> dict[object, bytes | None]:
            all_told = [change for batch in [*loading, *batches] for change in batch.changes]
            return {key: v for key, v in standing(all_told).items() if key[0] in kinds}

        wait_until(lambda: told() == there, what="all to be told")
        following.close()

    @pytest.mark.needs("watch")
    def test_each_change_is_reported_once_in_order(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        follower = Follower(reader)
        for number in range(20):
            unlock(writer, take(writer, f"lock-{number % 2}"))
        take(writer, "last")
        wait_until(lambda: follower.holds("last"), what="the last lock")
        assert follower.batches[0].started
        assert not any(batch.changes for batch in follower.batches if batch.started)
        news = follower.news()
        revisions = [change.revision for change in news]
        assert revisions == sorted(revisions)
        assert len({(*change[:3], change.revision) for change in news}) == len(news)
        uuids = [change.value is not None for change in news if change.part == "uuid"]
        assert uuids == [True, False] * 20 + [True]
        for batch in follower.batches:
            assert all(change.revision <= batch.revision for change in batch.changes)
        ends = [batch.changes[-1].revision for batch in follower.batches if batch.changes]
        assert len(set(ends)) == len(ends)

    def test_a_slow_callback_gets_one_batch_at_a_time(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        (*_, last) = reader.load(("locks",), soon())
        told: list[Batch] = []
        inside, let_go = threading.Semaphore(1), threading.Event()

        def notify(batch: Batch) -> None:
            assert inside.acquire(blocking=False), "two at once"
            told.append(batch)
            if batch.changes:
                let_go.wait(60)
            inside.release()

        slow, quick = reader.follow(last.revision + 1, notify), Follower(writer)
        take(writer, "first")
        wait_until(lambda: told and told[-1].changes, what="the first lock")
        writer.reopen_watch()
        take(writer, "second")
        wait_until(lambda: quick.holds("second"), what="another to be told")
        assert told[-1].changes[0].name == "first"
        let_go.set()
        # Perhaps not by the last batch: a store that is polled tells that nothing has changed, too.
        wait_until(lambda: "second" in [change.name for batch in told for change in batch.changes])
        slow.close()

    def test_a_closed_subscription_reports_nothing(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        closed, open_ = Follower(reader), Follower(reader)
        take(writer, "before")
        wait_until(lambda: closed.holds("before"), what="the first lock")
        closed.subscription.close()
        take(writer, "after")
        wait_until(lambda: open_.holds("after"), what="the second lock")
        assert not closed.holds("after")

    def test_a_reopened_watch_misses_nothing(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        follower = Follower(reader)
        wait_until(reader.connected, what="the watch")
        for number in range(3):
            take(writer, f"before-{number}")
            reader.reopen_watch()
            take(writer, f"after-{number}")
        names = [f"{when}-{number}" for number in range(3) for when in ("before", "after")]
        wait_until(lambda: all(map(follower.holds, names)), what="all of them")
        uuids = [change.name for change in follower.news() if change.part == "uuid"]
        assert sorted(uuids) == sorted(names)
        wait_until(reader.connected, what="the watch to be there again")
        assert reader.watch_restarts() >= 0

    def test_a_polled_store_states_its_interval(self, reader: ServiceStore) -> None:
        assert (reader.poll == 0) == reader.can.watch
        if reader.poll:
            follower, began = Follower(reader), monotonic()
            wait_until(lambda: len(follower.batches) > 2, what="some looks")
            first, *_, last = follower.batches
            assert began - 10 < first.known_at < last.known_at <= monotonic()
            assert follower.revision < first.revision < last.revision


class TestAnnouncements:
    def test_an_announcement_is_written_renewed_and_withdrawn(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        for value in ("1", "2"):
            revision = writer.announce("a/ü", f'{{"ttl": 60, "x": {value}}}', 60.0, soon())
            writer.announce("b", '{"ttl": 60}', 60.0, soon())
            assert revision >= 0  # 0: a store that knows of no revision yet
            signs = {change.name: change.value for change in loaded(reader, "unlockers")}
            said = f'{{"ttl": 60, "x": {value}}}'.encode()
            assert signs == {"a/ü": said, "b": b'{"ttl": 60}'}
        for _ in range(2):
            writer.withdraw_announcement("a/ü", soon())
            assert [change.name for change in loaded(reader, "unlockers")] == ["b"]

    def test_an_announcement_that_is_not_renewed_expires(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        follower, began = Follower(reader), monotonic()
        writer.announce("u", SIGN, TTL_S, soon())
        wait_until(lambda: ("unlockers", "u", "") in follower.standing(), what="it to come")
        wait_until(lambda: ("unlockers", "u", "") not in follower.standing(), what="its end")
        assert monotonic() - began >= TTL_S - 1.0
        if reader.can.display_name == "Google Cloud Storage":
            # A bucket's answers have its time in whole seconds, so two readings may differ by one.
            wait_until(lambda: loaded(reader, "unlockers") == [], what="its end for all")
        else:
            assert loaded(reader, "unlockers") == []
        writer.announce("u", SIGN, TTL_S, soon())
        assert [change.name for change in loaded(reader, "unlockers")] == ["u"]

    def test_the_newest_announcement_proves_that_the_watch_is_current(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        follower = Follower(reader)

        def told(revision: int) -> bool:
            return bool(follower.batches) and follower.batches[-1].revision >= revision

        for number in range(3):
            take(writer, f"lock-{number}")
            written = reader.announce(f"u-{number}", '{"ttl": 60}', 60.0, soon())
            newest = reader.newest_announcement(soon())
            assert 0 < written <= newest
            wait_until(partial(told, newest), what="the news")
            assert follower.holds(f"lock-{number}")
            assert ("unlockers", f"u-{number}", "") in follower.standing()


class TestForget:
    def test_a_record_is_forgotten(self, reader: ServiceStore, writer: ServiceStore) -> None:
        first, second = remove(writer, take(writer, "a")), remove(writer, take(writer, "b"))
        change = next(record for record in loaded(reader, "removed") if record.name == "a")
        assert reader.forget(change, soon())
        assert [change.name for change in loaded(reader, "removed")] == ["b"]
        for removal, there in ((first, False), (second, True)):
            found = read(reader, removal.holder.name, removal.holder.uuid)
            assert (found.holder, found.removal is not None) == (None, there)

    def test_a_tombstone_is_forgotten_unless_it_was_replaced(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        removed = remove(writer, take(writer, "a")).holder
        marks = loaded(reader, "withdrawn")
        other = take(writer, "a")
        for change in marks:
            reader.forget(change, soon())
        found = read(reader, "a").holder
        assert found is not None
        assert found.uuid == other.uuid != removed.uuid
        remove(writer, other)
        for change in (left := loaded(reader, "withdrawn")):
            assert reader.forget(change, soon())
            assert not reader.forget(change, soon())
        assert loaded(reader, "withdrawn") == []
        assert bool(left) == bool(marks)

    @pytest.mark.needs("queue")
    def test_a_rewritten_tombstone_is_not_forgotten(self, ask: Ask, reader: ServiceStore) -> None:
        late = Withdraw("a", "uuid", tombstone=True)
        ask(late)
        (before,) = loaded(reader, "withdrawn")
        ask(late)
        (mark,) = loaded(reader, "withdrawn")
        assert not reader.forget(before, soon())
        assert loaded(reader, "withdrawn") == [mark]
        assert reader.forget(mark, soon())

    def test_a_long_backtrace_is_read_from_its_own_key(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        backtrace = "File x, in main\n" * 500
        removals = [remove(writer, take(writer, name, backtrace=backtrace)) for name in "ab"]
        for removal in removals:
            found = read(reader, removal.holder.name, removal.holder.uuid).removal
            assert found is not None
            assert found.holder.backtrace == backtrace
        codes = loaded(reader, "code")
        assert len(codes) <= 1
        for change in codes:
            assert reader.backtrace(change.name, soon()) == backtrace.encode()
            assert reader.forget(change, soon())
            assert reader.backtrace(change.name, soon()) is None
        assert reader.backtrace("0" * 64, soon()) is None


SENT = "sent/ops"


def document(store: ServiceStore, name: str = SENT) -> Document:
    return store.read_document(name, soon())


def write(store: ServiceStore, value: bytes, name: str = SENT) -> Document:
    """Write a document in place of the one that is there; return it as read again."""
    assert store.write_document(name, value, document(store, name), soon())
    return document(store, name)


class TestDocuments:
    def test_a_document_is_written_by_compare_and_swap(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        nothing = document(reader)
        assert nothing.value == b""
        first = document(writer)
        assert writer.write_document(SENT, "ü first".encode(), first, soon())
        assert not reader.write_document(SENT, b"late", nothing, soon())
        seen = document(reader)
        assert seen.value == "ü first".encode()
        assert reader.write_document(SENT, b"second", seen, soon())
        assert not writer.write_document(SENT, b"late", first, soon())
        assert not writer.write_document(SENT, b"", first, soon())
        assert document(writer).value == b"second"

    def test_concurrent_writers_of_a_document_lose_nothing(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        words = [f"{who}-{number}" for who in range(4) for number in range(4)]

        def add(store: ServiceStore, mine: list[str]) -> None:
            for word in mine:
                while True:
                    seen = document(store)
                    assert seen.value is not None
                    if word in seen.value.decode().split():  # by a try whose answer was no
                        break
                    if store.write_document(SENT, seen.value + f" {word}".encode(), seen, soon()):
                        break

        threads = [
            threading.Thread(target=add, args=(store, words[4 * who : 4 * who + 4]))
            for who, store in enumerate((reader, writer, reader, writer))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted((document(reader).value or b"").decode().split()) == words

    def test_one_of_two_writers_of_the_same_version_wins(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        seen = [document(reader), document(writer)]
        for value in (b"there", b""):
            won = [
                store.write_document(SENT, value, found, soon()) is not None
                for store, found in zip((reader, writer), seen, strict=True)
            ]
            assert won.count(True) == 1
            assert document(reader).value == value
            seen = [document(reader), document(writer)]

    def test_a_writer_knows_the_version_that_it_wrote(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        seen = document(writer)
        for value in (b"first", b"second", b"", b"third"):
            written = writer.write_document(SENT, value, seen, soon())
            assert written is not None
            assert written.value == value
            seen = written
        assert document(reader).value == b"third"

    def test_a_document_that_was_seen_is_replaced_once(self, writer: ServiceStore) -> None:
        seen = document(writer)
        assert writer.write_document(SENT, b"first", seen, soon())
        assert not writer.write_document(SENT, b"second", seen, soon())
        assert document(writer).value == b"first"

    def test_two_documents_do_not_disturb_each_other(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        names = ("note", SENT, "sent/ops-2")
        seen = {name: document(reader, name) for name in names}
        for name in names:
            assert reader.write_document(name, name.encode(), seen[name], soon())
        assert [document(writer, name).value for name in names] == [n.encode() for n in names]
        write(writer, b"")
        assert [document(reader, name).value for name in names] == [b"note", b"", b"sent/ops-2"]

    def test_an_empty_value_deletes_a_document(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        assert write(writer, b"").value == b""  # there was none
        stale = write(writer, b"first")
        deleted = write(writer, b"")
        assert deleted.value == b""
        assert not reader.write_document(SENT, b"late", stale, soon())
        assert writer.write_document(SENT, b"again", deleted, soon())
        assert document(reader).value == b"again"

    def test_an_oversized_document_is_read_as_none_and_replaced(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        longest = b"x" * MAX_DOCUMENT_BYTES
        assert write(writer, longest).value == longest
        assert write(writer, longest + b"x").value is None
        seen = document(reader)
        assert seen.value is None
        assert reader.write_document(SENT, b"short", seen, soon())
        assert document(writer).value == b"short"
        write(writer, longest + b"x")
        assert write(writer, b"").value == b""

    def test_documents_are_listed_until_they_are_deleted(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        take(writer, "a")
        assert reader.document_names(soon()) == []
        assert document(reader, "sent/read-only").value == b""
        for name in ("note", SENT, "sent/x"):
            write(writer, b"{}", name)
        assert sorted(reader.document_names(soon())) == ["note", SENT, "sent/x"]
        write(writer, b"", "note")
        assert sorted(reader.document_names(soon())) == [SENT, "sent/x"]
        write(writer, b"{}", "note")
        assert sorted(reader.document_names(soon())) == ["note", SENT, "sent/x"]

    def test_documents_are_not_listed_as_locks(
        self, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        take(writer, "a")
        before = loaded(reader)
        write(writer, b"a note", "note")
        write(writer, b"sent")
        assert loaded(reader) == before
