"""Recipients of notifications: the URLs that the operator gave, sent to by apprise.

A URL usually holds a password. So it is never logged, nor is a text of apprise or of the libraries
below it, which may quote it. A recipient's name is the operator's (`ops=slack://…`), or else its
kind and place (`slack-1`); the store contains only names.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from lockclient.model.clocks import monotonic
from lockclient.service.outage import Outage
from lockclient.text.escaping import chat
from unlocker.notifications.event_messages import Message
from unlocker.notifications.note import REFUSED, SENT, UNANSWERED, is_recipient_name

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 32.0
"""Seconds to connect and to answer: a recipient that answers within 30 s gets a message once."""
MAX_ANSWER_TIMEOUT_S = 60.0
"""Less than the seconds after which another unlocker takes over."""
MAX_ANSWER_BYTES = 64 << 10
MAX_URLS = 20
_DROPPING_REDIRECTS = (301, 302, 303)
"""After these a client sends a GET without the message; after 307 and 308 it sends it again."""
_NOISY_LOGGERS = ("apprise", "urllib3", "requests", "requests_oauthlib", "oauthlib", "MARKDOWN")
_named_url = re.compile(r"([^=:/]*)=(.*)", re.DOTALL).fullmatch


class BadUrl(ValueError):
    """A URL that can't be used; the text does not quote it."""


_attempt = threading.local()
"""`is_redirected` of this thread's attempt; absent in threads that make none."""


@dataclass
class Recipient:
    """A place to which notifications are sent.

    Attributes:
        name: its name in the log and in the store.
        send: sends a message and returns whether it was accepted.
        answer_timeout_s: seconds without an answer after which `send` fails.
    """

    name: str
    send: Callable[[Message], bool]
    answer_timeout_s: float = ANSWER_TIMEOUT_S

    def __post_init__(self) -> None:
        self._outage = Outage(
            log, f"Notifications by {self.name} work again.", event="notify-failed"
        )

    def deliver(self, message: Message) -> str:
        """Send a message, which may take any time; return the outcome.

        apprise only reports that it failed. If that took as long as the timeout, the recipient most
        likely accepted the message and did not answer.
        """
        started, _attempt.is_redirected, works = monotonic(), False, False
        try:
            works = self.send(message)
        except Exception as error:  # noqa: BLE001 - a bug in a plug-in is a failed attempt
            log.debug("An attempt failed by %s.", type(error).__name__)
        timed_out = monotonic() - started >= 0.95 * self.answer_timeout_s
        why = "`apprise -vv -b test URL` says why."
        if _attempt.is_redirected:
            why = "They are redirected, and would be lost there. Has the URL moved?"
        if works:
            self._outage.succeeded()
        else:
            self._outage.failed("Notifications by %s fail; retrying. %s", self.name, why)
        return SENT if works else UNANSWERED if timed_out else REFUSED


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
    _restrict_requests()
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
            faults.append(
                f"URL no. {number} is not a URL that apprise can read: {type(error).__name__}."
            )
    return [*found.values()], faults


def _recipient_of(given: str, number: int, sender: Any, others: Collection[str]) -> Recipient:
    """Return the recipient of a URL.

    Raises:
        BadUrl: apprise does not know the URL, or reads several; its name is bad or not unique;
            there are too many URLs.
    """
    named = _named_url(given)
    name, url = named.groups() if named else ("", given)
    if not sender.add(url):
        raise BadUrl(
            "is not a URL that apprise knows. (It is not shown, because it may contain a password.)"
        )
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
    return Recipient(name, _sender(sender), _answer_timeout_s(plugin))


def _restrict_requests() -> None:
    """Patch requests: an attempt reads at most `MAX_ANSWER_BYTES` and follows no redirect that
    drops the message.

    apprise takes no adapter. After a 301, 302 or 303 it would count the 200 of a GET as success.
    """
    import requests.sessions
    from requests.adapters import HTTPAdapter

    class ShortAnswers(HTTPAdapter):
        def send(self, *args: Any, **kwargs: Any) -> requests.Response:
            response = super().send(*args, **kwargs)
            if hasattr(_attempt, "is_redirected"):
                if response.status_code in _DROPPING_REDIRECTS:
                    _attempt.is_redirected = True
                    response.headers.pop("Location", None)
                begins = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
                response.close()
                response.raw = BytesIO(begins[:MAX_ANSWER_BYTES])
            return response

    requests.sessions.HTTPAdapter = ShortAnswers  # each session of requests reads this name
    # requests would send a password of ~/.netrc to any host that a `default` entry matches.
    os.environ["NETRC"] = os.devnull


def _answer_timeout_s(plugin: Any) -> float:
    """Set a plug-in's timeouts and return that for the answer; apprise's own is 4 s.

    A timeout in the URL wins, up to `MAX_ANSWER_TIMEOUT_S`. The timeout to connect is shorter, so
    an attempt that took the whole answer timeout was connected.
    """
    answer_s: float = getattr(plugin, "socket_read_timeout", None) or ANSWER_TIMEOUT_S
    if answer_s == getattr(type(plugin), "socket_read_timeout", None):
        answer_s = ANSWER_TIMEOUT_S
    answer_s = min(answer_s, MAX_ANSWER_TIMEOUT_S)
    connect_s = min(CONNECT_TIMEOUT_S, answer_s / 2)
    plugin.socket_read_timeout, plugin.socket_connect_timeout = answer_s, connect_s
    return answer_s


def _sender(sender: Any) -> Callable[[Message], bool]:
    def send(message: Message) -> bool:
        kind = "info" if message.good else "warning"
        # As plain text: apprise escapes it for HTML, but not for every kind of Markdown.
        done = sender.notify(
            body=chat(message.body),
            title=chat(message.title),
            notify_type=kind,
            body_format="text",
        )
        return bool(done)

    return send
