"""`clustermutex restored`: tell everybody that etcd was restored from a backup."""

from __future__ import annotations

import secrets
import time

import click

from lockclient.cli.operate.force_unlock import person
from lockclient.cli.options import store_options
from lockclient.cli.output import counted
from lockclient.cli.store_access import ANSWER_TIMEOUT_S, opened_store, read_table
from lockclient.model.clocks import Deadline
from lockclient.model.restore_marker import Restored
from lockclient.settings import Settings


@click.command()
@store_options
def restored(settings: Settings) -> None:
    """Tell everybody that etcd was restored from a backup: a restore's last step.

    Unlockers and dashboards that run see it at once: they count the time of every lock anew from
    then on, since what they saw of it before may have been lost, and people are alerted and told
    by a banner for a day. Nothing is removed by it, and doing it once too often only keeps
    abandoned locks for longer.

    docs/running-etcd.md says what else belongs to a restore.
    """
    with opened_store(settings) as store:
        marker = Restored(secrets.token_hex(8), round(time.time(), 3), person()[:300])
        store.announce_restored(marker.value(), Deadline.after(ANSWER_TIMEOUT_S))
        table = read_table(store)
    held, running = counted(len(table.rows()), "lock"), counted(len(table.unlockers()), "unlocker")
    click.echo(f"Told: the time of {held} is counted anew. {running} with a heartbeat.")
