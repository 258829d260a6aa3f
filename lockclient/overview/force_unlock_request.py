"""Force-unlock: a person takes a lock from one holder, and from no other."""

from __future__ import annotations

import time

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.cut_texts import bounded
from lockclient.model.fields import writable
from lockclient.model.holder import Holder
from lockclient.model.removal import FORCE_UNLOCK, Removal
from lockclient.stores.outcomes import Done, NotHolder, ReadResult
from lockclient.stores.request_types import Read, Remove
from lockclient.stores.service_store import ServiceStore


class Changed(Exception):
    """Nothing was unlocked: the lock is not the holder's that was meant.

    Attributes:
        holder: the current holder; None: the lock is free.
        removal: how the one that was meant lost it, if that is recorded.
    """

    def __init__(self, holder: Holder | None, removal: Removal | None) -> None:
        self.holder = holder
        self.removal = removal
        went = f"The holder that you saw lost it by {removal.describe()}. " if removal else ""
        now = holder.describe() if holder else "nobody"
        super().__init__(
            "Nothing was unlocked: the lock has changed hands in the meantime. "
            f"{went}It is now held by {now}."
        )


NO_RECORD = "the store is out of space, so no record can be kept of who removed the lock, and why."


def force_unlock(
    store: ServiceStore,
    name: str,
    uuid: str,
    by: str,
    why: str,
    deadline: Deadline,
    *,
    unrecorded: bool = False,
) -> Removal:
    """Take the lock `name` from the holder `uuid`, and leave a record of that; return it.

    Args:
        uuid: of the holder that the person saw.
        by, why: the person and the reason; both are recorded, and the holder is notified.
        deadline: of all requests together.
        unrecorded: the person has read `NO_RECORD`; the caller logs the returned removal.

    Raises:
        Changed: another holder has the lock, or none; nothing happened.
        StoreUnavailable: the store did not answer in time; it may have happened.
        StoreFull: the store has no space for the record; nothing happened.
        StoreError: the store refuses; nothing happened.
    """
    # For the record, which has all that is known, the backtrace above all. The transaction compares
    # the uuid again.
    seen = _read(store, name, uuid, deadline)
    if seen.holder is None or seen.holder.uuid != uuid:
        raise Changed(seen.holder, seen.removal)
    removal = Removal(bounded(seen.holder), time.time(), by, FORCE_UNLOCK, writable(why))
    outcome = store.ask(Remove(removal, None, recorded=not unrecorded), deadline)
    if isinstance(outcome, Done):
        return removal
    assert isinstance(outcome, NotHolder)
    if outcome.resent and outcome.removal is None and outcome.holder is None:
        raise StoreUnavailable(
            "The lock is gone, but whether this request removed it is unknown: it was sent "
            "more than once, and there is no record of it."
        )
    raise Changed(_holder_now(store, name, outcome.holder, deadline), outcome.removal)


def _holder_now(
    store: ServiceStore, name: str, uuid: str | None, deadline: Deadline
) -> Holder | None:
    try:
        return _read(store, name, uuid, deadline).holder
    except (StoreUnavailable, StoreError):  # the uuid is known, and only people want more
        return None if uuid is None else Holder(name, uuid)


def _read(store: ServiceStore, name: str, uuid: str | None, deadline: Deadline) -> ReadResult:
    seen = store.ask(Read(name, uuid), deadline)
    assert isinstance(seen, ReadResult)
    return seen
