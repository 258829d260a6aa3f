"""Recipients of notifications: real servers on loopback, which record the messages that they take.

A test changes the attributes of a server at any time. `each_kind()` returns one of each kind.
"""

from __future__ import annotations

import email
import email.policy
import json
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer, StreamRequestHandler, ThreadingTCPServer
from time import monotonic
from typing import NamedTuple, TypeVar

_Its = TypeVar("_Its", bound="RecipientServer")
_MAX_WAIT_S = 600.0
TOKEN = "a" * 26


class Received(NamedTuple):
    """A message, or a part of a split one, and when it came; `status`: its answer (0: none)."""

    title: str
    body: str
    at: float
    status: int


@dataclass(kw_only=True)
class RecipientServer(ABC):
    """A place to which notifications are sent; a context manager.

    Attributes:
        name: the operator's name for it.
        answer_s: seconds before it answers.
        never_answers: it takes messages without an answer, until it is closed.
        refused_text: it refuses (400; a mail server: 554) a message that contains this; "": none.
        max_chars: it refuses a longer body.
        busy_status: its answer to all messages (429 or 503; a mail server says 451); 0: it works.
        is_dropping: it takes a message, and then closes the connection instead of answering.
        messages: messages that it took, answered or not: people have seen these.
        rejected: messages that it rejected.
    """

    name: str
    answer_s: float = 0.0
    never_answers: bool = False
    refused_text: str = ""
    max_chars: int = 10**9
    busy_status: int = 0
    is_dropping: bool = False
    messages: list[Received] = field(default_factory=list)
    rejected: list[Received] = field(default_factory=list)

    def __enter__(self: _Its) -> _Its:
        self.is_closed = threading.Event()
        # A socket that never listens: while the server is down, no other program gets its port.
        self._port_holder = socket.socket()
        self._port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_holder.bind(("127.0.0.1", 0))
        self.port: int = self._port_holder.getsockname()[1]
        self._server: BaseServer | None = None
        self.come_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed.set()
        self.go_down()
        self._port_holder.close()

    @property
    def notify_url(self) -> str:
        """The URL for `--notify`, with the name."""
        return f"{self.name}={self.url}"

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL as apprise reads it."""

    @abstractmethod
    def _new_server(self) -> BaseServer:
        """Return a server at `port` that calls `receive` for each message."""

    def come_up(self) -> None:
        """Listen (again)."""
        if self._server is None:
            self._server = self._new_server()
            self._thread = threading.Thread(
                target=self._server.serve_forever, args=(0.05,), name=self.name, daemon=True
            )
            self._thread.start()

    def go_down(self) -> None:
        """Refuse connections, until `come_up()`."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def titles(self) -> list[str]:
        """Return the titles of the messages without the name of the store."""
        return [message.title.partition(": ")[2] for message in self.messages]

    def receive(self, title: str, body: str, *, is_valid: bool = True) -> int:
        """Record a message; return the status to answer after `answer_s`, 0: none."""
        is_refused = self.refused_text and self.refused_text in title + body
        if self.busy_status:
            status = self.busy_status
        elif is_refused or not is_valid or len(body) > self.max_chars:
            status = 400
        else:
            status = 0 if self.never_answers or self.is_dropping else 200
        taken = self.messages if status in (0, 200) else self.rejected
        taken.append(Received(title, body, monotonic(), status))
        self.is_closed.wait(_MAX_WAIT_S if self.never_answers else self.answer_s)
        return status


@dataclass(kw_only=True)
class WebServer(RecipientServer):
    """A webhook of apprise's own JSON: `title` and `message`."""

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.port}/hook"

    def text_of(self, body: bytes) -> tuple[str, str]:
        """Return title and text of a request; raises ValueError, KeyError or TypeError if it is
        none of a message."""
        fields = json.loads(body)
        return fields["title"], fields["message"]

    def _new_server(self) -> BaseServer:
        recipient = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                try:
                    (title, text), is_valid = recipient.text_of(body), True
                except (ValueError, KeyError, TypeError):
                    title, text, is_valid = "", body.decode(errors="replace"), False
                status = recipient.receive(title, text, is_valid=is_valid)
                with suppress(OSError):  # the client may be gone
                    if status:
                        self.send_response(status)
                        self.send_header("Content-Length", "2")
                        self.end_headers()
                        self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None:
                pass

        return ThreadingHTTPServer(("127.0.0.1", self.port), Handler)


@dataclass(kw_only=True)
class ChatServer(WebServer):
    """A chat with webhooks like those of Slack (Mattermost's, whose host apprise lets one choose).

    It refuses anything but an object with a `text` that is not empty, and a text that is too long.
    """

    max_chars: int = 4000

    @property
    def url(self) -> str:
        return f"mmost://127.0.0.1:{self.port}/{TOKEN}"

    def text_of(self, body: bytes) -> tuple[str, str]:
        text = json.loads(body)["text"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(text)
        title, _, rest = text.partition("\n")  # apprise writes the title into the text
        return title.strip("#* \r"), rest


@dataclass(kw_only=True)
class MailServer(RecipientServer):
    """A server of SMTP; `answer_s` is that of its answer to the mail's text (DATA).

    Attributes:
        greets: it says that it is there; else it only accepts connections.
    """

    greets: bool = True

    @property
    def url(self) -> str:
        addresses = "from=locks@example.org&to=ann@example.org"
        return f"mailto://127.0.0.1:{self.port}/?smtp=127.0.0.1&mode=insecure&{addresses}"

    def _new_server(self) -> BaseServer:
        recipient = self

        class Handler(StreamRequestHandler):
            def handle(self) -> None:
                if not recipient.greets:
                    recipient.is_closed.wait(_MAX_WAIT_S)
                    return
                with suppress(OSError):  # the client may be gone
                    self._talk()

            def _talk(self) -> None:
                self._say("220 mail.example.org")
                for line in self.rfile:
                    command = line.strip().upper()
                    if command == b"DATA":
                        self._say("354 go on")
                        lines = iter(self.rfile.readline, b".\r\n")
                        status = recipient.receive(*_texts_of_mail(b"".join(lines)))
                        if status == 0:
                            return
                        answers = {200: "250 queued", 400: "554 refused"}
                        self._say(answers.get(status, "451 try later"))
                    elif command == b"QUIT":
                        self._say("221 bye")
                        return
                    else:
                        self._say("250 ok")

            def _say(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

        class Server(ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        return Server(("127.0.0.1", self.port), Handler)


def _texts_of_mail(mail: bytes) -> tuple[str, str]:
    """Return the subject and the plain text of a mail."""
    message = email.message_from_bytes(mail, policy=email.policy.default)
    body = message.get_body(("plain", "html"))
    return str(message["Subject"]), "" if body is None else body.get_content()


EACH_KIND: Mapping[str, Callable[[str], RecipientServer]] = {
    "webhook": lambda name: WebServer(name=name),
    "chat": lambda name: ChatServer(name=name),
    "slow-mail": lambda name: MailServer(name=name, answer_s=15.0),
    "refuses-one-text": lambda name: WebServer(name=name, refused_text="refuse-me"),
    "is-busy": lambda name: WebServer(name=name, busy_status=429),
    "never-answers": lambda name: WebServer(name=name, never_answers=True),
    "is-down": lambda name: WebServer(name=name),
}
"""Servers by kind. The test ends the trouble of `is-busy` (`busy_status = 0`) and of `is-down`
(`come_up()`)."""


@contextmanager
def each_kind(number: int = len(EACH_KIND)) -> Iterator[dict[str, RecipientServer]]:
    """Run so many servers, the kinds in turn; yield them by their names: `webhook`, …, `chat-2`."""
    servers: dict[str, RecipientServer] = {}
    with ExitStack() as stack:
        for place in range(number):
            kind = [*EACH_KIND][place % len(EACH_KIND)]
            turn = place // len(EACH_KIND) + 1
            name = kind if turn == 1 else f"{kind}-{turn}"
            servers[name] = stack.enter_context(EACH_KIND[kind](name))
            if kind == "is-down":
                servers[name].go_down()
        yield servers


@contextmanager
def dropping_host() -> Iterator[int]:
    """Yield a port of 127.0.0.1 at which each request to connect is dropped, as by a firewall."""
    with socket.socket() as listener, socket.socket() as filler:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        filler.connect(listener.getsockname())  # the queue is full now
        yield listener.getsockname()[1]
