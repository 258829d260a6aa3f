#!/bin/sh
# Roles in etcd for the locks below @root, by `clustermutex setup-auth` @version.
# Review it, then let sh run it. It calls etcdctl (3.4 to 3.7), which is told by ETCDCTL_ENDPOINTS
# and so on where etcd is, and by ETCDCTL_USER=root:… who asks, where auth is on already. It can be
# run again: it adds and takes nothing away.
set -eu

role() { # NAME
	etcdctl role get "$1" >/dev/null 2>&1 || etcdctl role add "$1"
}

user() { # NAME ROLE VARIABLE PASSWORD: what a new user's password is, or else it is asked for
	if ! etcdctl user get "$1" >/dev/null 2>&1; then
		case $4 in
		*[[:space:]]*)
			echo "etcdctl would cut $3 at its first space: choose another password." >&2
			exit 1
			;;
		?*) printf '%s\n' "$4" | etcdctl user add "$1" --interactive=false ;;
		*)
			if ! (: </dev/tty) 2>/dev/null; then
				echo "The user $1 needs a password, and there is no terminal: set $3." >&2
				exit 1
			fi
			etcdctl user add "$1" </dev/tty
			;;
		esac
	fi
	etcdctl user grant-role "$1" "$2"
}

certified() { # NAME ROLE: a user without a password, known by its client certificate
	etcdctl user get "$1" >/dev/null 2>&1 || etcdctl user add "$1" --no-password
	etcdctl user grant-role "$1" "$2"
}

main() {
@commands
	cat <<'END'

The roles and users are there. This does not switch etcd's auth on. When every program has its
user (ETCDCTL_USER and ETCDCTL_PASSWORD, or a client certificate whose common name is the user),
do that once, for all that is in this etcd:
    etcdctl user add root
    etcdctl auth enable
END
}

main # at the end, so that a script that was cut short does nothing
