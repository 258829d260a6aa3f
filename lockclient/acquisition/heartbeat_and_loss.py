"""Holding: sends the heartbeats of one held lock, detects its loss, and releases it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from lockclient.acquisition import leaked_locks
from lockclient.acquisition.state_machine import Acquisition
from lockclient.acquisition.thread_driver import Steps, drive
from lockclient.errors import (
    ClusterMutexError,
    LockLost,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.stores import timeouts
from lockclient.stores.mutex_store import MutexStore, Subscription, WatchEvent, WatchTarget
from lockclient.stores.outcomes import NotHolder, ReadResult
from lockclient.stores.request_types import Read
from lockclient.threads import ending, log_queue, scheduler
from lockclient.threads.log_queue import get_logger, naming
from lockclient.threads.scheduler import RETRY_S, Task

if TYPE_CHECKING:
    from lockclient.instruments.event_delivery import Observation

log = get_logger(__name__)

WATCH_DELAY_S = 0.7
"""Seconds from the acquisition to its watch. A lock that is held for less time needs no watch, only
two requests. A holder learns of a loss within a second, also of one right after the grant. So 0.3 s
are left for opening the stream, creating the watch twice, etcd's next round for watches that begin
in the past (every 0.1 s), and `LOG_FLUSH_S`."""
LOG_FLUSH_S = 0.1
"""Seconds that `on_lost` waits until the log's handlers have the loss."""
PUSH_TRY_S = 2.0
"""Seconds that `alive()` without `force` waits for a store that does not answer."""


class LostListener(Protocol):
    """A `HeldLock`, as this file sees it."""

    def _call_on_lost(self, lost: LockLost) -> None: ...


class Holding(ending.Part):
    """Heartbeats, loss detection and release of one held lock, for the background.

    The program has a `HeldLock`, which refers to this. This refers to the `HeldLock` weakly, so
    that only the program keeps it alive.

    No thread holds a Python lock while it waits for a store, so a signal handler can't deadlock.
    At its deadline the lock is lost, whatever requests are in flight, even if the store is frozen.

    Args:
        acquisition: its state machine, in the state `HELD`.
        keepalive: seconds between two pushes from the background; None: only `alive()` pushes.
        keepalive_for: seconds after which the background stops pushing.
        release_at_exit: whether to release it as the interpreter ends.
    """

    def __init__(
        self,
        store: MutexStore,
        acquisition: Acquisition,
        keepalive: float | None,
        keepalive_for: float = math.inf,
        release_at_exit: bool = False,
    ) -> None:
        self.acquisition = acquisition
        self.name, self.uuid = acquisition.name, acquisition.uuid
        self.store = store
        self.release_at_exit = release_at_exit
        self.handle: Callable[[], LostListener | None] | None = None  # a weak reference
        self.is_inherited = False  # in a fork's child: the parent process holds it
        self.line: str | None = None  # source line of the acquisition, if it has no backtrace
        self.observation: Observation | None = None  # where the program has instruments
        self.thread: ref[object] | None = None  # freed when the acquiring thread ends
        self.keepalive = keepalive
        # One-time actions. `dict.pop` is atomic: exactly one thread gets True, and acts.
        self.one_time = {"report": True, "release": True}
        self._is_settled = False  # the store has answered the release, or the background sends it
        self._watch: Subscription | None = None
        now = monotonic()
        if store.can.pace:
            acquisition.limit_pace(store.can.pace, now)
        self._watch_at = now + WATCH_DELAY_S
        self._keepalive_until = now + keepalive_for
        self._pushing = False
        held_by_process[acquisition.uuid] = self
        store.background.acquisitions[self] = None
        self._task = Task(self._tick)
        first = min(WATCH_DELAY_S, keepalive or WATCH_DELAY_S, acquisition.deadline - now)
        scheduler.shared.schedule(self._task, first)

    @property
    def ended(self) -> bool:
        """True if it was released or withdrawn, or if a fork's parent holds it."""
        return "release" not in self.one_time

    @property
    def is_open(self) -> bool:  # type: ignore[override]  # a value in the others
        """True if the program has released it, and the store has not confirmed that."""
        return self.ended and not (self._is_settled or self.is_inherited)

    def end(self) -> None:
        """See `ending.Part`: a release in flight may be a task's, whose loop does not run."""
        if self.is_open:
            self.release_in_background()

    def end_with_program(self) -> None:
        """See `ending.Part`."""
        if self.release_at_exit and self.healthy:
            self.release_in_background()

    def left_over(self) -> str | None:
        """See `ending.Part`."""
        if not (self.healthy or self.is_open):
            return None
        write = ending.while_releasing if self.is_open else ending.while_held
        return write(self.acquisition.holder, self.line)

    def claim_release(self) -> bool:
        """Return True to exactly one caller, which then releases the lock."""
        return self.one_time.pop("release", False)

    # ------------------------------------------------------------ heartbeats

    def pushing(self, *, force: bool) -> Steps[None]:
        """Push the stamps, or raise `LockLost`.

        If the store does not answer before the lock's deadline, raise with `force`. Without it log
        one warning, and let the next call try again.
        """
        self.check()
        now = Now.read()
        acquisition = self.acquisition
        failure: ClusterMutexError | None = None
        patience = timeouts.STORE_TIMEOUT_S if force else PUSH_TRY_S
        # Wait until the deadline at most: then the lock is lost.
        limit = Deadline(min(acquisition.deadline, now.monotonic + patience))
        try:
            while True:
                push = acquisition.push(now)
                outcome = yield push, limit
                if acquisition.pushed(push, outcome, now.monotonic):
                    break
                now = Now.read()
        except (StoreUnavailable, StoreError) as error:
            failure = error
        is_first = not acquisition.last_push_error
        acquisition.last_push_error = str(failure or "")
        self.check()  # without an answer the deadline may have passed
        if failure is None:
            if self.store.can.pace:
                acquisition.limit_pace(self.store.can.pace, monotonic())
            return
        if force:
            raise failure
        self.acquisition.postpone_push(monotonic() + RETRY_S)
        if is_first and not isinstance(failure, StoreClosed):  # one warning per outage
            log.warning(
                "The stamps of %r could not be pushed; it stays held for %.0f s more: %s",
                acquisition.name,
                acquisition.deadline - monotonic(),
                failure,
                extra=naming(acquisition),
            )

    def loss(self) -> LockLost | None:
        """Return why the lock is lost, and schedule the report; None: held, or inherited."""
        if self.is_inherited:
            return None
        lost = self.acquisition.check(monotonic())
        if lost is not None:
            self._schedule_report()
        return lost

    @property
    def healthy(self) -> bool:
        """True if it is held and not lost."""
        return not self.ended and self.loss() is None

    @property
    def is_collected(self) -> bool:
        """True if the `HeldLock` was garbage-collected."""
        return self.handle is not None and self.handle() is None

    def check(self) -> None:
        """Raise `LockLost` if it is lost."""
        lost = self.loss()
        if lost is not None:
            # A copy each time, because an error that is raised again gathers tracebacks.
            raise copy(lost)

    # ------------------------------------------------------------ in the background

    def _tick(self) -> float | None:
        """Called by the scheduler: check the deadline, open the watch, submit a push."""
        if self.loss() is not None:
            return None
        now = monotonic()
        if self._watch is None and now >= self._watch_at and ending.can_watch():
            self._watch_from(self.acquisition.token + 1)
        if self.keepalive is not None and now >= self._keepalive_until:
            self.keepalive = None
            log.warning(
                "keepalive's time has passed: the background stops pushing %r. Call alive(), or "
                "people are alerted.",
                self.acquisition.name,
                extra=naming(self.acquisition),
            )
        if self.thread is not None and self.thread() is None and not self.ended:
            self.thread = None
            log.warning(
                "The thread that acquired %r has ended without releasing it; the background keeps "
                "it alive. Release the HeldLock, or limit it: keepalive='2h'.",
                self.acquisition.name,
                extra=naming(self.acquisition),
            )
        due = self.keepalive is not None and now >= self.acquisition.quiet_until
        if due and not self._pushing:
            self._pushing = True
            self.store.background.urgent.submit(self._push)
        return self._pause()

    def _push(self) -> None:
        try:
            if not self.ended:
                drive(self.pushing(force=False), self.store)
        except LockLost:
            return  # `check` has scheduled its report
        finally:
            self._pushing = False

    def _watch_from(self, revision: int) -> None:
        # `dict.pop` is atomic: only the first gap of this watch gets True.
        observed = partial(self._observed, {"first gap": True})
        self._watch = self.store.watch(WatchTarget(self.acquisition.name), revision, observed)
        if self._task.cancelled:  # released meanwhile, and `forget` saw no watch
            self._watch.close()

    def _pause(self) -> float:
        """Return the seconds until the next `_tick`."""
        now = monotonic()
        pause = self.acquisition.deadline - now
        if self._watch is None and ending.can_watch():
            pause = min(pause, self._watch_at - now)
        if self.keepalive is not None:
            pause = min(pause, self.keepalive)
        return max(pause, 0.01) if pause < math.inf else 3600.0

    def _observed(self, one_time: dict[str, bool], event: WatchEvent) -> None:
        """Called by the watch's threads: record an event.

        After a loss, or the first gap of the watch, a background thread runs `read_lock`, which
        opens a new watch after a gap. So later gaps of the same watch do nothing.
        """
        if event.gap:
            needs_read = one_time.pop("first gap", False)
        else:
            self.acquisition.note_event(event)
            needs_read = self.acquisition.loss is not None
        if needs_read:
            self.store.background.urgent.repeat(self.read_lock)

    def read_lock(self) -> float | None:
        """Read the lock: after missed events, or to learn who removed it."""
        name, uuid = self.acquisition.name, self.acquisition.uuid
        if self._task.cancelled:
            return None
        try:
            seen = self.store.ask(Read(name, uuid), Deadline.after(PUSH_TRY_S))
        except StoreClosed:
            return None
        except ClusterMutexError:
            if self.acquisition.loss is None:
                return RETRY_S
        else:
            if isinstance(seen, ReadResult):
                self.acquisition.note_read(seen)
                if self.acquisition.loss is None:  # a gap ended the watch
                    self._unwatch()
                    if ending.can_watch():
                        self._watch_from(seen.revision + 1)
        self._schedule_report()
        return None

    def _schedule_report(self) -> None:
        """Have the scheduler's thread log a loss, call `on_lost` and end the watch, all once.

        A signal handler or a finalizer may call this at any line, so it takes no lock. An interrupt
        may end it at any line, so later calls schedule the report again until one has begun.
        """
        if (lost := self.acquisition.loss) and self.handle is not None:
            held_by_process.pop(self.acquisition.uuid, None)  # the same identity may reclaim it
            self.store.background.acquisitions.pop(self, None)
            if "report" in self.one_time:
                scheduler.shared.after(0, partial(self._report_once, lost, self.handle()))

    def _report_once(self, lost: LockLost, held: LostListener | None) -> None:
        """Called by the scheduler's thread."""
        if self.one_time.pop("report", False):
            if self.observation is not None:
                self.observation.lost(lost)
            # In another thread, because the program's callback must not delay pushes.
            leaked_locks.program_threads.submit(partial(self._log_then_call_back, lost, held))
            leaked_locks.program_threads.submit(self._unwatch)

    @staticmethod
    def _log_then_call_back(lost: LockLost, held: LostListener | None) -> None:
        try:  # log first, because the callback may end the process
            log.error("%s", lost, extra=naming(lost))
            log_queue.flush(LOG_FLUSH_S)
        finally:
            if held is not None:
                with suppress(Exception):  # `_call_on_lost` has logged it
                    held._call_on_lost(lost)

    # ------------------------------------------------------------ the end

    def releasing(self, timeout: float | None = None) -> Steps[None]:
        """Release the lock, for the caller to which `claim_release` returned True.

        If no answer comes within `timeout` seconds, the background retries the release.

        Raises:
            LockLost: another client removed it, or its time ran out.
            StoreUnavailable: no answer in time.
        """
        acquisition = self.acquisition
        lost = acquisition.check(monotonic())
        # End timer and watch first: the watch event of the unlock must not count as a loss.
        self.forget()
        patience = timeouts.STORE_TIMEOUT_S if lost is None else PUSH_TRY_S
        if timeout is not None:
            patience = min(patience, timeout)
        limit, is_disarmed = Deadline(monotonic() + patience), False
        # A take that was sent again may still arrive. It must not find the lock free before the
        # tombstone is there. A full store takes none: then the background retries it.
        withdraw = acquisition.start_withdrawal() if acquisition.may_arrive_late else None
        try:
            if withdraw is not None:
                with suppress(StoreFull):
                    yield withdraw, limit
                    is_disarmed = True
            outcome = yield acquisition.unlock_request(), limit
        except BaseException as error:  # no answer, or a cancellation
            self.release_in_background()  # even past the deadline the store may have the lock
            if lost is None or not isinstance(error, ClusterMutexError):
                raise
            self._schedule_report()
            raise copy(lost) from error
        is_in_background = self._is_settled
        self._is_settled = True
        self.store.background.acquisitions.pop(self, None)
        # If a withdrawal has released the lock, the store answers NotHolder without a removal
        # record: no loss.
        is_withdrawn = is_in_background or is_disarmed
        if isinstance(outcome, NotHolder) and not (is_withdrawn and outcome.removal is None):
            acquisition.note_unlock_refused(outcome)
        if withdraw is not None and not is_disarmed:
            self._withdraw()
        if acquisition.loss is not None:
            self._schedule_report()
            raise copy(acquisition.loss)
        if self.observation is not None:
            self.observation.released(answered=True)

    def release_in_background(self) -> None:
        """Have the background retry the release until the store answers; idempotent."""
        self.claim_release()
        self.forget()
        if self._is_settled:
            return
        self._is_settled = True
        if self.observation is not None and self.acquisition.loss is None:
            self.observation.released(answered=False)
        self._withdraw()
        self.store.background.acquisitions.pop(self, None)  # last: the withdrawal is known by now

    clean_up = release_in_background

    def _withdraw(self) -> None:
        withdraw = self.acquisition.start_withdrawal()
        if withdraw is not None:
            self.store.background.clean_up(withdraw)

    def forget(self) -> None:
        """Stop the work in the background: the timer, the watch, the look-out for a leak."""
        self._task.cancelled = True
        if self._watch is not None:
            self._watch.close()
        held_by_process.pop(self.acquisition.uuid, None)
        held = None if self.handle is None else self.handle()
        if held is not None:
            self.handle = ref(held)  # without a callback: no leak to log

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()


held_by_process: dict[str, Holding] = {}
"""All locks that this process holds, by their uuids. No acquisition with the same identity,
in this process or in a fork's child, takes one of them over."""


def _start_afresh() -> None:
    """After fork, in the child: it holds none of its parent's locks."""
    for holding in held_by_process.values():
        holding.observation = None
        holding.is_inherited = True
        holding.one_time.clear()  # the parent releases it, and reports its loss


os.register_at_fork(after_in_child=_start_afresh)
