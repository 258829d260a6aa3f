"""The least rights of each kind of program, as a script that makes users who have them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from string import Template
from typing import Final

from lockclient.stores.valkey.location import ValkeyLocation

_ALL: Final = (
    "-@all +info +time +hget +hmget +hgetall +get +pttl +sscan +strlen "
    "&$root/released/* +subscribe +unsubscribe +psubscribe +punsubscribe"
)
"""What every program needs: to read, and to hear. None reads the server's configuration, in which
its passwords stand."""
_TELLING: Final = "~$root/* +eval +evalsha +publish +pubsub|numsub (~$root/server +hset)"
"""What who writes needs besides: to send scripts, to tell, and to say which process a server is."""
_WRITING: Final = "+hset +del +set +pexpire +persist +sadd +srem +srandmember"
_RULES: Final = {
    "client": f"{_TELLING} (~$root/locks ~$root/locks/* ~$root/withdrawn/* {_WRITING})",
    "unlocker": (
        f"{_TELLING} +scan (~$root/locks ~$root/locks/* ~$root/withdrawn/* ~$root/removed "
        f"~$root/removed/* ~$root/unlockers ~$root/unlockers/* ~$root/notifications/* {_WRITING})"
    ),
    "dashboard": "%R~$root/* +multi +exec +getrange",
    "operator": (
        f"{_TELLING} (~$root/locks ~$root/locks/* ~$root/withdrawn/* ~$root/removed "
        f"~$root/removed/* {_WRITING})"
    ),
}
"""What each kind needs besides. All may read all, as in etcd.

In parentheses stand selectors: these commands, for these keys alone. A script is checked by the
same rules with each command that it calls. Who only looks sends none: it could be one that never
ends.
"""

_SCRIPT: Final = Template("""\
#!/bin/sh
# Users of Valkey or Redis (7.0 or later) for the locks at $url, by `clustermutex setup-auth`.
# Review it, then let sh run it. It calls valkey-cli or redis-cli, or what VALKEY_CLI says, with
# options like --tls; REDISCLI_AUTH is the password of who may make users. It can be run again: each
# user then has these rights, and the password that is given.
set -eu

cli=$${VALKEY_CLI:-$$(command -v valkey-cli || command -v redis-cli)}

user() { # NAME VARIABLE PASSWORD RULE…: on all servers, or it fails
	name=$$1 variable=$$2 password=$$3
	shift 3
	if [ -z "$$password" ]; then
		echo "The user $$name needs a password: set $$variable." >&2
		exit 1
	fi
	hash=$$(printf %s "$$password" | sha256sum | cut -d ' ' -f 1)
$servers
}

let_in() { # SERVER WHAT-IT-SAID
	case $$2 in
	*PONG* | *NOPERM*) return ;;
	esac
	cat >&2 <<END
$$1 lets nobody in who asks so: $$2
Set REDISCLI_AUTH to the password of who may make users there. For a user that is not the default
one, and for TLS, set VALKEY_CLI, too, like VALKEY_CLI='valkey-cli --user admin --tls'.
END
	exit 1
}

main() {
$asked
$users
	cat <<'END'

The users are there on all servers. Unless a server has an aclfile (then: ACL SAVE), or its
configuration is written anew (CONFIG REWRITE), it forgets them as it ends. Each program is told its
own by VALKEY_USER and VALKEY_PASSWORD. This does not keep out who has no user: do that once, for
all that is in these servers, by ACL SETUSER default off (or with a password).
END
}

main # at the end, so that a script that was cut short does nothing
""")


def setup_script(location: ValkeyLocation, users: Mapping[str, Sequence[str]]) -> str:
    """Return a script for sh: see `StoreEntry.setup_script`."""
    if not any(users.values()):
        raise ValueError("Valkey has no roles: name the users that are to be, like --client shop.")
    for name in (name for names in users.values() for name in names):
        if any(character.isspace() for character in name):
            raise ValueError(f"{name!r} can't be a user of Valkey's: no blanks.")
    return _SCRIPT.substitute(
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
    """Yield what valkey-cli is told of each server."""
    for endpoint in location.endpoints:
        host, _, port = endpoint.rpartition(":")
        yield f"-h {shlex.quote(host.strip('[]'))} -p {port}"


def _made(location: ValkeyLocation, users: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for kind, names in users.items():
        rules = Template(f"{_ALL} {_RULES[kind]}").substitute(root=location.root)
        if kind == "client" and location.expire:  # it tells on record of what has expired
            own = f"~{location.root}/withdrawn/*"
            record = f"~{location.root}/removed"
            rules = rules.replace(own, f"{own} {record} {record}/*")
        rules = shlex.join(re.findall(r"\(.*?\)|\S+", rules))  # a selector is one word
        variable = f"{kind.upper()}_PASSWORD"
        for name in names:
            yield f'\tuser {shlex.quote(name)} {variable} "${{{variable}:-}}" {rules}'
