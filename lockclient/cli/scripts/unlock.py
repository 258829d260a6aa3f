"""`clustermutex unlock`: release a lock that a script holds."""

from __future__ import annotations

import click

from lockclient.cli.scripts.errors import failing_by_status
from lockclient.cli.scripts.held_lock import _lost, _whose
from lockclient.cli.store_access import opened
from lockclient.model.clocks import Deadline
from lockclient.model.holder import check_name
from lockclient.settings import Settings
from lockclient.stores import protocol
from lockclient.stores.protocol import NotHolder, Unlock


@click.command()
@_whose
def unlock(name: str, uuid: str, settings: Settings) -> None:
    """Release the lock NAME, if it is still this holder's.

    NAME and uuid are those of CLUSTERMUTEX_NAME and CLUSTERMUTEX_UUID unless they are given.

    Statuses: 69 the store does not answer; 76 the lock is not this holder's any more.
    """
    with failing_by_status(), opened(settings) as store:
        unlock = Unlock(check_name(name), uuid)
        outcome = store.ask(unlock, Deadline.after(protocol.STORE_TIMEOUT_S))
    # Gone without a record after a second sending: the first one did it.
    if isinstance(outcome, NotHolder) and not (outcome.resent and outcome.removal is None):
        raise _lost(name, uuid, outcome.holder, outcome.removal)
