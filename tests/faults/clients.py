"""Clients behind proxies, for tests that spoil their requests; the other clients of their locks.

A life (see `test_unknown_outcomes`) is written once for all drivers: what it does with a mutex is
in `tests.contract.drivers.Mutex`, and a `Session` makes one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from lockclient import (
    LockLost,
    StoreUnavailable,
)
from lockclient.model.clocks import Deadline, Runtime
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Outcome, Queued, ReadResult
from lockclient.stores.requests import Claim, Read, Request, RequestState, Take, TakeOrQueue, Unlock
from tests.contract.drivers import InThreads, Mutex, OnALoop
from tests.support.processes import wait_until
from tests.support.records import taker
from tests.support.tcp_proxy import Proxy

INTERRUPT_AFTER = 0.2
"""Seconds that a request may take before its caller is interrupted."""

T = TypeVar("T")
Interruption = type[Request]
Life = Callable[["Client"], None]


class _InterruptingStore(EtcdStore):
    def __init__(self, location: EtcdLocation, interruption: Interruption | None) -> None:
        super().__init__(location)
        self._interruption = interruption

    def send(self, sending: RequestState, deadline: Deadline) -> Outcome:
        if self._interruption is None or not isinstance(sending.request, self._interruption):
            return super().send(sending, deadline)
        with suppress(StoreUnavailable):
            super().send(sending, deadline.within(0, INTERRUPT_AFTER))
        raise KeyboardInterrupt

    async def send_async(self, sending: RequestState, deadline: Deadline) -> Outcome:
        if self._interruption is None or not isinstance(sending.request, self._interruption):
            return await super().send_async(sending, deadline)
        with suppress(asyncio.TimeoutError):  # by which the call itself is cancelled
            await asyncio.wait_for(super().send_async(sending, deadline), INTERRUPT_AFTER)
        raise asyncio.CancelledError


class Session:
    """One client: a store of its own and the mutexes on it.

    Args:
        location: of the store.
        interruption: the kind of request in the middle of which the client is interrupted.
        loop: on which its mutexes are asynchronous; None: they are used in threads.

    Attributes:
        interruption: what `acquire` and `release` raise when they are interrupted.
    """

    def __init__(
        self,
        location: EtcdLocation,
        interruption: Interruption | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.interruption: type[BaseException] = CancelledError if loop else KeyboardInterrupt
        self._store = _InterruptingStore(location, interruption)
        self._loop = loop

    def mutex(self, name: str, **how: Any) -> Mutex:
        if self._loop is None:
            return InThreads(name, store=self._store, **how)
        return _OnALoop(self._loop, name, store=self._store, **how)

    def is_clean(self) -> bool:
        return not self._store.background.unfinished()

    def close(self) -> None:
        self._store.close()


class _OnALoop(OnALoop):
    """Once it was acquired it means that acquisition, whichever thread asks."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._mutex: Any = self.facts

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Any:
        self.facts = self._mutex
        held = super().acquire(blocking, timeout)
        self.facts = held or self._mutex
        return held

    def locked(self) -> bool:
        return bool(self._mutex.locked())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(180)


class Others:
    """Other clients of the same lock, who ask past the proxy and are never disturbed."""

    def __init__(self, store: EtcdStore, name: str) -> None:
        self._store = store
        self._name = name

    def _ask(self, request: Request) -> Outcome:
        return self._store.ask(request, Deadline.after(60))

    def holder(self, identity: str | None = None) -> Holder:
        return taker(self._name, Runtime(300, 900), hostname="elsewhere", identity=identity)

    def take(self, identity: str | None = None) -> Holder:
        holder = self.holder(identity)
        self._ask(Take(holder))
        assert self.has_it(holder)
        return holder

    def queue(self) -> tuple[Holder, int]:
        """Get in line; return who did, and the place."""
        holder = self.holder()
        ticket = Ticket(self._name, holder.uuid or "", "elsewhere", 1, "main", "", time.time())
        queued = self._ask(TakeOrQueue(holder, ticket))
        assert isinstance(queued, Queued)
        return holder, queued.ticket_revision

    def claim(self, place: tuple[Holder, int]) -> None:
        self._ask(Claim(*place))
        assert self.has_it(place[0])

    def unlock(self, holder: Holder) -> None:
        self._ask(Unlock(self._name, holder.uuid or ""))

    def seen(self) -> ReadResult:
        seen = self._ask(Read(self._name, waiters=True))
        assert isinstance(seen, ReadResult)
        return seen

    def has_it(self, holder: Holder) -> bool:
        written = self.seen().holder
        return written is not None and written.uuid == holder.uuid


class Client:
    """One client behind its proxy, with a lock of its own, and what it is told."""

    def __init__(self, proxy: Proxy, session: Session, others: Others, name: str) -> None:
        self.proxy = proxy
        self.session = session
        self.others = others
        self.losses: list[LockLost] = []
        self.at_last: Callable[[], None] = lambda: None
        """What is to be done when all clean-up has had its turn."""
        self._name = name

    def mutex(self, identity: str | None = None) -> Mutex:
        return self.session.mutex(self._name, identity=identity, on_lost=self.losses.append)

    def live(self, life: Life) -> None:
        """Live a life to its end, clean-up included."""
        life(self)
        wait_until(self.session.is_clean, what="the clean-up")

    def holds(self, mutex: Mutex) -> None:
        """Its view is what stands in the store, and the watch for its loss stands and is silent."""
        wait_until(lambda: self.proxy.answered["Watch"], what="the watch")
        written, own = self.others.seen().holder, mutex.facts.record
        assert written is not None
        assert (written.uuid, written.fencing_token) == (own.uuid, own.fencing_token)
        assert written.subkeys() == own.subkeys()
        self.not_lost(mutex)

    def not_lost(self, mutex: Mutex) -> None:
        mutex.facts.check_health()
        assert mutex.locked()
        assert self.losses == []

    def pushes(self, mutex: Mutex) -> None:
        def pushed() -> bool:
            with suppress(StoreUnavailable):
                mutex.alive(force=True)
                return True
            return False

        wait_until(pushed, what="a push")
        self.holds(mutex)

    def releases(self, mutex: Mutex) -> None:
        self.not_lost(mutex)
        mutex.release()
        assert not mutex.locked()
        assert self.losses == []

    @contextmanager
    def queueing(self, mutex: Mutex) -> Iterator[None]:
        """`acquire()` goes on beside the block, in which it stands in line and listens."""
        raised: list[BaseException] = []

        def acquire() -> None:
            try:
                assert mutex.acquire()
            except BaseException as error:  # noqa: BLE001 - for the thread that waits
                raised.append(error)

        thread = threading.Thread(target=acquire, daemon=True)
        thread.start()
        wait_until(lambda: self.proxy.answered["Watch"] or raised, what="the watch")
        if not raised:
            yield
        thread.join(180)
        assert not thread.is_alive()
        if raised:
            raise raised[0]
