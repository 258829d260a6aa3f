"""The least roles in etcd for each kind of program, as a script that makes users who have them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from string import Template

from lockclient.stores.etcd.location import EtcdLocation
from lockclient.version import __version__

WRITES = {
    "client": ("locks", "queue", "withdrawn"),
    "unlocker": ("code", "locks", "notifications", "removed", "unlockers", "withdrawn"),
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
# Review it, then let sh run it. It calls etcdctl (3.4 to 3.7), which is told by ETCDCTL_ENDPOINTS
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


def setup_script(
    location: EtcdLocation, users: Mapping[str, Sequence[str]], *, no_password: bool = False
) -> str:
    """Return a script for sh: see `StoreEntry.setup_script`."""
    commands = "\n".join(
        f"\t{command}" for command in _commands(location.root, users, no_password=no_password)
    )
    return _SCRIPT.substitute(root=location.root, version=__version__, commands=commands)


def _commands(root: str, users: Mapping[str, Sequence[str]], *, no_password: bool) -> Iterator[str]:
    for kind, writes in WRITES.items():
        role = f"{root.removeprefix('/')}-{kind}"
        yield f"role {role}"
        yield f"etcdctl role grant-permission {role} read {root}/ --prefix"
        for folder in writes:
            yield f"etcdctl role grant-permission {role} readwrite {root}/{folder}/ --prefix"
        for name in users[kind]:
            if no_password:
                yield f"certified {shlex.quote(name)} {role}"
            else:
                variable = f"{kind.upper()}_PASSWORD"
                yield f'user {shlex.quote(name)} {role} {variable} "${{{variable}:-}}"'
