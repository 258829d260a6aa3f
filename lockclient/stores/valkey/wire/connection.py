"""Connection to one server: opened, identified by its process, and asked scripts.

valkey-py's connections, until they are let in, and nothing else of it. (redis-py would do as well;
it tries again by itself unless it is kept from it, in each edition otherwise, and valkey-py is the
one that both servers' own people look after.) Its client and its pool are left out: they send again
what nobody answered, and hide from which process an answer came. What is not known of a request,
here decides who counts the votes. Scripts are asked on the socket itself, by `resp`.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from valkey.connection import Connection as PlainConnection
from valkey.connection import SSLConnection

from lockclient.model.clocks import Deadline
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import KeyNames, milliseconds, number_of
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import SETTLE, Script
from lockclient.stores.valkey.wire import resp

CONNECT_TIMEOUT_S = 1.0
"""Seconds that a server has to let a client in."""
MIN_SEND_S = 0.05
"""Seconds that there are to send a request in any case."""
_READ_BYTES = 65536


class Command(NamedTuple):
    """What is asked of a server: a script with its keys and arguments."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str, ...]

    def packed(
        self, run_id: str, fingerprint: str, *, whole: bool = False, by_function: bool = False
    ) -> bytes:
        """Return it as the process of that name is sent it: by the script's name, or `whole`, or
        as a function that was loaded there, if it is one."""
        script = self.script
        first = ("EVAL", script.source) if whole else ("EVALSHA", script.sha)
        if by_function and script.function:
            first = ("FCALL_RO", script.function)
        told = (run_id, fingerprint) if script.votes else ()
        return resp.packed((*first, str(len(self.keys)), *self.keys, *told, *self.args))


class Reply(NamedTuple):
    """What a script answered: a word, and what follows it."""

    kind: str
    rest: list[Any]


class Vouched(NamedTuple):
    """What an operator says of a server as it is met.

    Attributes:
        idle: nobody holds a lock, so that it may vote at once.
        kept: it writes everything down before it answers, or does not; None: nothing is said.
    """

    idle: bool = False
    kept: bool | None = None


class ServerUnusable(Exception):
    """This server can't be used now, though it may have been reached: why is its `failure`."""

    def __init__(self, failure: errors.VoteFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Connection:
    """A connection to one process of a server's.

    Attributes:
        run_id: the process's own name, new with each start.
        durable: whether it writes everything down before it answers, as far as anybody has said.
        quarantine_s: seconds after which it votes; 0: it does.
        version: the server's name and version.
        fd: the connection's file descriptor.
    """

    def __init__(self, location: ValkeyLocation, endpoint: str) -> None:
        self.run_id = ""
        self.durable = False
        self.quarantine_s = 0.0
        self.version = ""
        self._by_function = False
        self._location = location
        self._connection = new_connection(location, endpoint)
        self._connection.connect()
        # Of valkey-py this alone is not public: who waits for several has to have it.
        self._socket = self._connection._sock
        self._socket.settimeout(0)  # it is polled; else each call is two of the system
        self._reader = resp.reader()
        self.fd: int = self._socket.fileno()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def identify(self, keys: KeyNames, vouched: Vouched) -> None:
        """Find out which process this is, and see to it that it votes when it may.

        Raises:
            ServerUnusable: it is none that gives locks.
        """
        lines = self.command("INFO").decode(errors="replace").splitlines()
        info = dict(line.split(":", 1) for line in lines if ":" in line)
        if info.get("role", "master") != "master":  # it may be promoted
            raise ServerUnusable(errors.VoteFailure("it is a replica and takes no writes"))
        if reason := _unusable(info):
            raise ServerUnusable(errors.VoteFailure(reason, permanent=True))
        self.run_id = info["run_id"]
        valkey = info.get("valkey_version")
        self.version = f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version')}"
        aof = "1" if info.get("aof_enabled") == "1" else "0"
        args = (
            *(self.run_id, self._location.config_fingerprint, aof),
            *("" if vouched.kept is None else str(int(vouched.kept)), str(int(vouched.idle))),
            milliseconds(self._location.longest),
        )
        try:
            answer = self.ask(Command(SETTLE, (keys.server,), args))
        except errors.ErrorReply as error:
            if not errors.may_run_no_script(error) or vouched != Vouched():
                raise
            answer = self._look(keys, info.get("master_replid2", "").strip("0"))
        if answer.kind == "terms":
            raise ServerUnusable(errors.config_mismatch(answer.rest[0], self._location))
        self.quarantine_s = int(answer.rest[0]) / 1000
        self.durable = answer.rest[1] == b"1"

    def _look(self, keys: KeyNames, past: str) -> Reply:
        """Read what another client has settled with this server, as one who may change nothing.

        Without a script, and by two commands: between these the note may only change in that the
        server votes later or sooner, and whatever is read asks for that again.
        """
        self._by_function = True
        run, terms, at, kept, replid2 = self.command(
            "HMGET", keys.server, "run", "terms", "votes_at", "kept", "replid2"
        )
        if run is not None and terms != self._location.config_fingerprint.encode():
            return Reply("terms", [terms or b""])
        if run != self.run_id.encode() or past not in ("", (replid2 or b"").decode().strip("0")):
            raise ServerUnusable(errors.VoteFailure(errors.UNSETTLED))
        seconds, micros = map(int, self.command("TIME"))
        now = 1000 * seconds + micros // 1000
        return Reply("settled", [max(0, number_of(at or b"", 15) - now), kept])

    # ------------------------------------------------------------ asking

    def command(self, *words: str) -> Any:
        """Send a command and wait for its answer."""
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        try:
            self._connection.send_command(*words)
            return self._connection.read_response()
        finally:
            with suppress(OSError):  # if it broke, it is closed
                self._socket.settimeout(0)

    def ask(self, command: Command) -> Reply:
        """Send a script and wait for its answer."""
        until = Deadline.after(CONNECT_TIMEOUT_S)
        self.send(command, until)
        while (answer := self.read(command, until)) is None:
            if not self._poll.poll(1000 * until.remaining()):
                raise TimeoutError("no answer in time")
        return answer

    def send(self, command: Command, until: Deadline, *, whole: bool = False) -> None:
        """Send a script. It may take until then, if the server reads no more for now."""
        data = command.packed(
            *(self.run_id, self._location.config_fingerprint),
            whole=whole,
            by_function=self._by_function,
        )
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(data):
            self._socket.settimeout(max(MIN_SEND_S, until.remaining()))
            self._socket.sendall(data[sent:])
            self._socket.settimeout(0)

    def read(self, command: Command, until: Deadline) -> Reply | None:
        """Return the answer, as far as something has come; None: it is not all there yet.

        A script that the server does not know by its name it is sent whole (a restart and
        `SCRIPT FLUSH` make it forget), once more until that deadline.
        """
        try:
            # A record of TLS is 16 kB at most: none of it is left where nobody polls for it.
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        if not data:
            raise ConnectionResetError("the connection was closed by server")
        reply = resp.read(self._reader, data)
        if reply is resp.UNFINISHED:
            return None
        if isinstance(reply, errors.UnknownScript):
            self.send(command, until, whole=True)
            return None
        if isinstance(reply, Exception):
            raise reply
        return Reply(reply[0].decode(), reply[1:])

    def close(self) -> None:
        """Close it. What was sent may still be done."""
        self._connection.disconnect()


def new_connection(location: ValkeyLocation, endpoint: str) -> Any:
    """Return a connection that is not open yet."""
    host, _, port = endpoint.rpartition(":")
    how: dict[str, Any] = {
        "host": host.strip("[]"),
        "port": int(port),
        "username": location.user,
        "password": location.password,
        "socket_timeout": CONNECT_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "encoding_errors": "replace",
        "lib_name": None,  # two requests less for each connection
        "lib_version": None,
        "parser_class": resp.BoundedParser,
    }
    if not location.tls:
        return PlainConnection(**how)  # type: ignore[no-untyped-call]
    return SSLConnection(  # type: ignore[no-untyped-call]
        **how,
        ssl_check_hostname=True,
        ssl_ca_certs=location.cacert,
        ssl_certfile=location.cert,
        ssl_keyfile=location.key,
    )


def _unusable(info: Mapping[str, str]) -> str:
    """Return why a server that says this of itself gives no locks; empty: it does."""
    if "cluster" in (info.get("redis_mode"), info.get("server_mode")):
        return "it is a node of a cluster, and must stand alone"
    if not info.get("run_id"):
        return (
            "its INFO has no run_id (a proxy may leave it out), without which nobody notices "
            "that it was restarted and has forgotten locks: name the server itself"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ""
    return (  # it would drop locks, which expire, and keep what says that it has lost none
        f"it may drop locks when its memory is full (maxmemory-policy {policy}): set "
        "maxmemory-policy noeviction"
    )
