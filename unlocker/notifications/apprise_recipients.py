"""Recipients of notifications: the URLs that the operator gave, sent to by apprise.

A URL usually holds a password. So it is never logged, nor is a text of apprise or of the libraries
below it, which may quote it. A recipient's name is the operator's (`ops=slack://…`), or else its
kind and place (`slack-1`); the store contains only names.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

from lockclient.model.clocks import monotonic
from lockclient.service.outage import Outage
from lockclient.text.escaping import chat
from unlocker.notifications.message import Message
from unlocker.notifications.sent_document import BUSY, REFUSED, SENT, UNANSWERED

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 32.0
"""Seconds to connect and to answer: a recipient that answers within 30 s gets a message once."""
MAX_ANSWER_TIMEOUT_S = 60.0
"""Less than the seconds after which another unlocker takes over."""
MAX_ANSWER_BYTES = 64 << 10
MAX_URLS = 20
_NOISY_LOGGERS = ("apprise", "urllib3", "requests", "requests_oauthlib", "oauthlib", "MARKDOWN")
is_recipient_name = re.compile(r"[A-Za-z0-9._-]{1,32}").fullmatch
"""Match a text that can be the name of a recipient."""
_named_url = re.compile(r"([^=:/]*)=(.*)", re.DOTALL).fullmatch


class BadUrl(ValueError):
    """A URL that can't be used; the text does not quote it."""


class _Attempt(threading.local):
    """This thread's attempt, as our patches see it: apprise only says whether it failed. `limits`
    are the seconds to connect and to answer; None: there is no attempt."""

    limits: tuple[float, float] | None = None
    waiting_since = float("inf")
    is_redirected = is_busy = is_unanswered = False

    def wait(self, since: float) -> None:
        """Wait for another answer. If the last one did not come for long, the recipient may have
        accepted the message: connecting and TLS have a shorter limit."""
        if self.limits and monotonic() - self.waiting_since > self.limits[1] / 2:
            self.is_unanswered = True
        self.waiting_since = since


_attempt = _Attempt()


@dataclass
class Recipient:
    """A place to which notifications are sent; `send` returns whether it accepted a message, and
    fails without an answer after `answer_timeout_s`."""

    name: str
    send: Callable[[Message], bool]
    answer_timeout_s: float = ANSWER_TIMEOUT_S

    def __post_init__(self) -> None:
        self._outage = Outage(
            log, f"Notifications by {self.name} work again.", event="notify-failed"
        )

    def deliver(self, message: Message) -> str:
        """Send a message, which may take any time; return the outcome."""
        works, answer_s = False, self.answer_timeout_s
        vars(_attempt).clear()
        _attempt.limits = min(CONNECT_TIMEOUT_S, answer_s / 3), answer_s
        _attempt.waiting_since = monotonic()  # for connections that our `connect` does not see
        try:
            works = self.send(message)
        except Exception as error:  # noqa: BLE001 - a bug in a plug-in is a failed attempt
            log.debug("An attempt failed by %s.", type(error).__name__)
        _attempt.wait(float("inf"))
        _attempt.limits = None
        if works:
            self._outage.succeeded()
            return SENT
        why = "`apprise -vv -b test URL` says why."
        if _attempt.is_redirected:
            why = "They are redirected, and would be lost there. Has the URL moved?"
        self._outage.failed("Notifications by %s fail; retrying. %s", self.name, why)
        return UNANSWERED if _attempt.is_unanswered else BUSY if _attempt.is_busy else REFUSED


def recipients_of(urls: Sequence[str]) -> tuple[list[Recipient], list[str]]:
    """Return the recipients of these URLs (each `URL` or `NAME=URL`), and a sentence for each URL
    that can't be used."""
    if not urls:
        return [], []
    try:
        import apprise
    except ModuleNotFoundError as error:
        if error.name != "apprise":
            raise
        return [], ["it needs apprise: pip install 'clustermutex[notify]'."]
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    _patch_libraries()
    asset = apprise.AppriseAsset(app_id="ClusterMutex", async_mode=False, secure_logging=True)
    # In apprise 2 this turns off its own time limit and thread pool. A few hanging URLs would fill
    # the pool for all others, and the end of the process would wait for it.
    asset._service_timeout = 0.0
    found: dict[str, Recipient] = {}
    faults = []
    for number, given in enumerate(urls, 1):
        try:
            recipient = _recipient_of(given, number, apprise.Apprise(asset=asset), found)
            found[recipient.name] = recipient
        except BadUrl as error:
            faults.append(f"URL no. {number} {error}")
        except Exception as error:  # noqa: BLE001 - a library's text may quote the URL
            faults.append(f"URL no. {number} can't be read by apprise: {type(error).__name__}.")
    return [*found.values()], faults


def _recipient_of(given: str, number: int, sender: Any, others: Collection[str]) -> Recipient:
    """Return the recipient of a URL. Raises BadUrl if that or its name can't be used."""
    named = _named_url(given)
    name, url = named.groups() if named else ("", given)
    if not sender.add(url):
        raise BadUrl("is not a URL that apprise knows. (It is not shown: it may hold a password.)")
    name = name if named else f"{url.partition(':')[0].lower()[:20]}-{number}"
    if not is_recipient_name(name) or name in others:
        raise BadUrl("must have a unique name of at most 32 characters A-Za-z0-9._-: NAME=URL.")
    if len(others) >= MAX_URLS:
        raise BadUrl(f"is one too many: at most {MAX_URLS} are possible.")
    plugin, *others_of_it = sender
    if others_of_it:  # if one of them failed, both would get the message again
        raise BadUrl("is several URLs: give each by itself, with its own name.")
    if plugin.overflow_mode == type(plugin).overflow_mode:
        plugin.overflow_mode = "split"  # else a chat refuses a long message at each retry
    given_s = plugin.socket_read_timeout
    is_default = not 0 < given_s != type(plugin).socket_read_timeout  # apprise's own is 4 s
    answer_s = ANSWER_TIMEOUT_S if is_default else min(given_s, MAX_ANSWER_TIMEOUT_S)
    # Plug-ins for mail, among others, have only a timeout to connect, and use it for answers, too.
    plugin.socket_read_timeout = plugin.socket_connect_timeout = answer_s
    return Recipient(name, partial(_send, sender), answer_s)


def _patch_libraries() -> None:
    """Let attempts keep their limits, note what they see, and read at most `MAX_ANSWER_BYTES`.

    apprise takes no adapter. After a 301, 302 or 303 it would count the 200 of a GET as success.
    """
    import requests.sessions
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def send(self, *args: Any, **options: Any) -> requests.Response:
            if not _attempt.limits:
                return super().send(*args, **options)
            _attempt.wait(monotonic())
            response = super().send(*args, **options | {"timeout": _attempt.limits})
            _attempt.is_busy |= response.status_code == 429 or response.status_code >= 500
            if response.status_code == 504:  # a gateway waited: as without it
                _attempt.wait(float("inf"))
            if response.status_code in (301, 302, 303):  # 307 and 308 send it again
                _attempt.is_redirected = True
                response.headers.pop("Location", None)
            begins = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
            _attempt.waiting_since = float("inf")
            response.close()
            response.raw = BytesIO(begins[:MAX_ANSWER_BYTES])
            return response

    requests.sessions.HTTPAdapter = Adapter  # each session of requests reads this name

    def connect(self: socket.socket, address: Any) -> None:
        timeout_s = self.gettimeout()
        if not (_attempt.limits and timeout_s):
            super(socket.socket, self).connect(address)
            return
        _attempt.wait(float("inf"))
        self.settimeout(min(timeout_s, _attempt.limits[0]))
        super(socket.socket, self).connect(address)
        self.settimeout(timeout_s)
        _attempt.waiting_since = monotonic()

    # smtplib, urllib3 and apprise's own protocols connect by it.
    socket.socket.connect = connect  # type: ignore[assignment,method-assign]
    # requests would send a password of ~/.netrc to any host that a `default` entry matches.
    os.environ["NETRC"] = os.devnull


def _send(sender: Any, message: Message) -> bool:
    # As plain text: apprise escapes it for HTML, but not for every kind of Markdown.
    title, body = chat(message.title), chat(message.body)
    kind = "info" if message.good else "warning"
    return bool(sender.notify(body, title, kind, body_format="text"))
