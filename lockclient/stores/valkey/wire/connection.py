"""One connection to one server: opened, asked who it is, and told that this client has come.

valkey-py's connections, until they are let in, and nothing else of it. (redis-py would do as well;
it tries again by itself unless it is kept from it, in each edition otherwise, and valkey-py is the
one that both servers' own people look after.) Its client and its pool are left out: they send again
what nobody answered, and hide from which process an answer came. What is not known of a request,
here decides who counts the votes. Scripts are asked on the socket itself, by `wire`.
"""

from __future__ import annotations

import select
import ssl
from typing import Any, NamedTuple

from valkey.connection import Connection as PlainConnection
from valkey.connection import SSLConnection

from lockclient.model.clocks import Deadline
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import Trouble
from lockclient.stores.valkey.keys import Keys, milliseconds
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import SETTLE, Script
from lockclient.stores.valkey.wire import resp

CONNECTING = 1.0
"""Seconds that a server has to let a client in."""
LEAST = 0.05
"""Seconds that there are to send a request in any case."""
_AT_ONCE = 65536


class Command(NamedTuple):
    """What is asked of a server: a script with its keys and arguments.

    With `votes` it is told besides which process it is taken for, and the keyspace's `terms`.
    """

    script: Script
    keys: tuple[str, ...]
    args: tuple[str, ...]
    votes: bool = True

    def packed(self, terms: str, *, whole: bool = False) -> Packed:
        """Return it as it is sent: by the script's name, or `whole`."""
        script, size = self.script, 3 + len(self.keys) + len(self.args)
        first = ("EVAL", script.source) if whole else ("EVALSHA", script.sha)
        head = (*first, str(len(self.keys)), *self.keys)
        if not self.votes:
            return Packed(resp.count(size) + resp.packed((*head, *self.args)), b"")
        return Packed(resp.count(size + 2) + resp.packed(head), resp.packed((terms, *self.args)))


class Packed(NamedTuple):
    """A call as it is sent, the same to all servers but for what comes in the middle."""

    head: bytes
    tail: bytes

    def to(self, run: bytes) -> bytes:
        """Return it as the process of that name is sent it."""
        return self.head + run + self.tail if self.tail else self.head


class Reply(NamedTuple):
    """What a script answered: a word, and what follows it."""

    kind: str
    rest: list[Any]


class Refusal(Exception):
    """This server can't be used now, though it was reached. The trouble is its argument."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.words)
        self.trouble = trouble


class Connection:
    """A connection to one process of a server's.

    Attributes:
        run: the process's own name, new with each start.
        kept: whether it writes everything down before it answers.
        waits: seconds after which it votes; 0: it does.
        version: the server's name and version.
        fd: the connection's file descriptor.
    """

    def __init__(self, place: ValkeyLocation, endpoint: str) -> None:
        self.run = ""
        self.kept = False
        self.waits = 0.0
        self.version = ""
        self._place = place
        self._connection = connection_to(place, endpoint)
        self._connection.connect()
        # Of valkey-py this alone is not public: who waits for several has to have it.
        self._socket = self._connection._sock
        self._run = b""
        self._reader = resp.reader()
        self.fd: int = self._socket.fileno()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def settle(self, keys: Keys, *, vouched: bool = False) -> None:
        """Find out which process this is, and see to it that it votes when it may.

        Raises:
            Refusal: it is none that gives locks.
        """
        said = self._info()
        if "cluster" in (said.get("redis_mode"), said.get("server_mode")):
            raise Refusal(Trouble("it is a node of a cluster, and must stand alone", refused=True))
        if said.get("role", "master") != "master":
            raise Refusal(Trouble("it is a replica and takes no writes", refused=True))
        policy = said.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":  # it would drop locks, which expire, and keep the sentinel
            raise Refusal(
                Trouble(
                    f"it may drop locks when its memory is full (maxmemory-policy {policy}): set "
                    "maxmemory-policy noeviction",
                    refused=True,
                )
            )
        self.run = said.get("run_id", "")
        self._run = resp.packed((self.run,))
        valkey = said.get("valkey_version")
        self.version = f"Valkey {valkey}" if valkey else f"Redis {said.get('redis_version')}"
        # A replica that was promoted has what its primary sent it, which may not be all.
        promoted = said.get("master_replid2", "").strip("0") != ""
        self.kept = said.get("aof_enabled") == "1" and not promoted and self._fsyncs()
        self._socket.settimeout(0)  # from here on it is polled; else each call is two of the system
        terms, longest = self._place.config_fingerprint, milliseconds(self._place.longest)
        args = (self.run, terms, "1" if self.kept else "0", "1" if vouched else "0", longest)
        answer = self.ask(Command(SETTLE, (keys.server,), args, votes=False))
        if answer.kind == "terms":
            raise Refusal(other_terms(answer, self._place))
        self.waits = int(answer.rest[0]) / 1000

    def _info(self) -> dict[str, str]:
        lines = self.command("INFO").decode(errors="replace").splitlines()
        return dict(each.split(":", 1) for each in lines if ":" in each)

    def _fsyncs(self) -> bool:
        try:
            always = self.command("CONFIG", "GET", "appendfsync")
            # With yes it leaves that out for as long as its file is written anew.
            pauses = self.command("CONFIG", "GET", "no-appendfsync-on-rewrite")
        except errors.Refused:  # not this user's to know: then it can't be relied on either
            return False
        return bool(always[1:] == [b"always"] and pauses[1:] == [b"no"])

    # ------------------------------------------------------------ asking

    def command(self, *words: str) -> Any:
        """Send a command and wait for its answer."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def ask(self, call: Command) -> Reply:
        """Send a call and wait for its answer."""
        until = Deadline.after(CONNECTING)
        self.send(call.packed(self._place.config_fingerprint), until)
        while (answer := self.read(call, until)) is None:
            if not self._poll.poll(1000 * until.remaining()):
                raise TimeoutError("no answer in time")
        return answer

    def send(self, packed: Packed, until: Deadline) -> None:
        """Send a call. It may take until then, if the server reads no more for now."""
        said = packed.to(self._run)
        try:
            sent = self._socket.send(said)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(said):
            self._socket.settimeout(max(LEAST, until.remaining()))
            self._socket.sendall(said[sent:])
            self._socket.settimeout(0)

    def read(self, call: Command, until: Deadline) -> Reply | None:
        """Return the answer, as far as something has come; None: it is not all there yet.

        A script that the server does not know by its name it is sent whole (a restart and
        `SCRIPT FLUSH` make it forget), once more until that deadline.
        """
        try:
            # A record of TLS is 16 kB at most: none of it is left where nobody polls for it.
            data = self._socket.recv(_AT_ONCE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        if not data:
            raise ConnectionResetError("the connection was closed by server")
        said = resp.read(self._reader, data)
        if said is resp.UNFINISHED:
            return None
        if isinstance(said, errors.NoScript):
            self.send(call.packed(self._place.config_fingerprint, whole=True), until)
            return None
        if isinstance(said, Exception):
            raise said
        return Reply(said[0].decode(), said[1:])

    def close(self) -> None:
        """Close it. What was sent may still be done."""
        self._connection.disconnect()


def connection_to(place: ValkeyLocation, endpoint: str) -> Any:
    """Return a connection that is not open yet."""
    host, _, port = endpoint.rpartition(":")
    how: dict[str, Any] = {
        "host": host.strip("[]"),
        "port": int(port),
        "username": place.user,
        "password": place.password,
        "socket_timeout": CONNECTING,
        "socket_connect_timeout": CONNECTING,
        "encoding_errors": "replace",
        "lib_name": None,  # two requests less for each connection
        "lib_version": None,
    }
    if not place.tls:
        return PlainConnection(**how)  # type: ignore[no-untyped-call]
    return SSLConnection(  # type: ignore[no-untyped-call]
        **how,
        ssl_check_hostname=True,
        ssl_ca_certs=place.cacert,
        ssl_certfile=place.cert,
        ssl_keyfile=place.key,
    )


def other_terms(answer: Reply, place: ValkeyLocation) -> Trouble:
    """Return the trouble of a keyspace that another client uses by other terms."""
    said = answer.rest[0].decode(errors="replace")
    theirs = dict(each.partition("=")[::2] for each in said.split())
    if theirs.get("servers") != str(len(place.endpoints)):
        words = (
            f"it is one of {theirs.get('servers', '?')} servers there, and this client's URL names "
            f"{len(place.endpoints)}: all who use this prefix must name the same ones"
        )
    else:
        words = (
            f"longest is {theirs.get('longest', '?')} s there, and {place.longest:g} s in this "
            "client's URL: all who use this prefix must say the same"
        )
    return Trouble(words, refused=True)
