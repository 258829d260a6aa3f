"""The life of an acquisition that has the lock, without I/O: push, lose, release.

It is ours as long as the store has confirmed stamps whose time has not run out, counted from before
the request was sent; lost when somebody else's hand or that time says so, and then for ever.
"""

from __future__ import annotations

from dataclasses import replace

from lockclient.errors import LockLost
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.outcomes import Conflict, Done, NotHolder, Outcome, ReadResult
from lockclient.stores.protocol import WatchEvent
from lockclient.stores.requests import Push, Unlock
from lockclient.text.durations import period


class HeldState:
    """What is known of a lock that is held; made by `state_machine.Acquisition`."""

    __slots__ = (
        "_facts",
        "_releasing",
        "_runtime",
        "_written_at",
        "confirmed_at",
        "deadline",
        "loss",
        "name",
        "quiet_until",
        "token",
        "trouble",
        "uuid",
    )

    _facts: Holder
    _releasing: bool
    _runtime: Runtime
    _written_at: int
    confirmed_at: float
    """Monotonic time at which the last request was sent that the store confirmed as ours."""
    deadline: float
    """Monotonic time at which the lock may be removed if no push is confirmed before."""
    loss: LockLost | None
    name: str
    quiet_until: float
    """Monotonic time before which another push is not worth a request."""
    token: int
    trouble: str
    """Why the last push failed, if it did: told when the time runs out."""
    uuid: str

    @property
    def holder(self) -> Holder:
        """What this holder has written, as far as it was confirmed."""
        return replace(self._facts, fencing_token=self.token)

    def push(self, now: Now) -> Push:
        """Return the request that pushes the stamps; its outcome goes to `pushed`."""
        return Push(self.name, self.uuid, self._runtime.stamps(now.wall), self._written_at)

    def pushed(self, push: Push, outcome: Outcome, sent_at: float) -> bool:
        """Take note of a push's outcome; False: push again, by what is known now.

        `sent_at` is the monotonic time before it was sent.
        """
        if isinstance(outcome, Conflict):
            # Another push of ours (a task's and keepalive's), or somebody else's hand: what it
            # wrote, nobody has promised us.
            self._written_at = max(self._written_at, outcome.revision)
            return False
        if isinstance(outcome, Done):
            self._facts = self._facts.stamped(push.stamps)
            self._confirmed(sent_at, outcome.revision)
        elif (
            isinstance(outcome, NotHolder) and not self._releasing
        ):  # else our own unlock overtook it
            self._lose_to(outcome.holder, outcome.removal)
        return True

    def _confirmed(self, sent_at: float, revision: int) -> None:
        """The store has stamps that were made at `sent_at`, so the lock is ours until then + …

        Counted from before the request was sent, the deadline here is never later than the one of
        an unlocker, which counts from when it sees the write.
        """
        self._written_at = max(self._written_at, revision)
        # Of two pushes at once (a task's and keepalive's) the answers may come in either order.
        sent_at = self.confirmed_at = max(sent_at, self.confirmed_at)
        if self._runtime.auto_unlock is not None:
            self.deadline = sent_at + self._runtime.auto_unlock
        self.quiet_until = min(sent_at + self._runtime.push_interval, self.deadline)

    def check(self, monotonic: float) -> LockLost | None:
        """Return why the lock is lost, or None as long as it is held."""
        if self.loss is None and monotonic >= self.deadline and not self._releasing:
            why = (
                f"The last try failed: {self.trouble}"
                if self.trouble
                else "Call alive() more often or raise auto_unlock_after."
            )
            self._lose(
                f"The lock {self.name!r} counts as lost: the store has confirmed no heartbeat "
                f"of it for {period(self._runtime.auto_unlock or 0)} (auto_unlock_after), so an "
                f"unlocker may have removed it. {why}"
            )
        return self.loss

    def observed(self, event: WatchEvent) -> None:
        """Take note of an event of the lock's uuid."""
        if not self._releasing and event.uuid != self.uuid:
            self._lose_to(event.uuid, None)

    def saw(self, seen: ReadResult) -> None:
        """Take note of what stands in the store for the lock."""
        uuid = None if seen.holder is None else seen.holder.uuid
        if not self._releasing and uuid != self.uuid:
            self._lose_to(uuid, seen.removal)

    def put_off(self, monotonic: float) -> None:
        """A push was not answered: no hot loop shall wait for another one until then.

        But never beyond the deadline: then it is lost, and whoever asks must hear that.
        """
        self.quiet_until = min(monotonic, self.deadline)

    def keep_pace(self, pace: float, answered_at: float) -> None:
        """No push is to follow within `pace` seconds of what was answered then.

        Counted from the answer, two never arrive closer to each other, however long each is on its
        way. But four times in the expected runtime one may go: who pushes in time is not to be
        alerted on in between, though one of them be late.
        """
        rest = answered_at + min(pace, self._runtime.expected / 4)
        self.quiet_until = min(max(self.quiet_until, rest), self.deadline)

    def release(self) -> Unlock:
        """Return the request that gives the lock back; its outcome goes to `released`."""
        self._releasing = True
        return Unlock(self.name, self.uuid)

    def released(self, outcome: NotHolder) -> None:
        """Take note that the unlock found it gone.

        Without a removal record after a second sending that means that the first one did it.
        """
        if not (outcome.resent and outcome.removal is None):
            self._lose_to(outcome.holder, outcome.removal)

    def _lose_to(self, uuid: str | None, removal: Removal | None) -> None:
        name = self.name
        how = f" ({removal.describe()})" if removal else ""
        now_held = f" It is now held by {uuid}." if uuid else ""
        self._lose(
            f"The lock {name!r} was removed from this holder{how}.{now_held} "
            "Stop the work that it protects.",
            removal,
        )

    def _lose(self, message: str, removal: Removal | None = None) -> None:
        if self.loss is None or (removal is not None and self.loss.removal is None):
            self.loss = LockLost(
                message,
                name=self.name,
                uuid=self.uuid,
                holder=self.holder,
                removal=removal,
            )
