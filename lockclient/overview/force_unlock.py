"""Force-unlock: a person takes a lock from one holder, and from no other."""

from __future__ import annotations

import time

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.fields import writable
from lockclient.model.holder import Holder
from lockclient.model.removal import FORCE_UNLOCK, Removal
from lockclient.stores.outcomes import Done, NotHolder, ReadResult
from lockclient.stores.requests import Read, Remove
from lockclient.stores.service_protocol import ServiceStore


class Changed(Exception):
    """Nothing was unlocked: the lock is not the holder's that was meant.

    Attributes:
        holder: who has it now, None if nobody.
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


class NeedsUnknown(Exception):
    """Nothing was unlocked: what the lock needs of who removes it is not known here."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(
            f"Nothing was unlocked: {needs_sentence(holder)} Only a person who knows better may "
            "remove it despite that."
        )


def needs_sentence(holder: Holder) -> str:
    """Say what a lock needs that this version does not know, and what that means; empty if none."""
    needs = holder.unknown_needs()
    return needs and f"{needs}, so nothing here can say what removing it may break."


NO_RECORD = "the store is out of space, so no record can be kept of who removed the lock, and why."


def force_unlock(
    store: ServiceStore,
    name: str,
    uuid: str,
    by: str,
    why: str,
    deadline: Deadline,
    *,
    despite_needs: bool = False,
    unrecorded: bool = False,
) -> Removal:
    """Take the lock `name` from the holder `uuid`, and leave a record of that; return it.

    Args:
        uuid: of the holder that the person saw.
        by, why: who does it and what for; both are recorded, and the holder is told.
        deadline: of all requests together.
        despite_needs: the person was told of `needs_sentence`, and wants it all the same.
        unrecorded: the same of `NO_RECORD`. Who asks is to log the removal that is returned.

    Raises:
        Changed: somebody else has it, or nobody; nothing happened.
        NeedsUnknown: it needs what this version does not know; nothing happened.
        StoreUnavailable: the store did not answer in time; it may have happened.
        StoreFull: the store has no space for the record; nothing happened.
        StoreError: the store refuses; nothing happened.
    """
    # The record is to have all that is known, the backtrace above all. This look decides nothing
    # that the transaction does not decide again: it compares the uuid.
    seen = _look(store, name, uuid, deadline)
    if seen.holder is None or seen.holder.uuid != uuid:
        raise Changed(seen.holder, seen.removal)
    if seen.holder.unknown_needs() and not despite_needs:
        raise NeedsUnknown(seen.holder)
    removal = Removal(seen.holder.bounded(), time.time(), by, FORCE_UNLOCK, writable(why))
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
        return _look(store, name, uuid, deadline).holder
    except (StoreUnavailable, StoreError):  # it is only to be told: what is known is the uuid
        return None if uuid is None else Holder(name, uuid)


def _look(store: ServiceStore, name: str, uuid: str | None, deadline: Deadline) -> ReadResult:
    seen = store.ask(Read(name, uuid), deadline)
    assert isinstance(seen, ReadResult)
    return seen
