"""What a lock says does nothing in people's chats: it mentions nobody and disguises no link.

By real webhooks where the service can be one of one's own, and by what would be posted where it is
another one's.
"""

from __future__ import annotations

import email
import json
import re
import smtplib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs
from xml.sax.saxutils import unescape

import pytest
import requests

from lockclient.model.holder import Holder
from tests.support.web_server import serving
from unlocker.notifications.events import Message
from unlocker.notifications.recipients import recipients_of

pytest.importorskip("apprise", reason="no apprise: the extra notify")
pytestmark = [  # apprise's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

HOSTILE = (
    "<!channel> <!here> @everyone @all @room @**all** <users/all> <at>all</at> <@U1> "
    "<http://evil.example/login|Sign in> [Sign in](http://evil.example) ![x](http://evil.example/b)"
    " **x** _x_ ~~x~~ ||x|| `x` <b>x</b> &lt;b&gt; &#64;all"
)
ACTS = re.compile(r"[<\[@*`|~]|&(?!amp;)(?:[a-z]+|#\d+);|\b_(?!\w)")
"""In what is posted, but for what apprise escapes, and its own bold title."""
TOKEN = "a" * 26
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
    "mattermost": f"mmost://{{}}/{TOKEN}",
    "ntfy": "ntfy://{}/topic",
    "gotify": f"gotify://{{}}/{TOKEN}",
}


@pytest.fixture
def message() -> Message:
    holder = Holder(f"deploy {HOSTILE}", "u", hostname=f"bill {HOSTILE}", reason=HOSTILE)
    body = f"Lock {holder.name!r} is past its alert: {holder.describe()}"
    return Message(f"ClusterMutex etcd://x: 1 lock past its alert {HOSTILE}", body, good=False)


def texts(posted: Any) -> Iterator[str]:
    """Yield all texts in what was posted that hold any of the message."""
    if isinstance(posted, bytes):
        posted = posted.decode()
        posted = parse_qs(posted) if posted.startswith("version=") else posted
    if isinstance(posted, str):
        try:
            found = json.loads(posted)
        except ValueError:
            found = None
        if found is None:
            if "deploy" in posted or "evil" in posted:
                yield posted
        else:
            yield from texts(found)
    elif isinstance(posted, dict):
        for part in posted.values():
            yield from texts(part)
    elif isinstance(posted, list):
        for part in posted:
            yield from texts(part)


def check(sent: list[str], markup: Callable[[str], str]) -> None:
    assert sent
    for text in sent:
        assert "evil.example" in text
        assert not ACTS.findall(markup(text)), text


def without_markup(text: str) -> str:
    """Return a post without the markup of the kind of post itself: XML, forms, bold titles."""
    if text.startswith("<?xml"):
        (subject,) = re.findall("<Subject>(.*?)</Subject>", text, re.DOTALL)
        (body,) = re.findall("<Message>(.*?)</Message>", text, re.DOTALL)
        return unescape(f"{subject} {body}", {"&apos;": "'"})
    return re.sub(r"\A(<b>|\*)(.*?)(</b>|\*)(?=\r?\n)", r"\2", text)


@pytest.mark.parametrize("kind", OWN)
def test_a_webhook_of_one_s_own_gets_nothing_that_acts(kind: str, message: Message) -> None:
    posted: list[bytes] = []

    def answer(asked: Any) -> tuple[int, str]:
        posted.append(asked)
        return 200, "{}"

    with serving(answer) as url:
        (recipient,), _ = recipients_of([OWN[kind].format(url)])
        assert recipient.send(message)
    check([text for found in posted for text in texts(found)], without_markup)


@pytest.mark.parametrize("kind", OTHERS)
def test_another_s_chat_gets_nothing_that_acts(
    kind: str, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[Any] = []

    def request(*_: Any, **how: Any) -> Any:
        posted.append(how.get("data") or how.get("json"))
        answer = {"ok": True, "ts": "1", "channel": "x", "result": "success"}
        text = "ok" if kind == "slack" else json.dumps(answer)
        return Mock(status_code=200, headers={}, text=text, content=text.encode())

    monkeypatch.setattr(requests.Session, "request", request)
    (recipient,), _ = recipients_of([OTHERS[kind]])
    assert recipient.send(message)
    check([text for found in posted for text in texts(found)], without_markup)


def test_mail_gets_nothing_that_acts(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Mock()
    server.sendmail.return_value = {}  # nobody was refused
    monkeypatch.setattr(smtplib, "SMTP", Mock(return_value=server))
    monkeypatch.setattr(smtplib, "SMTP_SSL", Mock(return_value=server))
    (recipient,), _ = recipients_of(["mailto://u:p@h.example?to=a@h.example"])
    assert recipient.send(message)
    mail = email.message_from_string(server.sendmail.call_args.args[2])
    parts = [part.get_payload(decode=True) for part in mail.walk() if not part.is_multipart()]
    check([part.decode() for part in parts if isinstance(part, bytes)], without_markup)
