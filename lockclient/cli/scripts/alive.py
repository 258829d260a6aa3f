"""`clustermutex alive`: push the deadlines of a lock that a script holds."""

from __future__ import annotations

import click

from lockclient.cli.scripts.lock_options import held_lock_arguments
from lockclient.cli.scripts.script_errors import not_held, print_message
from lockclient.cli.store_access import opened_store
from lockclient.model.clocks import Deadline, Now, Runtime
from lockclient.model.holder import Holder
from lockclient.stores import timeouts
from lockclient.stores.outcomes import Conflict, NotHolder, Outcome, ReadResult
from lockclient.stores.request_types import Push, Read
from lockclient.stores.settings import Settings
from lockclient.text.durations import period


@click.command()
@held_lock_arguments
def alive(name: str, uuid: str, settings: Settings) -> None:
    """Push the alert and the auto-unlock of the lock NAME forward.

    By as much as they were set to when the lock was taken: its work continues. For a lock of
    `clustermutex lock`, or for the command of `clustermutex run --alive manual`, which both need
    no more than the environment that they have: `clustermutex alive`.

    Statuses: 69 the store does not answer: the lock is not lost by that; 76 it is not this
    holder's any more: stop the work.
    """
    with opened_store(settings) as store:
        seen = store.ask(Read(name, uuid), Deadline.after(timeouts.STORE_TIMEOUT_S))
        if not isinstance(seen, ReadResult):
            raise TypeError(f"the store answered {seen!r} to Read")
        holder = seen.holder
        if holder is None or holder.uuid != uuid:
            raise not_held(name, uuid, None if holder is None else holder.uuid, seen.removal)
        runtime, deadline = _runtime(holder), Deadline.after(timeouts.STORE_TIMEOUT_S)
        outcome: Outcome = Conflict(holder.stamp_revisions[0])
        while isinstance(outcome, Conflict):  # by another push, or a person's hand
            push = Push(name, uuid, runtime.stamps(Now.read().wall), outcome.revision)
            outcome = store.ask(push, deadline)
    if isinstance(outcome, NotHolder):
        raise not_held(name, uuid, outcome.holder, outcome.removal)


def _runtime(holder: Holder) -> Runtime:
    """Return the durations with which the lock was taken, as far as it has them."""
    expected, after = holder.expected_runtime, holder.auto_unlock_after
    if expected is None or (after is not None and after <= expected):
        expected = 300.0 if after is None else min(300.0, after / 3)
        print_message(
            f"The lock {holder.name!r} does not say when to alert, or only after its auto-unlock: "
            f"its alert is pushed by {period(expected)}."
        )
    return Runtime(expected, after)
