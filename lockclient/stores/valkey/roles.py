"""The least rights of each kind of program, as a script that makes users with them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from string import Template
from typing import Final

from lockclient.stores.common.setup_script import SetupScript
from lockclient.stores.valkey.location import ValkeyLocation

_ALL: Final = (
    "-@all +info +time +hget +hmget +get +pttl +sscan +strlen "
    "&$root/released/* +subscribe +unsubscribe +psubscribe +punsubscribe"
)
"""Rights of every program: to read and to subscribe. None reads the server's configuration, which
has its passwords."""
_SCRIPTS: Final = "~$root/* +eval +evalsha +publish +pubsub|numsub (~$root/server +hset)"
"""Further rights of writers: to send scripts, to publish, and to register a server."""
_WRITING: Final = "+hset +del +set +pexpire +persist +sadd +srem +srandmember"
_LOCKS: Final = "~$root/locks ~$root/locks/* ~$root/withdrawn/*"
_RECORDS: Final = "~$root/removed ~$root/removed/*"
_RULES: Final = {
    "client": f"{_SCRIPTS} ({_LOCKS} {_WRITING})",
    "unlocker": (
        f"{_SCRIPTS} +scan ({_LOCKS} {_RECORDS} ~$root/unlockers ~$root/unlockers/* "
        f"~$root/notifications/* {_WRITING})"
    ),
    "dashboard": "%R~$root/* +multi +exec +getrange",
    "operator": f"{_SCRIPTS} ({_LOCKS} {_RECORDS} {_WRITING})",
}
"""Further rights of each kind. All may read all, as in etcd.

Selectors are in parentheses: these commands, for these keys alone. The server checks each command
that a script calls by the same rules. A dashboard sends no script: one may never end.
"""


def setup_script(location: ValkeyLocation, users: Mapping[str, Sequence[str]]) -> str:
    """Return a script for sh: see `StoreEntry.setup_script`."""
    if not any(users.values()):
        raise ValueError("Valkey has no roles: name the users that are to be, like --client shop.")
    for name in (name for names in users.values() for name in names):
        if any(character.isspace() for character in name):
            raise ValueError(f"{name!r} can't be a user of Valkey's: no blanks.")
    return SetupScript.beside(__file__).substitute(
        url=location.url(),
        servers="\n".join(
            f'\t$cli {where} -e ACL SETUSER "$name" reset on "#$hash" "$@"'
            for where in _options(location)
        ),
        asked="\n".join(
            f'\tlet_in {shlex.quote(endpoint)} "$($cli {where} PING 2>&1)"'
            for endpoint, where in zip(location.endpoints, _options(location), strict=True)
        ),
        users="\n".join(_made(location, users)),
    )


def _options(location: ValkeyLocation) -> Iterator[str]:
    """Yield the options of valkey-cli for each server."""
    for endpoint in location.endpoints:
        host, _, port = endpoint.rpartition(":")
        yield f"-h {shlex.quote(host.strip('[]'))} -p {port}"


def _made(location: ValkeyLocation, users: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for kind, names in users.items():
        # With expire=1 a client records what has expired: it needs the rights of an operator.
        rights = _RULES["operator" if kind == "client" and location.expire else kind]
        rules = Template(f"{_ALL} {rights}").substitute(root=location.root)
        rules = shlex.join(re.findall(r"\(.*?\)|\S+", rules))  # a selector is one word
        variable = f"{kind.upper()}_PASSWORD"
        for name in names:
            yield f'\tuser {shlex.quote(name)} {variable} "${{{variable}:-}}" {rules}'
