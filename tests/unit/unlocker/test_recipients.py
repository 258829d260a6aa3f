"""Whom URLs mean: what they are called, and how long they have to answer."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tests.support.processes import wait_until
from unlocker.notifications.events import Message
from unlocker.notifications.note import REFUSED, TOLD, UNANSWERED
from unlocker.notifications.recipients import MAX_URLS, Recipient, recipients_of

pytest.importorskip("apprise", reason="no apprise: the extra notify")
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr':DeprecationWarning")  # apprise's import

MESSAGE = Message("t", "b", good=False)


def test_a_url_is_called_by_its_name_or_by_its_kind_and_place() -> None:
    urls = ["ops=json://127.0.0.1/x?a=b=c", "jsons://user:hush@127.0.0.1/hush", "json://127.0.0.1"]
    assert [found.name for found in recipients_of(urls)[0]] == ["ops", "jsons-2", "json-3"]


@pytest.mark.parametrize("name", ["", " ", "a b", "ü", "a" * 33])
def test_a_name_that_can_not_stand_in_the_note_is_refused_and_no_secret_is_quoted(
    name: str,
) -> None:
    found, (fault,) = recipients_of([f"{name}=json://user:hush@127.0.0.1/x", "json://127.0.0.1"])
    assert [recipient.name for recipient in found] == ["json-2"]
    assert "URL no. 1" in fault
    assert "hush" not in fault


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense://hush",
        "ops=json://127.0.0.1/hush",
        "hush",
        "json://[hush",
        "slack://hush",
        "json://127.0.0.1/hush,json://127.0.0.1/hush",
    ],
)
def test_one_that_is_bad_keeps_no_other_from_being_told(bad: str) -> None:
    found, (fault,) = recipients_of(["ops=json://127.0.0.1/x", bad, "team=json://127.0.0.1/y"])
    assert [recipient.name for recipient in found] == ["ops", "team"]
    assert fault.startswith("URL no. 2")
    assert "hush" not in fault


def test_no_more_can_be_told_than_the_note_keeps() -> None:
    found, faults = recipients_of([f"json://127.0.0.1/{number}" for number in range(22)])
    assert (len(found), len(faults)) == (MAX_URLS, 2)


@pytest.mark.parametrize(("query", "answer_s"), [("", 32.0), ("?rto=60", 60.0), ("?rto=3", 3.0)])
def test_it_has_half_a_minute_to_answer_unless_the_url_says_otherwise(
    query: str, answer_s: float
) -> None:
    (found,), _ = recipients_of([f"json://127.0.0.1/x{query}"])
    assert found.answer_timeout_s == answer_s


@pytest.mark.parametrize(("done", "how"), [(True, TOLD), (False, REFUSED)])
def test_a_quick_failure_is_a_refusal(done: bool, how: str) -> None:
    assert Recipient("x", lambda _: done, 0.2).deliver(MESSAGE) == how


def test_a_failure_after_all_of_its_time_is_no_answer() -> None:
    def wait(_message: Message) -> bool:
        time.sleep(0.25)
        return False

    assert Recipient("x", wait, 0.2).deliver(MESSAGE) == UNANSWERED


def test_a_try_that_hangs_is_left_and_no_other_one_is_begun_meanwhile() -> None:
    asked, ends = [], threading.Event()

    def hang(message: Message) -> bool:
        asked.append(message)
        return ends.wait(60)

    recipient = Recipient("x", hang, try_s=0.1)
    assert recipient.deliver(MESSAGE) == UNANSWERED
    assert recipient.deliver(MESSAGE) == REFUSED
    assert len(asked) == 1
    ends.set()
    wait_until(lambda: recipient.deliver(MESSAGE) == TOLD, what="that it works again")


def test_an_endless_answer_fills_no_memory() -> None:
    sent = 0

    class Flood(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal sent
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
            with suppress(OSError):
                while sent < 1 << 30:
                    sent += self.wfile.write(b"x" * (1 << 20))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Flood) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (recipient,), _ = recipients_of([f"json://127.0.0.1:{server.server_port}/"])
        assert recipient.deliver(MESSAGE) == TOLD
        server.shutdown()
    assert sent < 64 << 20  # what its sockets hold


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_drops_the_message_is_not_followed_and_named_once(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a login page, say, whose 200 would count as success."""
    asked: list[str] = []
    targets = ["/login?next=/hush", "/login?next=/hush", "https://a:b@new.example/hush/x"]

    class Moved(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.command)
            self.send_response(status if targets else 200)
            if targets:
                self.send_header("Location", targets.pop(0))
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(self.command)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        (recipient,), _ = recipients_of([f"ops=json://{host}/hush"])
        assert [recipient.deliver(MESSAGE) for _ in range(3)] == [REFUSED] * 3
        assert recipient.deliver(MESSAGE) == TOLD
        server.shutdown()
    assert asked == ["POST"] * 4
    assert caplog.text.count(f"by ops are redirected to http://{host}/login, where") == 1
    assert caplog.text.count("by ops are redirected to https://new.example/…, where") == 1
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    ("target", "said"),
    [("http://[hush", "are redirected to an address that is no URL, where"), (None, "fail;")],
)
def test_a_redirect_to_no_address_is_a_failure(
    target: str | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Moved(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            if target is not None:
                self.send_header("Location", target)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (recipient,), _ = recipients_of([f"ops=json://127.0.0.1:{server.server_port}/x"])
        assert recipient.deliver(MESSAGE) == REFUSED
        server.shutdown()
    assert f"by ops {said}" in caplog.text
    assert ("redirected" in caplog.text) == (target is not None)
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

    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (found,), _ = recipients_of([f"ops=json://127.0.0.1:{server.server_port}/x"])
        assert found.deliver(MESSAGE) == TOLD
        server.shutdown()
    assert got == [None]


def test_what_is_too_long_for_a_chat_is_split() -> None:
    (recipient,), _ = recipients_of(["discord://webhook/token"])
    posted: list[str] = []

    class Session(requests.Session):
        def request(self, *_: object, **how: Any) -> Any:
            posted.append(how["data"])
            return SimpleNamespace(status_code=204, content=b"", headers={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests.sessions, "Session", Session)
        long = Message("t", "\n".join("x" * 300 for _ in range(20)), good=False)
        assert recipient.deliver(long) == TOLD
    assert len(posted) > 3
    assert all(len(body) < 3000 for body in posted)
