"""The least roles in etcd for each kind of program, and a script that makes their users."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from lockclient.model.version import __version__
from lockclient.stores.common.setup_script import SetupScript
from lockclient.stores.etcd.location import EtcdLocation

WRITES = {
    "client": ("locks", "queue", "withdrawn"),
    "unlocker": ("code", "locks", "notifications", "removed", "unlockers", "withdrawn"),
    "dashboard": (),
    "operator": ("code", "locks", "removed", "withdrawn"),
}
"""The folders `<root>/<kind>/` that each role may write to. Each role may read the whole root: a
client reads who removed its lock, an unlocker and a dashboard follow everything with one watch,
`ls` and `doctor` show queues and unlockers.

etcd's roles know keys, not values. So a client of another make, with the right to take locks, could
delete another holder's lock; but it can't write the removal record of an unlocker or a person.
"""


def setup_script(
    location: EtcdLocation, users: Mapping[str, Sequence[str]], *, no_password: bool = False
) -> str:
    """Return a script for sh: see `StoreEntry.setup_script`."""
    commands = "\n".join(
        f"\t{command}" for command in _commands(location.root, users, no_password=no_password)
    )
    return SetupScript.beside(__file__).substitute(
        root=location.root, version=__version__, commands=commands
    )


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
