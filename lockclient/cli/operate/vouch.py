"""`clustermutex vouch`: an operator states facts that servers can't know.

Either that nobody holds a lock, so that they vote at once, or that they keep what they answer.
"""

from __future__ import annotations

from typing import cast

import click

from lockclient.cli.options import store_options
from lockclient.cli.output import confirm, counted, counted_locks, require_consent, wrapped
from lockclient.cli.store_access import opened_store
from lockclient.errors import StoreUnavailable
from lockclient.stores.findings import Voter, Voting
from lockclient.stores.settings import Settings
from lockclient.text.durations import duration
from lockclient.text.escaping import plain, shown_name


@click.command()
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask, and do it even if there are locks: for scripts.",
)
@click.option(
    "--kept/--not-kept",
    default=None,
    help="State only whether the servers write everything down before they answer.",
)
@store_options
def vouch(settings: Settings, *, yes: bool, kept: bool | None) -> None:
    """State that nobody holds a lock of a keyspace, so that its servers vote at once.

    For servers of Valkey or Redis. A server that is new to a keyspace, was emptied, or restarted
    without its last writes may have forgotten locks that it gave. So it has no vote for as long as
    a lock may be silent (an hour, or `longest` of the URL). If you know that nobody holds a lock
    there, as with a new prefix, you need not wait: the command shows which servers wait, asks you,
    and lets them vote.

    If somebody does hold a lock, another client may get it, too. So the command changes nothing
    while there are locks, unless with --yes: end their holders first.

    With --kept it states instead that each server writes everything down before it answers
    (appendonly yes, appendfsync always, no-appendfsync-on-rewrite no), and so knows after a restart
    which locks it gave. Then its restarts cost no wait. There may be locks. --not-kept takes
    that back: run it before you change one of these settings. A server that was emptied has
    forgotten the statement. A server whose settings differ is refused, if this user may read them.

    Exit status 1: nothing was changed, because there are locks, the store has no votes, a
    server's settings differ, or the answer was no; 69: some servers could not be reached.
    """
    require_consent(yes or kept is False)
    with opened_store(settings) as store:
        if not store.votes():
            raise click.ClickException(
                f"{store.can.display_name} speaks with one voice: no server waits before it votes, "
                "and nothing is to be vouched for. That is so in Valkey and Redis alone."
            )
        voting = cast("Voting", store)
        found = []
        for voter in voting.voters():
            found.append(voter)
            click.echo(wrapped(f"{voter.endpoint}  {_state(voter)}", 0))
        waiting = [voter for voter in found if voter.waits]
        if kept is not None:
            if kept and not yes:
                confirm("Does each write everything down before it answers?", "nothing was changed")
            voting.vouch_kept(kept=kept)
            counts = "keeps what it answers" if kept else "may forget what it answers"
            click.echo(f"Done: {counted(len(found), 'server')}, each of which {counts}.")
        elif waiting:
            if not yes:
                _ask(found)
            voting.vouch()
            click.echo(f"Done: {counted(len(waiting), 'server')} need not wait any more.")
        elif silent := [voter.endpoint for voter in found if voter.trouble]:
            raise StoreUnavailable(
                f"No server that has a vote waits. {', '.join(silent)} could not be reached."
            )
        else:
            click.echo("No server waits: nothing was changed.")


def _state(voter: Voter) -> str:
    if voter.trouble:
        return f"has no vote: {plain(voter.trouble)}"
    state = f"waits, and votes in {duration(voter.waits)}" if voter.waits else "votes"
    return f"{state}; keeps what it answers" if voter.kept else state


def _ask(found: list[Voter]) -> None:
    names = sorted(frozenset[str]().union(*(voter.locks for voter in found)))
    if names:
        raise click.ClickException(
            f"{counted_locks([*map(shown_name, names)])} stand{'s' * (len(names) == 1)} there: "
            "nothing was changed. Wait, or have their holders release them; if no holder runs any "
            "more, add --yes."
        )
    if unreachable := [voter.endpoint for voter in found if voter.trouble]:
        click.echo(f"Beware: the locks on {', '.join(unreachable)} could not be read.")
    confirm("Does nobody hold a lock there, on any machine?", "nothing was changed")
