"""Recipients: names, timeouts, redirects; hostile texts of locks in a chat."""

from __future__ import annotations

import email
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs
from xml.sax.saxutils import unescape

import pytest
import requests

from lockclient.model.clocks import monotonic
from lockclient.model.holder import Holder
from tests.support.recipients import (
    TOKEN,
    ChatServer,
    MailServer,
    RecipientServer,
    WebServer,
    dropping_host,
    each_kind,
)
from tests.support.web_server import serving
from unlocker.notifications.apprise_recipients import MAX_URLS, Recipient, recipients_of
from unlocker.notifications.message import Message
from unlocker.notifications.sent_document import BUSY, REFUSED, SENT, UNANSWERED

pytest.importorskip("apprise", reason="no apprise: the extra notify")
pytestmark = [  # apprise's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

MESSAGE = Message("t", "b", good=False)


def recipient_of(url: str) -> Recipient:
    (found,), _ = recipients_of([url])
    return found


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Messages to chat services, each of which accepts them."""
    found: list[Any] = []

    def request(*_: Any, **how: Any) -> Any:
        found.append(how.get("data") or how.get("json"))
        is_slack = "attachments" in str(found[-1])
        text = "ok" if is_slack else '{"ok": true, "ts": "1", "channel": "x", "result": "success"}'
        return Mock(status_code=200, headers={}, text=text, content=text.encode())

    monkeypatch.setattr(requests.Session, "request", request)
    return found


@contextmanager
def listening(handler: type[StreamRequestHandler]) -> Iterator[str]:
    """Run a server whose answers a handler writes; yield its `host:port`."""
    kind = (
        ThreadingHTTPServer if issubclass(handler, BaseHTTPRequestHandler) else ThreadingTCPServer
    )
    with kind(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


# ---------------------------------------------------------------- names and timeouts


def test_a_url_is_called_by_its_name_or_by_its_kind_and_place() -> None:
    urls = ["ops=json://127.0.0.1/x?a=b=c", "jsons://user:hush@127.0.0.1/hush", "json://127.0.0.1"]
    assert [found.name for found in recipients_of(urls)[0]] == ["ops", "jsons-2", "json-3"]


@pytest.mark.parametrize(
    "bad",
    [
        *(f"{name}=json://u:hush@127.0.0.1/x" for name in ("", " ", "a b", "ü", "a" * 33, "ops")),
        "nonsense://hush",
        "hush",
        "json://[hush",
        "slack://hush",
        "json://127.0.0.1/hush,json://127.0.0.1/hush",
    ],
)
def test_a_bad_url_is_refused_alone_and_no_secret_is_quoted(bad: str) -> None:
    found, (fault,) = recipients_of(["ops=json://127.0.0.1/x", bad, "team=json://127.0.0.1/y"])
    assert [recipient.name for recipient in found] == ["ops", "team"]
    assert fault.startswith("URL no. 2")
    assert "hush" not in fault


def test_no_more_urls_are_accepted_than_the_note_keeps() -> None:
    found, faults = recipients_of([f"json://127.0.0.1/{number}" for number in range(22)])
    assert (len(found), len(faults)) == (MAX_URLS, 2)


@pytest.mark.parametrize(
    ("query", "answer_s"),
    [("", 32.0), ("?rto=99", 60.0), ("?rto=3", 3.0), ("?rto=-1", 32.0), ("?rto=nan", 32.0)],
)
def test_the_url_sets_the_answer_timeout(query: str, answer_s: float) -> None:
    assert recipient_of(f"json://127.0.0.1/x{query}").answer_timeout_s == answer_s


# ---------------------------------------------------------------- outcomes


def outcome(server: RecipientServer, limit_s: float = 1.0) -> str:
    """Return the outcome of a message, which may take `limit_s` to be answered."""
    separator = "&" if "?" in server.url else "?"
    return recipient_of(f"{server.url}{separator}rto={limit_s}").deliver(MESSAGE)


@pytest.mark.parametrize(
    ("done", "takes_s", "how"),
    [(True, 0.0, SENT), (True, 0.25, SENT), (False, 0.0, REFUSED), (False, 0.25, UNANSWERED)],
)
def test_of_a_connection_of_its_own_only_the_time_is_known(
    done: bool, takes_s: float, how: str
) -> None:
    def send(_: Message) -> bool:
        time.sleep(takes_s)
        return done

    assert Recipient("x", send, 0.2).deliver(MESSAGE) == how


SERVERS = [WebServer, ChatServer, MailServer]


@pytest.mark.parametrize("kind", SERVERS)
def test_an_answer_before_the_limit_is_one(kind: type[RecipientServer]) -> None:
    """It may take longer than the limit to connect: a mail server needs 15 s of 32 s."""
    with kind(name="slow", answer_s=3.0) as server:
        assert outcome(server, 4.5) == SENT
    assert [message.title for message in server.messages] == ["t"]


@pytest.mark.parametrize("kind", SERVERS)
def test_no_answer_is_no_refusal(kind: type[RecipientServer]) -> None:
    with kind(name="silent", never_answers=True) as server:
        assert outcome(server) == UNANSWERED
    assert len(server.messages) == 1


@pytest.mark.parametrize("kind", SERVERS)
def test_a_connection_that_breaks_late_is_no_refusal(kind: type[RecipientServer]) -> None:
    with kind(name="drops", is_dropping=True, answer_s=0.7) as server:
        assert outcome(server) == UNANSWERED


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("is_down", [True, False])
def test_a_connection_that_fails_or_breaks_at_once_took_nothing(
    kind: type[RecipientServer], is_down: bool
) -> None:
    """The latter is what a proxy does without a server behind it."""
    with kind(name="drops", is_dropping=True) as server:
        if is_down:
            server.go_down()
        assert outcome(server, 5.0) == REFUSED


@pytest.mark.skipif(sys.platform != "linux", reason="drops are made by Linux's full queues")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_host_that_drops_connections_took_nothing(kind: type[RecipientServer]) -> None:
    with kind(name="dark") as server, dropping_host() as port:
        server.port = port
        begun = monotonic()
        assert outcome(server, 6.0) == REFUSED
        assert monotonic() - begun < 5.9  # the limit to connect is shorter


def test_a_host_that_never_finishes_tls_took_nothing() -> None:
    with MailServer(name="no TLS", greets=False) as server:
        assert recipient_of(f"jsons://127.0.0.1:{server.port}?rto=6").deliver(MESSAGE) == REFUSED


@pytest.mark.parametrize("kind", SERVERS)
def test_a_text_is_refused(kind: type[RecipientServer]) -> None:
    with kind(name="strict", refused_text=MESSAGE.body) as server:
        assert outcome(server, 5.0) == REFUSED
    assert [message.status for message in server.rejected] == [400]
    assert not server.messages


def test_a_refusal_by_a_web_server_is_one_even_if_it_takes_long() -> None:
    with WebServer(name="slow", answer_s=1.2, refused_text=MESSAGE.body) as server:
        assert outcome(server, 2.0) == REFUSED


@pytest.mark.parametrize("kind", [WebServer, ChatServer])
@pytest.mark.parametrize(("status", "takes_s"), [(429, 0.0), (500, 0.0), (503, 1.2)])
def test_a_busy_server_does_not_blame_the_text(
    kind: type[RecipientServer], status: int, takes_s: float
) -> None:
    with kind(name="busy", busy_status=status, answer_s=takes_s) as server:
        assert outcome(server, 2.0) == BUSY
        server.busy_status, server.answer_s = 0, 0.0
        assert outcome(server, 5.0) == SENT
        server.refused_text = MESSAGE.body
        assert outcome(server, 5.0) == REFUSED


LONG = Message("t", "\n".join("x" * 300 for _ in range(40)), good=False)
"""For a chat a message of several parts."""


def test_a_part_without_an_answer_counts_though_the_next_ones_are_answered() -> None:
    taken = 0

    def answer(_: bytes) -> tuple[int, str]:
        nonlocal taken
        taken += 1
        if taken == 1:
            time.sleep(1.5)
        return 200, ""

    with serving(answer) as host:
        assert recipient_of(f"mmost://{host}/{TOKEN}?rto=1").deliver(LONG) == UNANSWERED
    assert taken > 2


def test_a_refused_part_after_slow_ones_is_a_refusal() -> None:
    taken = 0

    def answer(_: bytes) -> tuple[int, str]:
        nonlocal taken
        taken += 1
        time.sleep(0.5)
        return (200 if taken < 3 else 400), ""

    with serving(answer) as host:
        assert recipient_of(f"mmost://{host}/{TOKEN}?rto=1.4").deliver(LONG) == REFUSED
    assert taken > 2


def test_a_chat_refuses_what_is_no_message() -> None:
    with ChatServer(name="chat", max_chars=10) as server:
        assert outcome(server, 5.0) == SENT
        too_long = json.dumps({"text": "title\nlonger text"})
        for wrong in ('{"text": ""}', '{"text": 5}', "[]", "text", too_long):
            url = f"http://127.0.0.1:{server.port}/hooks/{TOKEN}"
            assert requests.post(url, data=wrong, timeout=30).status_code == 400
    assert [message.body for message in server.messages] == [MESSAGE.body]


def test_one_of_each_kind_behaves_like_its_name() -> None:
    with each_kind(10) as servers:
        servers["slow-mail"].answer_s = servers["slow-mail-2"].answer_s = 1.5
        servers["refuses-one-text"].refused_text = MESSAGE.body
        assert {name: outcome(server, 3.0) for name, server in servers.items()} == {
            "webhook": SENT,
            "chat": SENT,
            "slow-mail": SENT,
            "refuses-one-text": REFUSED,
            "is-busy": BUSY,
            "never-answers": UNANSWERED,
            "is-down": REFUSED,
            "webhook-2": SENT,
            "chat-2": SENT,
            "slow-mail-2": SENT,
        }
        servers["is-down"].come_up()
        assert outcome(servers["is-down"], 5.0) == SENT
    assert {name for name, server in servers.items() if server.messages} == {
        *(name for name in servers if name not in ("refuses-one-text", "is-busy"))
    }


def test_other_connections_of_the_program_are_left_alone() -> None:
    recipient_of("json://127.0.0.1/x")
    with (
        WebServer(name="other") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=7) as connection,
    ):
        assert connection.gettimeout() == 7


# ---------------------------------------------------------------- answers


def test_an_endless_answer_fills_no_memory() -> None:
    sent = 0

    class Flood(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal sent
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
            with suppress(OSError):
                while sent < 1 << 30:
                    sent += self.wfile.write(b"x" * (1 << 20))

    with listening(Flood) as host:
        assert recipient_of(f"json://{host}/").deliver(MESSAGE) == SENT
    assert sent < 64 << 20  # what its sockets hold


@pytest.mark.parametrize("status", [301, 302, 303])
@pytest.mark.parametrize("target", ["/login?next=/hush", "http://[hush", None])
def test_a_redirect_that_loses_the_message_is_a_failure_and_logged_once(
    status: int, target: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[bytes] = []
    headers = {} if target is None else {"Location": target}

    def answer(body: bytes) -> tuple[int, str]:
        asked.append(body)
        return status, ""

    with serving(answer, headers=headers) as host:
        recipient = recipient_of(f"ops=json://{host}/hush")
        assert [recipient.deliver(MESSAGE) for _ in range(2)] == [REFUSED] * 2
    assert len(asked) == 2
    assert all(asked)
    assert caplog.text.count("Notifications by ops fail; retrying. They are redirected") == 1
    assert "hush" not in caplog.text


def test_no_password_of_netrc_goes_to_a_recipient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("default login me password hush\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    got: list[str | None] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            got.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

    with listening(Chat) as host:
        assert recipient_of(f"ops=json://{host}/x").deliver(MESSAGE) == SENT
    assert got == [None]


def test_a_message_too_long_for_a_chat_is_split(posted: list[Any]) -> None:
    long = Message("t", "\n".join("x" * 300 for _ in range(20)), good=False)
    assert recipient_of("discord://webhook/token").deliver(long) == SENT
    assert len(posted) > 3
    assert all(len(body) < 3000 for body in posted)


# ---------------------------------------------------------------- hostile text

HOSTILE = (
    "<!channel> <!here> @everyone @all @room @**all** <users/all> <at>all</at> <@U1> "
    "<http://evil.example/login|Sign in> [Sign in](http://evil.example) ![x](http://evil.example/b)"
    " **x** _x_ ~~x~~ ||x|| `x` <b>x</b> &lt;b&gt; &#64;all"
)
HOLDER = Holder(f"deploy {HOSTILE}", "u", hostname=f"bill {HOSTILE}", reason=HOSTILE)
BAIT = Message(
    f"ClusterMutex etcd://x: 1 lock past its alert {HOSTILE}",
    f"Lock {HOLDER.name!r} is past its alert: {HOLDER.describe()}",
    good=False,
)
ACTS = re.compile(r"[<\[@*`|~]|&(?!amp;)(?:[a-z]+|#\d+);|\b_(?!\w)")
"""In what is posted, but for what apprise escapes, and its own bold title."""
OTHERS = {
    "slack": "slack://TAAAAAAAA/BBBBBBBBB/cccccccccccccccccccccccc/#ops",
    "discord": f"discord://123456789012345678/{'b' * 68}",
    "telegram": "tgram://123456789:abcdefg_hijklmnopabcdefg_hijklmnop1/12315544/",
    "Google Chat": "gchat://workspace/key/token",
    "zulip": f"zulip://bot@org/{'a' * 32}/ops",
}
OWN = {
    "json": "json://{}/hook",
    "xml": "xml://{}/hook",
    "form": "form://{}/hook",
    "mattermost": f"mmost://{{}}/{'a' * 26}",
    "ntfy": "ntfy://{}/topic",
    "gotify": f"gotify://{{}}/{'a' * 26}",
}


def texts(found: Any) -> Iterator[str]:
    """Yield all texts in what was posted that hold any of the message."""
    if isinstance(found, bytes):
        found = found.decode()
        found = parse_qs(found) if found.startswith("version=") else found
    if isinstance(found, str):
        with suppress(ValueError):
            found = json.loads(found)
    if isinstance(found, (dict, list)):
        for part in found.values() if isinstance(found, dict) else found:
            yield from texts(part)
    elif isinstance(found, str) and ("deploy" in found or "evil" in found):
        yield found


def without_markup(text: str) -> str:
    """Return a post without the markup of the kind of post itself: XML, forms, bold titles."""
    if text.startswith("<?xml"):
        (subject,) = re.findall("<Subject>(.*?)</Subject>", text, re.DOTALL)
        (body,) = re.findall("<Message>(.*?)</Message>", text, re.DOTALL)
        return unescape(f"{subject} {body}", {"&apos;": "'"})
    return re.sub(r"\A(<b>|\*)(.*?)(</b>|\*)(?=\r?\n)", r"\2", text)


def check(found: list[Any]) -> None:
    sent = [*texts(found)]
    assert sent
    for text in sent:
        assert "evil.example" in text
        assert not ACTS.findall(without_markup(text)), text


@pytest.mark.parametrize("kind", OWN)
def test_a_webhook_gets_no_active_text(kind: str) -> None:
    found: list[bytes] = []

    def answer(body: bytes) -> tuple[int, str]:
        found.append(body)
        return 200, "{}"

    with serving(answer) as host:
        assert recipient_of(OWN[kind].format(host)).send(BAIT)
    check(found)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_chat_gets_no_active_text(kind: str, posted: list[Any]) -> None:
    assert recipient_of(OTHERS[kind]).send(BAIT)
    check(posted)


def test_mail_gets_no_active_text() -> None:
    mails: list[str] = []

    class MailServer(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in self.rfile:
                if line.lower().startswith(b"data"):
                    self.wfile.write(b"354 go on\r\n")
                    mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                self.wfile.write(b"250 OK\r\n")

    with listening(MailServer) as host:
        url = f"mailto://{host}?from=me@h.example&to=a@h.example&smtp=127.0.0.1&mode=insecure"
        assert recipient_of(url).send(BAIT)
    parts = email.message_from_string(mails[0]).walk()
    check([part.get_payload(decode=True) for part in parts if not part.is_multipart()])
