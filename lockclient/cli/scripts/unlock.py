"""`clustermutex unlock`: release a lock that a script holds."""

from __future__ import annotations

import click

from lockclient.cli.scripts.lock_options import held_lock_arguments
from lockclient.cli.scripts.script_errors import not_held
from lockclient.cli.store_access import opened_store
from lockclient.model.clocks import Deadline
from lockclient.stores import timeouts
from lockclient.stores.outcomes import NotHolder
from lockclient.stores.request_types import Unlock
from lockclient.stores.settings import Settings


@click.command()
@held_lock_arguments
def unlock(name: str, uuid: str, settings: Settings) -> None:
    """Release the lock NAME, if it is still this holder's.

    NAME and uuid are those of CLUSTERMUTEX_NAME and CLUSTERMUTEX_UUID unless they are given.

    Statuses: 69 the store does not answer; 76 the lock is not this holder's any more.
    """
    with opened_store(settings) as store:
        outcome = store.ask(Unlock(name, uuid), Deadline.after(timeouts.STORE_TIMEOUT_S))
    # Gone without a record after a second sending: the first one did it.
    if isinstance(outcome, NotHolder) and not (outcome.resent and outcome.removal is None):
        raise not_held(name, uuid, outcome.holder, outcome.removal)
