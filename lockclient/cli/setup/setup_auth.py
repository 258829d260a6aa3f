"""`clustermutex setup-auth`: the least roles in etcd for each program, as a script to review.

A script, and not requests of our own: who may change etcd's users reads what will happen, and the
administrator's password never comes into this process.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from string import Template

import click

from lockclient.settings import Settings
from lockclient.version import __version__

WRITES = {
    "client": ("locks", "queue", "withdrawn"),
    "unlocker": ("code", "locks", "removed", "unlockers", "withdrawn"),
    "dashboard": (),
    "operator": ("code", "locks", "removed", "withdrawn"),
}
"""What each role may write, of `<root>/<kind>/`. All may read all under the root: a client reads
who removed its lock, an unlocker and a dashboard follow everything with one watch, `ls` and
`doctor` show the lines and the unlockers.

etcd's roles know keys, not values: who may take locks could also delete another's, by a program
that is not ours. What a client can't do is make it look like an unlocker's or a person's doing.
"""

_SCRIPT = Template("""\
#!/bin/sh
# Roles in etcd for the locks below $root, by `clustermutex setup-auth` $version.
# Review it, then let sh run it. It calls etcdctl (3.4 or 3.5), which is told by ETCDCTL_ENDPOINTS
# and so on where etcd is, and by ETCDCTL_USER=root:… who asks, where auth is on already. It can be
# run again: it adds and takes nothing away.
set -eu

role() { # NAME
	etcdctl role get "$$1" >/dev/null 2>&1 || etcdctl role add "$$1"
}

user() { # NAME ROLE VARIABLE PASSWORD: what a new user's password is, or else it is asked for
	if ! etcdctl user get "$$1" >/dev/null 2>&1; then
		case $$4 in
		*[[:space:]]*)
			echo "etcdctl would cut $$3 at its first space: choose another password." >&2
			exit 1
			;;
		?*) printf '%s\\n' "$$4" | etcdctl user add "$$1" --interactive=false ;;
		*)
			if ! (: </dev/tty) 2>/dev/null; then
				echo "The user $$1 needs a password, and there is no terminal: set $$3." >&2
				exit 1
			fi
			etcdctl user add "$$1" </dev/tty
			;;
		esac
	fi
	etcdctl user grant-role "$$1" "$$2"
}

certified() { # NAME ROLE: a user without a password, known by its client certificate
	etcdctl user get "$$1" >/dev/null 2>&1 || etcdctl user add "$$1" --no-password
	etcdctl user grant-role "$$1" "$$2"
}

main() {
$commands
	cat <<'END'

The roles and users are there. This does not switch etcd's auth on. When every program has its
user (ETCDCTL_USER and ETCDCTL_PASSWORD, or a client certificate whose common name is the user),
do that once, for all that is in this etcd:
    etcdctl user add root
    etcdctl auth enable
END
}

main # at the end, so that a script that was cut short does nothing
""")


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


def _check_root(_ctx: click.Context, param: click.Parameter, root: str | None) -> str | None:
    try:
        return None if root is None else Settings(root=root).root
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from error


@click.command()
@click.option(
    "--root",
    callback=_check_root,
    help="The keys' prefix. [default: that of CLUSTERMUTEX_URL, /clustermutex]",
)
@click.option(
    "--client",
    metavar="USER",
    multiple=True,
    callback=_check_names,
    help="A user of a service that takes locks.",
)
@click.option(
    "--unlocker", metavar="USER", multiple=True, callback=_check_names, help="A user of unlockers."
)
@click.option(
    "--dashboard",
    metavar="USER",
    multiple=True,
    callback=_check_names,
    help="A user who only looks: mutexdash, `clustermutex ls`.",
)
@click.option(
    "--operator",
    metavar="USER",
    multiple=True,
    callback=_check_names,
    help="A user who may also force-unlock: mutexdash --allow-force-unlock, "
    "`clustermutex force-unlock`; and tell of a restore: `clustermutex restored`.",
)
@click.option(
    "--no-password",
    is_flag=True,
    help="The users have no password but a client certificate with their name as its common "
    "name (etcd's --client-cert-auth).",
)
def setup_auth(root: str | None, *, no_password: bool, **users: tuple[str, ...]) -> None:
    """Print a script that gives etcd, or Valkey, the least rights for each program.

    It makes the users who have them, too. Each kind can be given several times, or not at all:
    then only the role is made. A new user's password is taken from CLIENT_PASSWORD,
    UNLOCKER_PASSWORD, DASHBOARD_PASSWORD or OPERATOR_PASSWORD, or asked for; one that is there
    keeps its own. For other stores docs/stores.md has the rights of each program.

    \b
        clustermutex setup-auth --client shop --unlocker unlocker > roles.sh
        less roles.sh
        ETCDCTL_ENDPOINTS=host1:2379 sh roles.sh

    With CLUSTERMUTEX_URL=valkey://… it makes users on each of these servers, for the prefix that
    stands there, by valkey-cli or redis-cli. Their passwords are those of the variables.
    """
    if root is None:
        try:
            settings = Settings.load()
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        if settings.place is not None:
            if no_password:
                raise click.UsageError("Without a password there are users in etcd alone.")
            try:
                script = settings.place.setup_script(users)
            except ValueError as error:
                raise click.ClickException(str(error)) from error
            click.echo(script, nl=False)
            return
        root = settings.root
    commands = "\n".join(f"\t{each}" for each in _commands(root, users, no_password))
    click.echo(_SCRIPT.substitute(root=root, version=__version__, commands=commands), nl=False)


def _commands(root: str, users: dict[str, tuple[str, ...]], no_password: bool) -> Iterator[str]:
    for kind, writes in WRITES.items():
        role = f"{root.removeprefix('/')}-{kind}"
        yield f"role {role}"
        yield f"etcdctl role grant-permission {role} read {root}/ --prefix"
        for folder in writes:
            yield f"etcdctl role grant-permission {role} readwrite {root}/{folder}/ --prefix"
        if kind == "operator":  # one key, and none below it: `clustermutex restored`
            yield f"etcdctl role grant-permission {role} readwrite {root}/restored"
        for name in users[kind]:
            if no_password:
                yield f"certified {shlex.quote(name)} {role}"
            else:
                variable = f"{kind.upper()}_PASSWORD"
                yield f'user {shlex.quote(name)} {role} {variable} "${{{variable}:-}}"'
