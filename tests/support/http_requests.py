"""Asking a store itself, of any kind, with nothing between: what a fault does is seen there."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.stores.outcomes import Outcome, ReadResult, Taken
from lockclient.stores.protocol import MutexStore
from lockclient.stores.requests import Read, Request, Take
from tests.contract.asking import NAME, holder
from tests.support.processes import wait_until

PATIENCE = 60.0


def ask(store: MutexStore, request: Request, seconds: float = PATIENCE) -> Outcome:
    return store.ask(request, Deadline.after(seconds))


def read(store: MutexStore, name: str, uuid: str | None = None) -> ReadResult:
    """Return what stands there for a lock, with the record of that holder's removal."""
    seen = ask(store, Read(name, uuid))
    assert isinstance(seen, ReadResult)
    return seen


def has(store: MutexStore, name: str = NAME) -> str | None:
    """Return who has a lock, as everyone sees it."""
    holder = read(store, name).holder
    return None if holder is None else holder.uuid


def take(store: MutexStore, mine: Holder | None = None) -> tuple[str, int]:
    """Take a lock, as a holder that was never there before if not as this one: uuid and token."""
    mine = mine or holder()
    got = ask(store, Take(mine))
    assert isinstance(got, Taken)
    return mine.uuid or "", got.token


def left_nothing(store: MutexStore) -> None:
    """Wait until a store has cleaned up, and see that nobody has the lock."""
    wait_until(lambda: not store.background.unfinished(), what="the clean-up")
    assert has(store) is None


def at_once(asked: Mapping[str, tuple[MutexStore, Request]]) -> dict[str, Outcome]:
    """Ask each in a thread of its own, all begun together; return the outcomes by their names."""
    together = Barrier(len(asked))

    def one(store: MutexStore, request: Request) -> Outcome:
        together.wait(PATIENCE)
        return ask(store, request)

    with ThreadPoolExecutor(len(asked)) as threads:
        begun = {who: threads.submit(one, *what) for who, what in asked.items()}
        return {who: outcome.result() for who, outcome in begun.items()}
