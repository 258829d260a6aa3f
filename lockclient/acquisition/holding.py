"""A lock that is held: pushes, loss detection, release."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import ref

from lockclient.acquisition.state_machine import Acquisition
from lockclient.acquisition.steps import Steps, drive
from lockclient.errors import ClusterMutexError, LockLost, StoreClosed, StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.stores import protocol
from lockclient.stores.outcomes import NotHolder, ReadResult
from lockclient.stores.protocol import MutexStore, Subscription, WatchEvent, WatchTarget
from lockclient.stores.requests import Read, RequestState
from lockclient.threads import log_queue, scheduler
from lockclient.threads.log_queue import get_logger, naming
from lockclient.threads.pool import WorkerPool
from lockclient.threads.scheduler import RETRY_S, Task

if TYPE_CHECKING:
    from lockclient.instruments.observer import Observation

log = get_logger(__name__)

WATCH_AFTER = 1.0
"""Seconds for which a lock is held before its loss is watched for: a short critical section costs
two transactions and not one request more."""
LOG_FLUSH_S = 0.1
"""Seconds that a loss is waited for to be in the log before `on_lost` is called."""
PUSH_TRY = 2.0
"""Seconds for which `alive()` may wait for a store that does not answer, unless it is forced."""


Block = Literal["statement", "hand"] | None
"""Whether a block took it: a statement, whose own exit will come; or one that was entered by hand,
whose exit says the mutex only."""


class Told(Protocol):
    """The held lock that the program has."""

    def _tell_loss(self, lost: LockLost) -> None:
        """Tell the program of the loss."""


class Holding:
    """What goes on for one held lock, from its acquisition to its release.

    The program has a `HeldLock`, to which this refers weakly.

    No lock of Python's is held while a store is asked, and at its deadline it is lost whatever may
    be under way: so neither a handler of a signal nor a store that is frozen can hold up anybody.

    Args:
        store: where it is held.
        acquisition: its engine, in the state of being held.
        keepalive: seconds between two pushes from the background; None: only `alive()` pushes.
        keepalive_for: seconds for which it is pushed from the background at most.
        release_at_exit: whether to release it as the interpreter ends.
    """

    __slots__ = (
        "_keepalive_until",
        "_over",
        "_pushing",
        "_task",
        "_watch",
        "_watch_at",
        "acquisition",
        "block",
        "handle",
        "is_parents",
        "keepalive",
        "line",
        "observation",
        "release_at_exit",
        "still_to",
        "store",
        "thread",
    )

    def __init__(
        self,
        store: MutexStore,
        acquisition: Acquisition,
        keepalive: float | None,
        keepalive_for: float = math.inf,
        release_at_exit: bool = False,
    ) -> None:
        self.acquisition = acquisition
        self.store = store
        self.release_at_exit = release_at_exit
        self.handle: ref[Any] | None = None
        self.is_parents = False  # a parent's, from before a fork
        self.line: str | None = None  # that took it, where no backtrace was captured
        self.block: Block = None
        self.observation: Observation | None = None  # where the program has instruments
        self.thread: ref[Any] | None = None  # that acquired it, where it is kept alive
        self.keepalive = keepalive
        # Of all who take one of these out, one gets it: a step that needs no lock.
        self.still_to = {"tell": True, "end": True}
        self._over = False  # nothing of it is left, or is left to be cleaned up
        self._watch: Subscription | None = None
        now = monotonic()
        if store.can.pace:
            acquisition.keep_pace(store.can.pace, now)
        self._watch_at = now + WATCH_AFTER
        self._keepalive_until = now + keepalive_for
        self._pushing = False
        own[acquisition.uuid] = self
        # What goes on in the background for it.
        self._task = Task(self._tick)
        first = min(WATCH_AFTER, keepalive or WATCH_AFTER, acquisition.deadline - now)
        scheduler.shared.schedule(self._task, first)

    @property
    def ended(self) -> bool:
        """Whether it was released or given up, or is a parent's, from before a fork."""
        return "end" not in self.still_to

    def end(self) -> bool:
        """Tell whether it is the caller who ends it: of several, one is told so."""
        return self.still_to.pop("end", False)

    # ------------------------------------------------------------ heartbeats

    def pushing(self, *, force: bool) -> Steps[None]:
        """Push the stamps, or raise `LockLost`.

        A store that does not answer is no error before the deadline, unless `force`d: the lock is
        ours until then, and the next call tries again.
        """
        self.check()
        now = Now.read()
        acquisition = self.acquisition
        failure: ClusterMutexError | None = None
        patience = protocol.STORE_TIMEOUT_S if force else PUSH_TRY
        # Not longer than to the deadline: an answer after that would come too late.
        limit = Deadline(min(acquisition.deadline, now.monotonic + patience))
        try:
            while True:
                push = acquisition.push(now)
                outcome = yield RequestState(push), limit
                if acquisition.pushed(push, outcome, now.monotonic):
                    break
                now = Now.read()
        except (StoreUnavailable, StoreError) as error:
            failure = error
        first, acquisition.trouble = not acquisition.trouble, str(failure or "")
        self.check()  # no answer by the deadline is a loss
        if failure is None:
            if self.store.can.pace:
                acquisition.keep_pace(self.store.can.pace, monotonic())
            return
        if force:
            raise failure
        self._put_off(failure, tell=first and not isinstance(failure, StoreClosed))

    def _put_off(self, error: ClusterMutexError, *, tell: bool) -> None:
        self.acquisition.put_off(monotonic() + RETRY_S)
        if tell:  # once for an outage
            log.warning(
                "The stamps of %r could not be pushed; it stays held for %.0f s more: %s",
                self.acquisition.name,
                self.acquisition.deadline - monotonic(),
                error,
                extra=naming(self.acquisition),
            )

    def loss(self) -> LockLost | None:
        """Return why the lock is lost, None while it is held."""
        if self.is_parents:
            return None
        lost = self.acquisition.check(monotonic())
        if lost is not None:
            self._tell()
        return lost

    @property
    def healthy(self) -> bool:
        """Whether it is held and not lost."""
        return not self.ended and self.loss() is None

    @property
    def is_dropped(self) -> bool:
        """Whether nobody refers to the held lock any more."""
        return self.handle is not None and self.handle() is None

    def check(self) -> None:
        """Raise `LockLost` if it is lost."""
        lost = self.loss()
        if lost is not None:
            # A copy each time: raised again and again, the same one would gather tracebacks.
            raise copy(lost)

    # ------------------------------------------------------------ in the background

    def _tick(self) -> float | None:
        """Do what is due, waiting for nothing: see the time run out, watch for a loss, push."""
        if self.loss() is not None:
            return None
        now = monotonic()
        if self._watch is None and now >= self._watch_at:
            self._watch_from(self.acquisition.token + 1)
        if self.keepalive is not None and now >= self._keepalive_until:
            self.stop_pushing()
            log.warning(
                "%r is not kept alive in the background any more: keepalive= allows no more. "
                "Without alive() people are alerted next.",
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
            self.store.background.pushes.submit(self._push)
        return self._pause()

    def _push(self) -> None:
        try:
            if not self.ended:
                drive(self.pushing(force=False), self.store)
        except LockLost:
            return  # it has been told
        finally:
            self._pushing = False

    def _watch_from(self, revision: int) -> None:
        observed = partial(self._observed, {"gap": True})
        self._watch = self.store.watch(WatchTarget(self.acquisition.name), revision, observed)
        if self._task.cancelled:  # released in the meantime: nobody else would close it
            self._watch.close()

    def _pause(self) -> float:
        """Return the seconds until the next thing is due."""
        now = monotonic()
        pause = self.acquisition.deadline - now
        if self._watch is None:
            pause = min(pause, self._watch_at - now)
        if self.keepalive is not None:
            pause = min(pause, self.keepalive)
        return max(pause, 0.01) if pause < math.inf else 3600.0

    def _observed(self, first: dict[str, bool], event: WatchEvent) -> None:
        """Called by the watch's threads: take note here, ask for details in the background.

        A watch of two streams may pass on two gaps: the first one's read begins a new watch.
        """
        if not event.gap:
            self.acquisition.observed(event)
        if first.pop("gap", False) if event.gap else self.acquisition.loss is not None:
            self.store.background.pushes.submit(self.look)

    def look(self) -> None:
        """See what stands in the store: after missed events, or to learn who removed the lock."""
        name, uuid = self.acquisition.name, self.acquisition.uuid
        if self._task.cancelled:
            return
        try:
            seen = self.store.ask(Read(name, uuid), Deadline.after(PUSH_TRY))
        except StoreClosed:
            return
        except ClusterMutexError:
            if self.acquisition.loss is None:
                pushes = self.store.background.pushes
                scheduler.shared.after(RETRY_S, lambda: pushes.submit(self.look))
                return
        else:
            if isinstance(seen, ReadResult):
                self.acquisition.saw(seen)
                if self.acquisition.loss is None:  # the watch ended with what it missed
                    self._unwatch()
                    self._watch_from(seen.revision + 1)
        self._tell()

    def _tell(self) -> None:
        """Have a loss logged and `on_lost` called, once, and the lock watched no longer.

        Whoever asks comes here: the main thread, which an interrupt may end after any step, and a
        finalizer or handler on top of our own code, with its locks. So nothing is done here that
        takes a lock, or is lost if the next line is never reached: as long as nobody has been told,
        each who asks wakes the thread that tells.
        """
        if (lost := self.acquisition.loss) and self.handle is not None:
            own.pop(self.acquisition.uuid, None)
            if "tell" in self.still_to:
                scheduler.shared.after(0, partial(self._tell_once, lost, self.handle()))

    def _tell_once(self, lost: LockLost, held: Told | None) -> None:
        """Called by the scheduler's thread."""
        if self.still_to.pop("tell", False):
            if self.observation is not None:
                self.observation.lost(lost)
            # In a thread of its own: what the program does there must not stop anybody's pushes.
            tellers.submit(partial(self._tell_of, lost, held))
            tellers.submit(self._unwatch)

    @staticmethod
    def _tell_of(lost: LockLost, held: Told | None) -> None:
        try:  # the log first: who is called back may end the process
            log.error("%s", lost, extra=naming(lost))
            log_queue.flush(LOG_FLUSH_S)
        finally:
            if held is not None:
                with suppress(Exception):  # logged where it was called
                    held._tell_loss(lost)

    def stop_pushing(self) -> None:
        """Push no more from the background."""
        self.keepalive = None

    # ------------------------------------------------------------ the end

    def releasing(self, timeout: float | None = None) -> Steps[None]:
        """Give the lock back; to be called by who `end`s it. Wait so many seconds for an answer.

        Whatever happens to who waits for it, the lock is let go of, at last in the background.

        Raises:
            LockLost: it was not ours any more.
            StoreUnavailable: no answer in a while.
        """
        acquisition = self.acquisition
        lost = acquisition.check(monotonic())
        # Before the request is sent: no push may follow it, and its own event is no loss.
        self.forget()
        patience = protocol.STORE_TIMEOUT_S if lost is None else PUSH_TRY
        if timeout is not None:
            patience = min(patience, timeout)
        try:
            outcome = yield RequestState(acquisition.release()), Deadline(monotonic() + patience)
        except BaseException as error:  # no answer, or a cancellation
            self.let_go()  # where only its time ran out, it may stand there still
            if lost is None or not isinstance(error, ClusterMutexError):
                raise
            self._tell()
            raise copy(lost) from error
        given_up, self._over = self._over, True
        if isinstance(outcome, NotHolder) and not (given_up and outcome.removal is None):
            acquisition.released(outcome)  # else our own clean-up has overtaken it: that is no loss
        if acquisition.may_be_out_there and (withdraw := acquisition.abandon()):
            self.store.background.clean_up(withdraw)  # a second sending may still arrive
        if acquisition.loss is not None:
            self._tell()
            raise copy(acquisition.loss)
        if self.observation is not None:
            self.observation.released(answered=True)

    def let_go(self) -> None:
        """Let go of it in the background, for as long as it takes; twice does no harm."""
        self.end()
        self.forget()
        if self._over:
            return
        self._over = True
        if self.observation is not None and self.acquisition.loss is None:
            self.observation.released(answered=False)
        withdraw = self.acquisition.abandon()
        if withdraw is not None:
            self.store.background.clean_up(withdraw)

    def forget(self) -> None:
        """End what goes on in the background for it."""
        self._task.cancelled = True
        if self._watch is not None:
            self._watch.close()
        own.pop(self.acquisition.uuid, None)
        held = None if self.handle is None else self.handle()
        if held is not None:
            self.handle = ref(held)  # in its place: as it dies, it rings no bell any more

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()


own: dict[str, Holding] = {}
"""All locks that this process holds by their uuids: it takes none of them over, and a fork's child
holds none of them and must not take them over either."""

tellers = WorkerPool("on-lost", 1000)
"""The threads in which the program is told."""


def _start_afresh() -> None:
    """After fork, in the child: it holds none of its parent's locks."""
    global tellers
    for holding in own.values():
        holding.observation = None
        holding.is_parents = True
        holding.still_to.clear()  # the parent releases it, and tells of its loss
    tellers = WorkerPool("on-lost", 1000)


os.register_at_fork(after_in_child=_start_afresh)
