"""Validity of one acquisition: its deadline, its next push, and why the lock is lost. No I/O.

A holder counts its deadline from the moment before it sent the last confirmed request, on its own
monotonic clock. An unlocker counts from the moment at which it sees that write, which is later. So
the holder's deadline passes before an unlocker removes the lock.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace

from lockclient.errors import LockLost
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.mutex_store import WatchEvent
from lockclient.stores.outcomes import Conflict, Done, NotHolder, Outcome, ReadResult
from lockclient.stores.request_types import Delivery, Push, Unlock
from lockclient.text.durations import period


class Validity:
    """The base of `Acquisition`: whether the lock is still held.

    It is held as long as the store has confirmed stamps whose time has not run out. It is lost for
    ever once another client removed it, or its confirmed time ran out.
    """

    # Defaults of the class: a constructor would cost each acquisition a call of a Python function.
    name: str
    uuid: str
    delivery: Delivery
    token = 0
    deadline = math.inf
    """Monotonic time from which the lock counts as lost, unless a push is confirmed before.
    """
    quiet_until = 0.0
    """Monotonic time before which another push is not worth a request."""
    loss: LockLost | None = None
    last_push_error = ""
    """Text of the last push's error, for the `LockLost` when the time runs out."""
    _record: Holder
    _runtime: Runtime
    _own: Container[str | None]
    _loss_detail = -1
    _confirmed_at = -math.inf  # monotonic time before the last confirmed request was sent
    _written_at = 0  # revision of our own last confirmed write of the stamps
    _is_releasing = False

    @property
    def holder(self) -> Holder:
        """The record as the store last confirmed it."""
        return replace(self._record, fencing_token=self.token)

    @property
    def may_arrive_late(self) -> bool:
        """True if the store may still execute a take of this acquisition, see `Delivery`."""
        return self.delivery.in_flight or self.delivery.is_unknown

    # ------------------------------------------------------------ pushes

    def push(self, now: Now) -> Push:
        """Return a request that pushes the stamps; pass its outcome to `pushed`."""
        stamps = self._runtime.stamps(now.wall)
        return Push(self.name, self.uuid, stamps, self._written_at, delivery=self.delivery)

    def pushed(self, push: Push, outcome: Outcome, sent_at: float) -> bool:
        """Process the outcome of a push that was sent at `sent_at`; return False to push again."""
        if isinstance(outcome, Conflict):
            # Another write came first: a concurrent push of ours (a task's and keepalive's), or
            # another client's. It confirms nothing.
            self._written_at = max(self._written_at, outcome.revision)
            return False
        if isinstance(outcome, Done):
            self._record = self._record.stamped(push.stamps)
            self._confirm(sent_at, outcome.revision)
        elif isinstance(outcome, NotHolder) and not self._is_releasing:
            self._lose_to(outcome.holder, outcome.removal)
        return True

    def _confirm(self, sent_at: float, revision: int) -> None:
        """Move the deadline: the store wrote, at `revision`, stamps of a request sent at `sent_at`.

        Two concurrent pushes may be answered in either order: the later one counts.
        """
        self._written_at = max(self._written_at, revision)
        sent_at = self._confirmed_at = max(sent_at, self._confirmed_at)
        if self._runtime.auto_unlock is not None:
            self.deadline = sent_at + self._runtime.auto_unlock
        self.quiet_until = min(sent_at + self._runtime.push_interval, self.deadline)

    def postpone_push(self, until: float) -> None:
        """Send no push before `until`: one had no answer, and `alive()` may be in a hot loop."""
        self.quiet_until = min(until, self.deadline)  # at the deadline `alive()` raises `LockLost`

    def limit_pace(self, pace: float, answered_at: float) -> None:
        """Send no push within `pace` seconds of an answer, for a store that limits writes.

        Four pushes per expected runtime stay allowed, so that one late push raises no alert.
        """
        until = answered_at + min(pace, self._runtime.expected / 4)
        self.quiet_until = min(max(self.quiet_until, until), self.deadline)

    # ------------------------------------------------------------ release and loss

    def unlock_request(self) -> Unlock:
        """Return a request that unlocks; pass a `NotHolder` to `note_unlock_refused`."""
        self._is_releasing = True
        return Unlock(self.name, self.uuid, delivery=self.delivery)

    def note_unlock_refused(self, outcome: NotHolder) -> None:
        """Record a loss: the store did not have the lock any more.

        There is no loss if the request was sent twice and no removal record exists: then the first
        one unlocked it.
        """
        if not (outcome.resent and outcome.removal is None):
            self._lose_to(outcome.holder, outcome.removal)

    def check(self, monotonic: float) -> LockLost | None:
        """Return why the lock is lost, or None if it is held at this monotonic time."""
        if self.loss is None and monotonic >= self.deadline and not self._is_releasing:
            why = "Call alive() more often or raise auto_unlock_after."
            if self.last_push_error:
                why = f"The last try failed: {self.last_push_error}"
            self._lose(
                f"The lock {self.name!r} counts as lost: the store has confirmed no heartbeat "
                f"of it for {period(self._runtime.auto_unlock or 0)} (auto_unlock_after), so an "
                f"unlocker may have removed it. {why}"
            )
        return self.loss

    def note_event(self, event: WatchEvent) -> None:
        """Process a watch event of the lock: another uuid, or none, is a loss."""
        if not self._is_releasing and event.uuid != self.uuid:
            self._lose_to(event.uuid, None)

    def note_read(self, seen: ReadResult) -> None:
        """Process a read of the lock: another holder, or none, is a loss."""
        uuid = None if seen.holder is None else seen.holder.uuid
        if not self._is_releasing and uuid != self.uuid:
            self._lose_to(uuid, seen.removal, seen.holder)

    def _lose_to(
        self, uuid: str | None, removal: Removal | None, holder: Holder | None = None
    ) -> None:
        how = f" ({removal.describe()})" if removal else ""
        new_holder = "this process" if uuid in self._own else ""
        if holder is not None:
            new_holder = holder.describe()
        named = f"{new_holder} ({uuid})" if new_holder else uuid
        now_held = f" It is now held by {named}." if uuid else ""
        self._lose(
            f"The lock {self.name!r} was removed from this holder{how}.{now_held} "
            "Stop the work that it protects.",
            removal,
            detail=2 if removal else 1 if holder else 0,
        )

    def _lose(self, message: str, removal: Removal | None = None, detail: int = 1) -> None:
        """Record the loss, unless an earlier one has as much detail.

        A watch event comes first and has no removal record; the read after it has one.
        """
        if detail > self._loss_detail:
            self.loss = LockLost(
                message,
                name=self.name,
                uuid=self.uuid,
                holder=self.holder,
                removal=removal,
            )
            self._loss_detail = detail  # last: an interrupt before this hides no loss
