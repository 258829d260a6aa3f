"""Recipients: names, timeouts, redirects; hostile texts of locks in a chat."""

from __future__ import annotations

import email
import json
import re
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

from lockclient.model.holder import Holder
from tests.support.web_server import serving
from unlocker.notifications.apprise_recipients import MAX_URLS, Recipient, recipients_of
from unlocker.notifications.event_messages import Message
from unlocker.notifications.note import REFUSED, SENT, UNANSWERED

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


@pytest.mark.parametrize(("query", "answer_s"), [("", 32.0), ("?rto=99", 60.0), ("?rto=3", 3.0)])
def test_the_url_sets_the_answer_timeout(query: str, answer_s: float) -> None:
    assert recipient_of(f"json://127.0.0.1/x{query}").answer_timeout_s == answer_s


@pytest.mark.parametrize(
    ("done", "takes_s", "how"),
    [(True, 0.0, SENT), (False, 0.0, REFUSED), (False, 0.25, UNANSWERED)],
)
def test_a_quick_failure_is_a_refusal_and_a_slow_one_no_answer(
    done: bool, takes_s: float, how: str
) -> None:
    def send(_: Message) -> bool:
        time.sleep(takes_s)
        return done

    assert Recipient("x", send, 0.2).deliver(MESSAGE) == how


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
