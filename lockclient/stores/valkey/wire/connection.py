"""Connection to one process of a server, by valkey-py: identified, with deadlines and a bound."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import valkey.connection
from libvalkey import pack_command
from valkey._parsers.libvalkey import NOT_ENOUGH_DATA, _LibvalkeyParser
from valkey.backoff import NoBackoff
from valkey.exceptions import InvalidResponse, ValkeyError
from valkey.retry import Retry

from lockclient.model.clocks import Deadline
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import KeyNames, milliseconds
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import REGISTER, Command, Reply, Script
from lockclient.stores.valkey.reads import Exchange, Words, has_plain, transactions

CONNECT_TIMEOUT_S = 1.0
"""Seconds that all addresses of a server's name share to accept a connection, and seconds for each
answer until the server is identified."""
ANSWER_TIMEOUT_S: Final = 2.0
"""Seconds after which a request counts as unanswered, and its connection is closed."""
_MIN_TIMEOUT_S: Final = 0.001
_MIN_SEND_S: Final = 0.05
"""The least time to send a request, whatever its deadline."""
SCAN_COUNT: Final = "500"
"""Keys, or entries of an index, that a server reads in one step, in less than 1 ms."""
_MAX_SMALL_BYTES: Final = 8192
"""Bytes that the system takes from an idle connection without a wait."""
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one answer: twice the longest, a hundred locks with the longest values."""


class ServerUnusable(ValkeyError):
    """The server can't be used now, for the reason in `failure`.

    A `ValkeyError`, because valkey-py leaves the socket open after any other one in its hook.
    """

    def __init__(self, failure: errors.VoteFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class _Parser(_LibvalkeyParser):
    """valkey-py's parser, with a deadline for the whole answer and a bound on its bytes.

    The socket has a timeout only during a wait with a deadline; else it never waits.
    """

    parse_error = staticmethod(errors.server_error)
    _until: Deadline | None = None
    unfinished = 0
    """Bytes received of an answer that is not complete."""

    def on_connect(self, connection: valkey.connection.Connection, **how: Any) -> None:
        super().on_connect(connection, **how)
        self._until = Deadline.after(CONNECT_TIMEOUT_S)

    def next_answer(self, until: Deadline | None) -> Any:
        """Wait for an answer and return it, an error as well. Without a deadline: return
        `NOT_ENOUGH_DATA` unless all of it has arrived."""
        self._until = until
        while (answer := self._reader.gets()) is NOT_ENOUGH_DATA:
            if not self.read_from_socket():
                return NOT_ENOUGH_DATA
        self.unfinished = 0
        return answer

    def read_from_socket(self, *_: object) -> bool:
        """Read what has arrived; with a deadline wait for it."""
        sock, until = self._sock, self._until
        try:
            if until is not None:
                sock.settimeout(max(_MIN_TIMEOUT_S, until.remaining()))
            number = sock.recv_into(self._buffer)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            if until is not None:
                sock.settimeout(0)
        if not number:
            raise ConnectionResetError("the connection was closed by server")
        self.unfinished += number
        if self.unfinished > _MAX_ANSWER_BYTES:
            raise InvalidResponse("its answer does not end")
        self._reader.feed(bytes(memoryview(self._buffer)[:number]))
        return True


class Connection(valkey.connection.Connection):
    """A connection to one process of a server.

    Attributes:
        fd: the socket's file descriptor.
        run_id: the process's own name, new with each start.
        durable: an operator vouches that it writes everything to its disk before it answers.
        quarantine_s: seconds until it votes; 0: it does.
        version: the server's name and version.
        is_reader: this user may send no script, and reads by plain commands.
    """

    fd: int
    run_id = ""
    durable = False
    quarantine_s = 0.0
    version = ""
    is_reader = False
    location: ValkeyLocation
    _terms: str
    _exchange: Exchange
    _answers: list[Any]
    _unread: int
    _parser: _Parser

    def connect(self) -> None:
        super().connect()
        assert self._sock is not None
        self._sock.settimeout(0)  # see `_Parser`
        self.fd, self._terms = self._sock.fileno(), self.location.terms

    def identify(self, keys: KeyNames, *, idle: bool, kept: bool | None) -> None:
        """Read which process this is, and register it, so that it votes when it may.

        Args:
            keys: the names of the keys.
            idle: an operator vouches that nobody holds a lock, so that it votes at once.
            kept: an operator vouches that it writes everything to its disk before it answers, or
                takes that back; None: neither.

        Raises:
            ServerUnusable: it gives no locks.
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
        args = (
            self.run_id,
            self._terms,
            "1" if info.get("aof_enabled") == "1" else "0",
            "" if kept is None else str(int(kept)),
            str(int(idle)),
            milliseconds(self.location.longest),
        )
        register = Command(REGISTER, (keys.server,), args)
        try:
            answer = self._ask(register)
        except errors.ErrorReply as error:
            if not errors.may_run_no_script(error) or idle or kept is not None:
                raise
            self.is_reader = True
            answer = self._ask(register)
        if answer.kind == "terms":
            raise ServerUnusable(errors.config_mismatch(answer.rest[0], self.location))
        if answer.kind in ("empty", "another"):
            raise ServerUnusable(errors.VoteFailure(errors.UNREGISTERED))
        self.quarantine_s = int(answer.rest[0]) / 1000
        self.durable = answer.rest[1] == b"1"

    def _ask(self, command: Command) -> Reply:
        until = Deadline.after(CONNECT_TIMEOUT_S)
        self.send(command, until)
        reply = self.read(until)
        assert reply is not None  # there is a deadline
        return reply

    # ------------------------------------------------------------ scripts

    def send(self, command: Command, until: Deadline) -> None:
        """Send a command, or plain ones that read the same; wait until then for a full socket."""
        script, keys, args = command
        if self.is_reader and has_plain(script):
            self._exchange = transactions(script, keys, args, self.run_id, self._terms)
        else:
            self._exchange = self._script(*command)
        self.write(next(self._exchange), until)

    def read(self, until: Deadline | None) -> Reply | None:
        """Wait for the answer to what was sent, and return it. Without a deadline: return None if
        not all of it has arrived."""
        while True:
            while self._unread:
                answer = self._parser.next_answer(until)
                if answer is NOT_ENOUGH_DATA:
                    return None
                self._unread -= 1
                self._answers.append(answer)
            try:
                following = self._exchange.send(self._answers)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            self.write(following, until or Deadline.after(_MIN_SEND_S))

    def _script(self, script: Script, keys: Words, args: Words) -> Exchange:
        """Send a script by its hash, then whole if the server does not know it: a restart and
        `SCRIPT FLUSH` make it forget."""
        identity = (self.run_id, self._terms) if script.votes else ()
        words = (str(len(keys)), *keys, *identity, *args)
        (answer,) = yield [("EVALSHA", script.sha, *words)]
        if isinstance(answer, errors.UnknownScript):
            (answer,) = yield [("EVAL", script.source, *words)]
        if isinstance(answer, errors.ErrorReply):
            raise answer
        kind, *rest = answer
        return Reply(kind.decode(), rest)

    # ------------------------------------------------------------ plain commands

    def write(self, commands: Sequence[Words], until: Deadline) -> None:
        """Send commands, whose answers `command`, `read` or `receive` reads."""
        self._answers, self._unread = [], len(commands)
        try:
            data = b"".join(map(pack_command, commands))
        except UnicodeEncodeError:  # a lone surrogate
            encoded = ([word.encode(errors="replace") for word in words] for words in commands)
            data = b"".join(map(pack_command, map(tuple, encoded)))
        sock = self._sock
        assert sock is not None
        if len(data) > _MAX_SMALL_BYTES:
            sock.settimeout(max(_MIN_SEND_S, until.remaining()))
        sock.sendall(data)
        if len(data) > _MAX_SMALL_BYTES:
            sock.settimeout(0)

    def command(self, *words: str) -> Any:
        until = Deadline.after(CONNECT_TIMEOUT_S)
        self.write([words], until)
        answer = self._parser.next_answer(until)
        errors.check(answer)
        return answer

    def scan(self, begin: Words, *options: str) -> Iterator[list[bytes]]:
        cursor = "0"
        while True:
            following, page = self.command(*begin, cursor, *options, "COUNT", SCAN_COUNT)
            yield page
            cursor = following.decode()
            if cursor == "0":
                return

    def receive(self) -> list[Any]:
        """Return the messages that have arrived; errors are raised."""
        messages = []
        while (message := self._parser.next_answer(None)) is not NOT_ENOUGH_DATA:
            errors.check(message)
            messages.append(message)
        return messages

    def has_ended(self) -> bool:
        """Tell whether an idle connection was closed, or has received anything unasked."""
        try:
            answer = self._parser.next_answer(None)
        except errors.Unanswered:
            return True
        return answer is not NOT_ENOUGH_DATA or self._parser.unfinished > 0

    def close(self) -> None:
        """Close it. A command that was sent may still be executed."""
        self.disconnect()


class _TlsConnection(valkey.connection.SSLConnection, Connection):
    """valkey-py wraps the socket."""


def connected(location: ValkeyLocation, endpoint: str) -> Connection:
    """Return an authenticated connection; it is not identified yet.

    Raises:
        errors.ErrorReply: the server does not accept the user.
        errors.Unanswered: it was not reached.
        StoreError: the file of the password can't be used.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    addresses = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    how: dict[str, Any] = {
        "host": host,
        "port": port,
        "username": location.user,
        "password": location.current_password(),
        "parser_class": _Parser,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_TIMEOUT_S / len(addresses),
        "socket_timeout": CONNECT_TIMEOUT_S,
        "lib_name": None,
        "lib_version": None,
    }
    if location.tls:
        files = {
            "ssl_ca_certs": location.cacert,
            "ssl_certfile": location.cert,
            "ssl_keyfile": location.key,
        }
        connection: Connection = _TlsConnection(ssl_check_hostname=True, **files, **how)
    else:
        connection = Connection(**how)
    connection.location = location
    connection.connect()
    return connection


def _unusable(info: Mapping[str, str]) -> str:
    """Return why a server with this INFO gives no locks; empty: it does."""
    mode = info.get("server_mode", info.get("redis_mode"))
    if mode == "cluster":
        return "it is a node of a cluster, and must stand alone"
    if mode == "sentinel":
        return "it is a Sentinel, which holds no keys: name the servers themselves"
    if not info.get("run_id"):
        return (
            "its INFO has no run_id (a proxy may leave it out), without which nobody notices "
            "that it was restarted and has forgotten locks: name the server itself"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ""
    return (  # it would drop locks, which expire, but not `<root>/server`, which does not
        f"it may drop locks when its memory is full (maxmemory-policy {policy}): set "
        "maxmemory-policy noeviction"
    )
