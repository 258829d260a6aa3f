"""A lock that is held: pushes, loss detection, release."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from copy import copy

from lockclient import driving
from lockclient.background import Task, clean_up, the_background
from lockclient.driving import Ask, Steps, drive
from lockclient.engine import Acquisition
from lockclient.errors import ClusterMutexError, LockLost, StoreError, StoreUnavailable
from lockclient.store import Event, MutexStore, Read, Seen, Subscription, Target
from lockclient.timing import Deadline, Now

log = logging.getLogger(__name__)

WATCH_AFTER = 1.0
"""Seconds for which a lock is held before its loss is watched for: a short critical section costs
two transactions and not one request more."""
PUSH_TRY = 2.0
"""Seconds for which `alive()` may wait for a store that does not answer, unless it is forced."""

OnLost = Callable[[LockLost], object]


class Holding:
    """One held lock.

    Args:
        store: where it is held.
        acquisition: its engine, in the state of being held.
        keepalive: seconds between two pushes from the background; None: only `alive()` pushes.
        on_lost: called once, in a thread of its own, when the lock is lost.
    """

    def __init__(
        self,
        store: MutexStore,
        acquisition: Acquisition,
        keepalive: float | None,
        on_lost: OnLost | None,
    ) -> None:
        self.acquisition = acquisition
        self.store = store
        self._keepalive = keepalive
        self._on_lost = on_lost
        self._told = False
        self._telling = threading.Lock()
        self._watch: Subscription | None = None
        self._watch_at = time.monotonic() + WATCH_AFTER
        # Held while a push is under way. Whoever finds the deadline passed waits for it before
        # declaring the lock lost: the push may confirm that it is not. It can't take long, because
        # the push itself is given up at the deadline.
        self._pushing = threading.Lock()
        self._task = Task(self._tick)

    def start(self) -> None:
        """Begin what goes on in the background for it."""
        the_background().schedule(self._task, self._pause())

    # ------------------------------------------------------------ signs of life

    def pushing(self, *, force: bool) -> Steps[None]:
        """Push the stamps, or raise `LockLost`.

        A store that does not answer is no error before the deadline, unless `force`d: the lock is
        ours until then, and the next call tries again.
        """
        self._check()
        now = Now.read()
        acquisition = self.acquisition
        push = acquisition.push(now)
        failure: ClusterMutexError | None = None
        patience = driving.PATIENCE if force else PUSH_TRY
        try:
            # Not longer than to the deadline: whoever waits for this push then knows.
            limit = Deadline(min(acquisition.deadline, now.monotonic + patience))
            outcome = yield Ask(push, limit)
        except (StoreUnavailable, StoreError) as error:
            failure = error
        else:
            acquisition.pushed(push, outcome, now.monotonic)
        first, acquisition.trouble = not acquisition.trouble, str(failure or "")
        self._check()  # no answer by the deadline is a loss
        if failure is None:
            return
        if force:
            raise failure
        self._put_off(failure, tell=first)

    def alive(self, *, force: bool) -> None:
        """Do `pushing`, in this thread."""
        with self._pushing:
            drive(self.pushing(force=force), self.store)

    def _put_off(self, error: ClusterMutexError, *, tell: bool) -> None:
        self.acquisition.quiet_until = time.monotonic() + 1.0  # don't slow a hot loop any more
        if tell:  # once for an outage
            log.warning(
                "The stamps of %r could not be pushed; it stays held for %.0f s more: %s",
                self.acquisition.name,
                self.acquisition.deadline - time.monotonic(),
                error,
            )

    def loss(self) -> LockLost | None:
        """Return why the lock is lost, None while it is held."""
        acquisition = self.acquisition
        if acquisition.loss is None and time.monotonic() >= acquisition.deadline:
            with self._pushing:
                acquisition.check(time.monotonic())
                self._tell()
        return acquisition.loss

    def _check(self) -> None:
        lost = self.acquisition.check(time.monotonic())
        if lost is not None:
            self._tell()
            # A copy each time: raised again and again, the same one would gather tracebacks.
            raise copy(lost)

    # ------------------------------------------------------------ in the background

    def _tick(self) -> float | None:
        """Do what is due: watch for a loss, push, notice that the time has run out."""
        if self.loss() is not None:
            return None
        if self._watch is None and time.monotonic() >= self._watch_at:
            self._watch_from(self.acquisition.token + 1)
        if self._keepalive is not None and time.monotonic() >= self.acquisition.quiet_until:
            try:
                self.alive(force=False)
            except LockLost:
                return None
        return self._pause()

    def _watch_from(self, revision: int) -> None:
        self._watch = self.store.watch(Target(self.acquisition.name), revision, self._observed)
        if self._task.cancelled:  # released in the meantime: nobody else would close it
            self._watch.close()

    def _pause(self) -> float:
        """Return the seconds until the next thing is due."""
        now = time.monotonic()
        pause = self.acquisition.deadline - now
        if self._watch is None:
            pause = min(pause, self._watch_at - now)
        if self._keepalive is not None:
            pause = min(pause, self._keepalive)
        return max(pause, 0.01) if pause < math.inf else 3600.0

    def _observed(self, event: Event) -> None:
        """Called by the watch's thread: take note here, ask for details in the background."""
        if not event.missed:
            self.acquisition.observed(event)
        if event.missed or self.acquisition.loss is not None:
            the_background().after(0, self._look)

    def _look(self) -> float | None:
        """See what stands in the store: after missed events, or to learn who removed the lock."""
        name, uuid = self.acquisition.name, self.acquisition.uuid
        if self._task.cancelled:
            return None
        try:
            seen = self.store.ask(Read(name, uuid), Deadline.after(PUSH_TRY))
        except ClusterMutexError:
            if self.acquisition.loss is None:
                return 1.0
        else:
            if isinstance(seen, Seen):
                self.acquisition.saw(seen)
                if self.acquisition.loss is None:  # the watch ended with what it missed
                    self._watch_from(seen.revision + 1)
        self._tell()
        return None

    def _tell(self) -> None:
        """Call `on_lost`, once, if the lock is lost, and watch it no longer."""
        lost = self.acquisition.loss
        with self._telling:
            if lost is None or self._told:
                return
            self._told = True
        log.error("%s", lost)  # first: who is called back may end the process
        if self._watch is not None:
            self._watch.close()
        if self._on_lost is not None:
            self._call(self._on_lost, lost)

    def _call(self, on_lost: OnLost, lost: LockLost) -> None:
        """Call back, in a thread of its own: one that blocks must not stop everyone's pushes."""
        threading.Thread(
            target=on_lost, args=(lost,), name="clustermutex-on-lost", daemon=True
        ).start()

    # ------------------------------------------------------------ the end

    def releasing(self) -> Steps[None]:
        """Give the lock back.

        Raises:
            LockLost: it was not ours any more.
            StoreUnavailable: no answer in a while; the caller must `abandon` it.
        """
        lost = self.loss()
        # Before the request is sent: no push may follow it, and its own event is no loss.
        self.forget()
        limit = Deadline.after(driving.PATIENCE if lost is None else PUSH_TRY)
        try:
            outcome = yield Ask(self.acquisition.release(), limit)
        except ClusterMutexError as error:
            if lost is None:
                raise
            self.abandon()  # where only its time ran out, it may stand there still
            raise copy(lost) from error
        self.acquisition.released(outcome)
        if self.acquisition.unsure and (withdraw := self.acquisition.abandon()):
            clean_up(self.store, withdraw)  # a second sending of the take may still arrive
        if self.acquisition.loss is not None:
            raise copy(self.acquisition.loss)

    def abandon(self) -> None:
        """Let go of it in the background, for as long as it takes."""
        self.forget()
        withdraw = self.acquisition.abandon()
        if withdraw is not None:
            clean_up(self.store, withdraw)

    def forget(self) -> None:
        """End what goes on in the background for it."""
        self._task.cancel()
        if self._watch is not None:
            self._watch.close()
