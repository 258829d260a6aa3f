"""Connection to one server: opened, identified by its process, and asked scripts.

By sockets of the standard library and libvalkey's parser: clients and pools send again what nobody
answered, and hide from which process an answer came. What is not known of a request, here decides
who counts the votes.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lockclient.model.clocks import Deadline
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import KeyNames, milliseconds, number_of
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import SETTLE, Script
from lockclient.stores.valkey.wire.resp import AnswerReader, packed

CONNECT_TIMEOUT_S = 1.0
"""Seconds that a server has to let a client in."""
MIN_SEND_S = 0.05
"""Seconds that there are to send a request in any case."""
_READ_BYTES = 65536


class Command(NamedTuple):
    """What is asked of a server: a script, or a plain command, with its keys and arguments."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str, ...]


class Reply(NamedTuple):
    """What a script answered: a word, and what follows it; of a plain command, that it is done."""

    kind: str
    rest: list[Any]


DONE: Final = Reply("done", [])


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
        is_reader: this user may send no script, so that it calls functions, which only read.
        fd: the connection's file descriptor.
    """

    def __init__(self, location: ValkeyLocation, endpoint: str) -> None:
        self.run_id = ""
        self.durable = False
        self.quarantine_s = 0.0
        self.version = ""
        self.is_reader = False
        self._location, self._terms = location, location.config_fingerprint
        self._reader = AnswerReader()
        self._socket = _open_socket(location, endpoint)
        self.fd = self._socket.fileno()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        if location.password is not None:
            user = () if location.user is None else (location.user,)
            try:
                self.command("AUTH", *user, location.password)
            except BaseException:
                self.close()
                raise

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
            *(self.run_id, self._terms, aof),
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
        self.is_reader = True
        run, terms, at, kept, replid2 = self.command(
            "HMGET", keys.server, "run", "terms", "votes_at", "kept", "replid2"
        )
        if run is not None and terms != self._terms.encode():
            return Reply("terms", [terms or b""])
        if run != self.run_id.encode() or past not in ("", (replid2 or b"").decode().strip("0")):
            raise ServerUnusable(errors.VoteFailure(errors.UNSETTLED))
        seconds, micros = map(int, self.command("TIME"))
        now = 1000 * seconds + micros // 1000
        return Reply("settled", [max(0, number_of(at or b"", 15) - now), kept])

    # ------------------------------------------------------------ asking

    def command(self, *words: str) -> Any:
        """Send a command and wait for its answer."""
        until = self.send_words(*words)
        while not (answers := self._answer()):
            self._await_more(until)
        return answers[0]

    def ask(self, command: Command) -> Reply:
        """Send a script and wait for its answer."""
        until = Deadline.after(CONNECT_TIMEOUT_S)
        self.send(command, until)
        while (reply := self.read(command, until)) is None:
            self._await_more(until)
        return reply

    def _await_more(self, until: Deadline) -> None:
        if not self._poll.poll(1000 * until.remaining()):
            raise TimeoutError("no answer in time")

    def send_words(self, *words: str) -> Deadline:
        """Send a command; return until when it is to be answered."""
        until = Deadline.after(CONNECT_TIMEOUT_S)
        self._send(packed(words), until)
        return until

    def send(self, command: Command, until: Deadline, *, whole: bool = False) -> None:
        """Send a script: by its name, or `whole`, or as a function that was loaded there, if it is
        one. It may take until then, if the server reads no more for now."""
        script, keys, args = command
        first = ("EVAL", script.source) if whole else ("EVALSHA", script.sha)
        if self.is_reader and script.function:
            first = ("FCALL_RO", script.function)
        told = (self.run_id, self._terms) if script.votes else ()
        words = (*first, str(len(keys)), *keys, *told, *args)
        self._send(packed(words if script.sha else (script.source, *keys, *args)), until)

    def _send(self, data: bytes, until: Deadline) -> None:
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(data):
            self._socket.settimeout(max(MIN_SEND_S, until.remaining()))
            self._socket.sendall(data[sent:])
            self._socket.settimeout(0)

    def receive(self) -> list[Any]:
        """Return the answers of which the last part has come by now; errors are among them."""
        try:
            # A record of TLS is 16 kB at most: none of it is left where nobody polls for it.
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return []
        if not data:
            raise ConnectionResetError("the connection was closed by server")
        return self._reader.read(data)

    def _answer(self) -> list[Any]:
        """Return the one answer that is waited for; none: it is not all there yet."""
        answers = self.receive()
        if len(answers) > 1:
            raise errors.MalformedReply("it sent an answer to no request")
        if answers and isinstance(answers[0], errors.ErrorReply):
            raise answers[0]
        return answers

    def read(self, command: Command, until: Deadline) -> Reply | None:
        """Return the answer, as far as something has come; None: it is not all there yet.

        A script that the server does not know by its name it is sent whole (a restart and
        `SCRIPT FLUSH` make it forget), once more until that deadline.
        """
        try:
            answers = self._answer()
        except errors.UnknownScript:
            self.send(command, until, whole=True)
            return None
        if not answers:
            return None
        reply = answers[0]
        return Reply(reply[0].decode(), reply[1:]) if command.script.sha else DONE

    def close(self) -> None:
        """Close it. What was sent may still be done."""
        self._socket.close()


def _open_socket(location: ValkeyLocation, endpoint: str) -> socket.socket:
    """Return a socket that is connected, to be polled: with a time limit each call is two."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    opened = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if location.tls:
            context = ssl.create_default_context()
            if location.cacert is not None:
                context.load_verify_locations(location.cacert)
            if location.cert is not None:
                context.load_cert_chain(location.cert, location.key)
            opened = context.wrap_socket(opened, server_hostname=host)
        opened.settimeout(0)
    except BaseException:
        opened.close()
        raise
    return opened


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
