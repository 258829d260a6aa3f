"""`clustermutex setup-auth`: the least roles in the store for each program, as a script to review.

A script instead of requests of our own: the store's administrator reads what will happen, and
the administrator's password never comes into this process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click

from lockclient.service.service_flags import Command, as_click_error
from lockclient.stores.registry import entry_of, setup_script
from lockclient.stores.settings import Settings


def _check_names(
    _ctx: click.Context, param: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    for name in names:
        if not name.isprintable() or ":" in name or name.startswith("-") or not name.strip():
            raise click.BadParameter(
                f"{name!r} can't be a user of etcdctl's: no colon, no control character, no dash "
                "in front, and not empty.",
                param=param,
            )
    return names


def _user_option(flag: str, text: str) -> Callable[[Command], Command]:
    return click.option(flag, metavar="USER", multiple=True, callback=_check_names, help=text)


def _check_root(_ctx: click.Context, param: click.Parameter, root: str | None) -> str | None:
    with as_click_error(partial(click.BadParameter, param=param)):
        return None if root is None else Settings(root=root).root


@click.command()
@click.option(
    "--root",
    callback=_check_root,
    help="The keys' prefix. [default: that of CLUSTERMUTEX_URL, /clustermutex]",
)
@_user_option("--client", "A user of a service that takes locks.")
@_user_option("--unlocker", "A user of unlockers.")
@_user_option("--dashboard", "A user who only looks: mutexdash, `clustermutex ls`.")
@_user_option(
    "--operator",
    "A user who may also force-unlock (mutexdash --allow-force-unlock, `clustermutex "
    "force-unlock`).",
)
@click.option(
    "--no-password",
    is_flag=True,
    help="The users have no password but a client certificate with their name as its common "
    "name (etcd's --client-cert-auth).",
)
def setup_auth(root: str | None, *, no_password: bool, **users: tuple[str, ...]) -> None:
    """Print a script that gives etcd, or Valkey, the least rights for each program.

    It makes the users, too. Each kind can be given several times, or not at all:
    then only the role is made. A new user's password is taken from CLIENT_PASSWORD,
    UNLOCKER_PASSWORD, DASHBOARD_PASSWORD or OPERATOR_PASSWORD, or asked for; one that is there
    keeps its own. For other stores docs/stores.md has the rights of each program.

    \b
        clustermutex setup-auth --client shop --unlocker unlocker > roles.sh
        less roles.sh
        ETCDCTL_ENDPOINTS=host1:2379 sh roles.sh

    With CLUSTERMUTEX_URL=valkey://… it makes users on each of these servers, for the prefix of
    that URL, by valkey-cli or redis-cli. Their passwords are those of the variables.
    """
    with as_click_error(click.UsageError):
        location = (Settings.load() if root is None else Settings(root=root)).location
    if no_password and not entry_of(location).knows_certificates:
        raise click.UsageError("Without a password there are users in etcd alone.")
    with as_click_error(click.ClickException):
        script = setup_script(location, users, **({"no_password": True} if no_password else {}))
    click.echo(script, nl=False)
