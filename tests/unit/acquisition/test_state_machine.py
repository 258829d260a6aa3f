"""One acquisition, step by step; `tests/proof/exhaust.py` tries all orders of several."""

from __future__ import annotations

import math
import os

import pytest

from lockclient.acquisition.state_machine import Acquisition, End, Step, Wait
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.model.process_identity import fingerprint
from lockclient.model.removal import Removal
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Outcome,
    Position,
    Queued,
    ReadResult,
    Refused,
    Taken,
)
from lockclient.stores.request_types import (
    Claim,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)

START = Now(1000.0, 5_000.0)


def at(seconds: float) -> Now:
    """The moment so many seconds after the start, on both clocks."""
    return Now(START.monotonic + seconds, START.wall + seconds)


def begun(
    *,
    queue: bool = True,
    line_ready: bool = False,
    identity: str | None = None,
    auto_unlock: float | None = 900.0,
) -> Acquisition:
    """An acquisition whose first request was sent."""
    holder = Holder("x", "me", hostname="h", pid=1, identity=identity, reason="why")
    acquisition = Acquisition(
        holder, Runtime(300.0, auto_unlock), queue=queue, has_ticket_lease=line_ready
    )
    acquisition.begin(START)
    return acquisition


def held(**how: object) -> Acquisition:
    """An acquisition that has the lock since the start."""
    acquisition = begun(**how)  # type: ignore[arg-type]
    assert acquisition.answered(Taken(5), at(0.001)) is End.ACQUIRED
    return acquisition


News = Outcome | WatchEvent | None


def steps(acquisition: Acquisition, *news: News) -> Step:
    """The last step after these outcomes, events, and silences of a minute (None)."""
    step: Step | None = None
    for each in news:
        if each is None or isinstance(each, WatchEvent):
            step = acquisition.woken(each, at(60))
        else:
            step = acquisition.answered(each, at(0.1))
    assert step is not None
    return step


HEAD, BEHIND = Queued(8, None, "other", 9), Queued(8, "ahead", "other", 9)
LOOK = GetPosition("x", "me", 8)
UNSURE = Position(True, None, "other", 9, is_unsure=True)
STANDS = Position(True, "ahead", "other", 20)


def on_holder(revision: int) -> Wait:
    return Wait(WatchTarget("x", waiter="me"), revision, from_now=True)


def on_ahead(revision: int, *, from_now: bool = False) -> Wait:
    return Wait(WatchTarget("x", "ahead", waiter="me"), revision, from_now)


def behind(waiters: int | None) -> Queued:
    return Queued(8, "ahead", "other", 9, waiters=waiters)


NEXT: dict[str, tuple[list[News], Step | type]] = {
    "the head watches the holder": ([HEAD], on_holder(10)),
    "another one the ticket ahead": ([BEHIND], on_ahead(10)),
    "from now in a short queue": ([behind(2)], on_ahead(10, from_now=True)),
    "from now in the longest short one": ([behind(32)], on_ahead(10, from_now=True)),
    "from the answer in a long one": ([behind(33)], on_ahead(10)),
    "the length counts when it joins": (
        [behind(32), None, STANDS],
        on_ahead(21, from_now=True),
    ),
    "the holder went: the head claims": ([HEAD, WatchEvent(12)], Claim),
    "the ticket ahead went: it looks": (
        [BEHIND, WatchEvent(12)],
        GetPosition("x", "me", 8, "ahead", 12),
    ),
    "an heir took over": ([HEAD, WatchEvent(12, "heir")], on_holder(13)),
    "it may have missed something": ([BEHIND, WatchEvent(0, gap=True)], LOOK),
    "a minute of silence: a cheap look": ([BEHIND, None], GetPosition("x", "me", 8, "ahead")),
    "the ticket ahead still stands": ([BEHIND, None, STANDS], on_ahead(21)),
    "it does not: a whole look": ([BEHIND, None, STANDS, None, UNSURE], LOOK),
    "queued twice, others behind": ([Queued(8, None, "o", 9, is_unsure=True)], LOOK),
    "its place is found": (
        [Queued(8, None, "o", 9, is_unsure=True), UNSURE, Position(True, "ahead", "o", 9)],
        on_ahead(10),
    ),
    "a client that knows no queue barged in": (
        [Queued(8, None, None, 8), Refused("barger", 11, ticket=True)],
        on_holder(12),
    ),
}
"""What a waiter hears after its first request was refused, and its next step."""


class TestTaking:
    def test_a_free_lock_takes_one_request(self) -> None:
        acquisition = Acquisition(Holder("x", "me"), Runtime(300.0, 900.0), queue=True)
        take = acquisition.begin(START)
        assert isinstance(take, Take)
        assert take.holder.locked_at == 5_000.0
        assert (take.holder.alert_at, take.holder.auto_unlock_at) == (5_300.0, 5_900.0)
        assert acquisition.answered(Taken(5), at(0.001)) is End.ACQUIRED
        assert acquisition.token == 5
        assert acquisition.holder.fencing_token == 5
        assert acquisition.deadline == START.monotonic + 900.0
        assert acquisition.quiet_until == START.monotonic + 1.0

    def test_a_non_blocking_acquire_sends_one_request(self) -> None:
        acquisition = begun(queue=False)
        assert steps(acquisition, Refused("other", 7)) is End.BUSY
        assert acquisition.start_withdrawal() is None

    def test_the_first_waiter_queues_with_its_second_request(self) -> None:
        """A ticket needs a lease: who knows of none tries without the line first."""
        step = steps(begun(), Refused("other", 7))
        assert isinstance(step, TakeOrQueue)
        assert step.ticket.uuid == "me"
        assert (step.ticket.reason, step.ticket.since) == ("why", 5_000.1)

    def test_a_waiter_with_a_ticket_lease_queues_at_once(self) -> None:
        acquisition = Acquisition(
            Holder("x", "me"), Runtime(300.0, 900.0), queue=True, has_ticket_lease=True
        )
        assert isinstance(acquisition.begin(START), TakeOrQueue)

    @pytest.mark.parametrize(("news", "step"), NEXT.values(), ids=NEXT)
    def test_the_next_step_of_a_waiter(self, news: list[News], step: Step | type) -> None:
        found = steps(begun(), Refused("other", 7), *news)
        assert type(found) is step or found == step

    def test_the_head_of_a_free_lock_claims_with_its_place(self) -> None:
        """Nobody ahead and nobody inside: the ticket's own revision is what claims."""
        step = steps(begun(), Refused(None, 7), Queued(8, None, None, 8))
        assert isinstance(step, Claim)
        assert step.ticket_revision == 8

    def test_a_waiter_that_lost_its_ticket_queues_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        acquisition = begun()
        steps(acquisition, Refused("other", 7), Queued(8, "ahead", "other", 9))
        assert isinstance(acquisition.woken(None, at(29)), GetPosition)
        again = acquisition.answered(Position(False, None, "other", 12), at(30))
        assert isinstance(again, TakeOrQueue)
        assert again.ticket.since == 5_000.1
        assert "Lost the place in the queue for 'x'" in caplog.text
        caplog.clear()
        steps(acquisition, Queued(20, None, None, 20))
        again = acquisition.answered(Refused(None, 21, ticket=False), at(31))
        assert isinstance(again, TakeOrQueue)
        assert "Lost the place in the queue for 'x'" in caplog.text


class TestLostAnswers:
    def test_a_retry_has_new_stamps(self) -> None:
        acquisition = begun()
        acquisition.delivery.is_unknown = True
        again = acquisition.again(at(10))
        assert isinstance(again, Take)
        assert (again.holder.uuid, again.holder.alert_at) == ("me", 5_310.0)

    def test_a_lock_taken_by_an_earlier_sending_is_confirmed_by_a_push(self) -> None:
        acquisition = begun()
        acquisition.delivery.is_unknown = True
        acquisition.again(at(0.1))
        push = acquisition.answered(Taken(5, by_earlier_send=True), at(0.2))
        assert isinstance(push, Push)
        assert (push.stamps.alert_at, push.revision) == (5_300.2, 5)
        push = acquisition.again(at(20))
        assert isinstance(push, Push)
        assert (push.stamps.alert_at, push.revision) == (5_320.0, 5)
        assert acquisition.answered(Done(9), at(20.1)) is End.ACQUIRED
        assert acquisition.deadline == START.monotonic + 20.0 + 900.0
        assert acquisition.holder.alert_at == 5_320.0

    def test_a_slow_answer_is_confirmed_first(self) -> None:
        assert isinstance(begun().answered(Taken(5), at(2)), Push)

    def test_a_lock_removed_before_its_confirmation_needs_a_new_uuid(self) -> None:
        patient, hasty = begun(), begun(queue=False)
        assert (
            steps(patient, Taken(5, by_earlier_send=True), NotHolder("o", None)) is End.UUID_SPENT
        )
        assert steps(hasty, Taken(5, by_earlier_send=True), NotHolder("o", None)) is End.BUSY
        assert hasty.start_withdrawal() == Withdraw("x", "me")
        again = patient.with_new_uuid("me-again").begin(at(1))
        assert isinstance(again, Take)
        assert (again.holder.uuid, again.holder.reason) == ("me-again", "why")

    def test_a_removed_uuid_is_not_used_again(self) -> None:
        acquisition = begun()
        assert (
            steps(acquisition, Refused(None, 7), Refused(None, 8, uuid_spent=True))
            is End.UUID_SPENT
        )

    @pytest.mark.parametrize(
        "outcomes", [[Taken(5)], [Refused("o", 5)], [Refused("o", 5), Queued(5, None, "o", 5)]]
    )
    def test_a_request_that_may_arrive_late_is_remembered(self, outcomes: list[Outcome]) -> None:
        acquisition = begun()
        acquisition.delivery.is_unknown = True
        steps(acquisition, *outcomes)
        assert acquisition.may_arrive_late
        assert acquisition.start_withdrawal() == Withdraw("x", "me", tombstone=True)

    def test_an_unanswered_take_is_withdrawn(self) -> None:
        acquisition = begun()
        assert acquisition.start_withdrawal() is None
        acquisition.delivery.is_unknown = True
        assert acquisition.start_withdrawal() == Withdraw("x", "me", tombstone=True)

    @pytest.mark.parametrize("identity", [None, "worker"])
    def test_an_interrupted_request_leaves_a_tombstone(self, identity: str | None) -> None:
        acquisition = begun(identity=identity)
        if identity is not None:
            previous = Holder("x", "dead", identity=identity)
            reclaim = steps(acquisition, Refused("dead", 4), ReadResult(previous, (), None, 4))
            assert isinstance(reclaim, Reclaim)
        acquisition.delivery.in_flight = True
        assert acquisition.start_withdrawal() == Withdraw("x", "me", tombstone=True)

    def test_a_waiter_withdraws_its_ticket(self) -> None:
        acquisition = begun()
        steps(acquisition, Refused("o", 7), Queued(8, None, "o", 9))
        assert acquisition.start_withdrawal() == Withdraw("x", "me")

    def test_an_unsent_take_needs_no_withdrawal(self) -> None:
        acquisition = Acquisition(Holder("x", "me"), Runtime(1.0, 2.0), queue=True)
        assert acquisition.start_withdrawal() is None


class TestIdentity:
    def test_the_own_dead_holder_is_replaced(self) -> None:
        """After a refusal it reads the holder, and takes over from itself."""
        acquisition = begun(identity="worker")
        assert steps(acquisition, Refused("dead", 4)) == Read("x")
        previous = Holder("x", "dead", identity="worker")
        reclaim = steps(acquisition, ReadResult(previous, (), None, 4))
        assert isinstance(reclaim, Reclaim)
        assert reclaim.previous == previous
        assert steps(acquisition, Taken(6)) is End.ACQUIRED

    def test_a_dead_holder_is_replaced_by_a_waiter_with_a_lease(self) -> None:
        acquisition = Acquisition(
            Holder("x", "me", identity="worker"),
            Runtime(300.0, 900.0),
            queue=True,
            has_ticket_lease=True,
        )
        assert isinstance(acquisition.begin(START), Take)
        assert steps(acquisition, Refused("dead", 4)) == Read("x")

    def test_the_log_names_containers(self, caplog: pytest.LogCaptureFixture) -> None:
        """Nothing proves that a process of another pid namespace runs."""
        acquisition = begun(identity="worker")
        steps(acquisition, Refused("dead", 4))
        previous = Holder("x", "dead", identity="worker")
        assert isinstance(steps(acquisition, ReadResult(previous, (), None, 4)), Reclaim)
        assert "in different containers" in caplog.text

    @pytest.mark.parametrize(
        "previous",
        [
            None,
            Holder("x", "o"),
            Holder("x", "o", identity="other"),
            Holder("x", "o", identity="worker", process=fingerprint(os.getpid())),
            Holder("x", "o", identity="worker", format=2),
        ],
    )
    def test_the_lock_of_another_holder_is_not_replaced(self, previous: Holder | None) -> None:
        seen = ReadResult(previous, (), None, 4)
        patient = begun(identity="worker")
        assert isinstance(steps(patient, Refused("o", 4), seen), TakeOrQueue)
        hasty = begun(identity="worker", queue=False)
        assert steps(hasty, Refused("o", 4), seen) is End.BUSY

    def test_a_lock_of_a_newer_format_is_not_reclaimed_and_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        acquisition = begun(identity="worker")
        previous = Holder("x", "dead", hostname="h", identity="worker", format=2)
        steps(acquisition, Refused("dead", 4), ReadResult(previous, (), None, 4))
        assert not acquisition.rival
        assert "'x'" in caplog.text
        assert "its format 2 is newer" in caplog.text

    def test_reclaiming_is_tried_once(self) -> None:
        acquisition = begun(identity="worker")
        previous = Holder("x", "dead", identity="worker")
        steps(acquisition, Refused("dead", 4), ReadResult(previous, (), None, 4))
        assert isinstance(steps(acquisition, Refused("o", 5)), TakeOrQueue)


class TestHeld:
    def test_validity_counts_from_before_the_push_was_sent(self) -> None:
        acquisition = held()
        push = acquisition.push(at(50))
        acquisition.pushed(push, Done(9), at(50).monotonic)
        assert acquisition.deadline == START.monotonic + 50 + 900
        assert acquisition.quiet_until == START.monotonic + 50 + 1
        assert acquisition.holder.alert_at == START.wall + 50 + 300
        assert acquisition.check(at(949.9).monotonic) is None

    def test_a_push_names_the_write_before_it(self) -> None:
        acquisition = held()
        pushes = []
        for outcome in (Done(9), Done(7), Done(11)):
            pushes.append(push := acquisition.push(at(50)))
            assert acquisition.pushed(push, outcome, at(50).monotonic)
        assert [push.revision for push in pushes] == [5, 9, 9]
        assert acquisition.push(at(-50)).revision == 11  # also when the wall clock was set back

    def test_a_foreign_write_is_followed_by_another_push(self) -> None:
        acquisition = held()
        deadline, before = acquisition.deadline, acquisition.holder
        push = acquisition.push(at(50))
        assert not acquisition.pushed(push, Conflict(9), at(50).monotonic)
        assert (acquisition.deadline, acquisition.holder) == (deadline, before)
        again = acquisition.push(at(50.1))
        assert (again.stamps.alert_at, again.revision) == (START.wall + 50.1 + 300, 9)
        assert acquisition.pushed(again, Done(10), at(50.1).monotonic)
        assert acquisition.deadline == START.monotonic + 50.1 + 900

    def test_a_lock_taken_by_an_earlier_sending_is_pushed_until_confirmed(self) -> None:
        acquisition = begun()
        acquisition.delivery.is_unknown = True
        assert isinstance(steps(acquisition, Taken(5, by_earlier_send=True)), Push)
        again = acquisition.answered(Conflict(9), at(0.2))
        assert isinstance(again, Push)
        assert (again.stamps.alert_at, again.revision) == (5_300.2, 9)
        assert acquisition.answered(Done(10), at(0.3)) is End.ACQUIRED
        assert acquisition.token == 5

    @pytest.mark.promise(number=3)
    def test_a_lock_is_lost_at_its_deadline(self) -> None:
        acquisition = held()
        assert acquisition.deadline == at(900).monotonic
        assert acquisition.check(at(899.999).monotonic) is None
        loss = acquisition.check(at(900).monotonic)
        assert loss is not None
        assert "confirmed no heartbeat of it for 15 min" in str(loss)
        assert (loss.name, loss.uuid, loss.removal) == ("x", "me", None)
        assert acquisition.check(at(0).monotonic) is loss

    def test_a_lock_without_auto_unlock_has_no_deadline(self) -> None:
        acquisition = held(auto_unlock=None)
        assert acquisition.deadline == math.inf
        assert acquisition.check(at(1e9).monotonic) is None

    def test_the_loss_after_a_refused_push_names_the_remover_and_the_reason(self) -> None:
        acquisition = held()
        removal = Removal(acquisition.holder, 6_000.0, "ann", "force-unlock", "web-1 burnt down.")
        acquisition.pushed(acquisition.push(at(9)), NotHolder("next", removal), at(9).monotonic)
        loss = acquisition.loss
        assert loss is not None
        assert loss.removal == removal
        assert "force-unlock by ann at 1970-01-01 01:40:00 UTC: web-1 burnt down." in str(loss)
        assert "now held by next" in str(loss)
        assert "Stop the work that it protects." in str(loss)

    @pytest.mark.parametrize("event", [WatchEvent(9), WatchEvent(9, "next")])
    def test_a_loss_names_the_next_holders_process_where_it_was_read(
        self, event: WatchEvent
    ) -> None:
        """The watch, which comes first, has its uuid at most."""
        acquisition = held()
        acquisition.note_event(event)
        acquisition.note_read(ReadResult(Holder("x", "next", hostname="web-2", pid=7), (), None, 9))
        assert "now held by web-2, pid 7" in str(acquisition.loss)

    def test_a_loss_by_deadline_is_not_reported_as_a_removal(self) -> None:
        acquisition = held()
        acquisition.check(at(10_000).monotonic)
        acquisition.note_event(WatchEvent(9, "next"))
        acquisition.note_read(ReadResult(Holder("x", "next", hostname="web-2", pid=7), (), None, 9))
        assert "counts as lost" in str(acquisition.loss)

    @pytest.mark.parametrize("event", [WatchEvent(9), WatchEvent(9, "other")])
    def test_the_watch_shows_a_loss(self, event: WatchEvent) -> None:
        acquisition = held()
        acquisition.note_event(event)
        assert acquisition.loss is not None
        removal = Removal(acquisition.holder, 1.0, "ann", "force-unlock", "")
        acquisition.note_read(ReadResult(None, (), removal, 10))
        assert acquisition.loss.removal == removal

    def test_its_own_uuid_is_no_loss(self) -> None:
        """An event or a read that shows the own uuid changes nothing."""
        acquisition = held()
        acquisition.note_event(WatchEvent(9, "me"))
        acquisition.note_read(ReadResult(acquisition.holder, (), None, 10))
        assert acquisition.loss is None

    def test_its_own_release_is_no_loss(self) -> None:
        acquisition = held()
        push = acquisition.push(at(9))
        assert acquisition.unlock_request() == Unlock("x", "me")
        acquisition.note_event(WatchEvent(9))
        acquisition.note_read(ReadResult(None, (), None, 10))
        acquisition.pushed(push, NotHolder(None, None), at(9).monotonic)
        acquisition.note_unlock_refused(NotHolder(None, None, resent=True))
        assert acquisition.check(at(10_000).monotonic) is None

    def test_an_unlock_of_a_removed_lock_is_a_loss(self) -> None:
        removal = Removal(Holder("x", "me"), 1.0, "ann", "force-unlock", "")
        for outcome, lost in [
            (NotHolder(None, None), True),
            (NotHolder("other", None), True),
            (NotHolder(None, None, resent=True), False),
            (NotHolder("other", None, resent=True), False),
            (NotHolder(None, removal, resent=True), True),
        ]:
            acquisition = held()
            acquisition.unlock_request()
            acquisition.note_unlock_refused(outcome)
            assert (acquisition.loss is not None) == lost, outcome
