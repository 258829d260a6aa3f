#!/bin/sh
# Users of Valkey or Redis (7.0 or later) for the locks at @url, by `clustermutex setup-auth`.
# Review it, then let sh run it. It calls valkey-cli or redis-cli, or what VALKEY_CLI says, with
# options like --tls; REDISCLI_AUTH is the password of who may make users. It can be run again: each
# user then has these rights, and the password that is given.
set -eu

cli=${VALKEY_CLI:-$(command -v valkey-cli || command -v redis-cli)}

user() { # NAME VARIABLE PASSWORD RULE…: on all servers, or it fails
	name=$1 variable=$2 password=$3
	shift 3
	if [ -z "$password" ]; then
		echo "The user $name needs a password: set $variable." >&2
		exit 1
	fi
	hash=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
@servers
}

let_in() { # SERVER WHAT-IT-SAID
	case $2 in
	*PONG* | *NOPERM*) return ;;
	esac
	cat >&2 <<END
$1 lets nobody in who asks so: $2
Set REDISCLI_AUTH to the password of who may make users there. For a user that is not the default
one, and for TLS, set VALKEY_CLI, too, like VALKEY_CLI='valkey-cli --user admin --tls'.
END
	exit 1
}

main() {
@asked
@users
	cat <<'END'

The users are there on all servers. Unless a server has an aclfile (then: ACL SAVE), or its
configuration is written anew (CONFIG REWRITE), it forgets them as it ends. Each program is told its
own by VALKEY_USER and VALKEY_PASSWORD. This does not keep out who has no user: do that once, for
all that is in these servers, by ACL SETUSER default off (or with a password).
END
}

main # at the end, so that a script that was cut short does nothing
