"""Whom people's messages go to: the URLs that the operator gave, by apprise.

A URL holds a password as a rule: it is never logged, and neither is what apprise or the libraries
below it say, as they quote it. It is called by the operator's name for it (`ops=slack://…`), or by
its kind and place (`slack-1`): that name stands in the store.
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
from lockclient.text.escaping import chat
from unlocker.notifications.events import Message
from unlocker.notifications.note import REFUSED, TOLD, UNANSWERED, is_url_name

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 32.0
"""Seconds for a URL to be connected, and to answer: one that does so within 30 is told once."""
MAX_ANSWER_TIMEOUT_S = 60.0
"""Seconds: less than those after which another unlocker takes over."""
MAX_ANSWER_BYTES = 64 << 10
MAX_URLS = 20
_DROPPING_REDIRECTS = (301, 302, 303)
"""Statuses to which a client sends a GET elsewhere; 307 and 308 have it send the same again."""
_NOISY_LOGGERS = ("apprise", "urllib3", "requests", "requests_oauthlib", "oauthlib", "MARKDOWN")
_named_url = re.compile(r"([^=:/]*)=(.*)", re.DOTALL).fullmatch


class BadUrl(ValueError):
    """A URL that can't be told to, or nothing to tell with; the text does not quote it."""


_attempt = threading.local()
"""`is_redirected`, of the attempt that this thread makes; absent in other threads."""


@dataclass(slots=True)
class Recipient:
    """A place to which notifications are sent.

    Attributes:
        name: what it is called in the log and in the store.
        send: sends a message, and returns whether it was accepted.
        answer_timeout_s: seconds without an answer after which that gives up.
    """

    name: str
    send: Callable[[Message], bool]
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    _works: bool = True

    def deliver(self, message: Message) -> str:
        """Send a message, which may last for any time; return the outcome.

        apprise says no more than that it failed. If that took as long as the timeout, the message
        was most likely accepted and not answered.
        """
        started, _attempt.is_redirected, works = monotonic(), False, False
        try:
            works = self.send(message)
        except Exception as error:  # noqa: BLE001 - a service's mistake is no more than a failure
            log.debug("An attempt failed by %s.", type(error).__name__)
        late = monotonic() - started >= 0.95 * self.answer_timeout_s
        why = "`apprise -vv -b test URL` says why."
        if _attempt.is_redirected:
            why = "They are redirected, and would be lost there. Has the URL moved?"
        if works and not self._works:
            log.warning("Notifications by %s work again.", self.name)
        elif self._works and not works:
            log.warning(
                "Notifications by %s fail; retrying. %s",
                self.name,
                why,
                extra={"event": "notify-failed"},
            )
        self._works = works
        return TOLD if works else UNANSWERED if late else REFUSED


def recipients_of(urls: Sequence[str]) -> tuple[list[Recipient], list[str]]:
    """Return whom these URLs mean, each as it is or behind `NAME=`, and what is wrong with the
    others: that one is bad keeps nobody else from being told."""
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
    # apprise from 2 on, as others ignore it: no limit and pool of its own, which a few URLs that
    # hang would fill for all others, and for which the end of the process would wait.
    asset._service_timeout = 0.0
    found: dict[str, Recipient] = {}
    faults = []
    for number, given in enumerate(urls, 1):
        try:
            recipient = _recipient_of(given, number, apprise.Apprise(asset=asset), found)
            found[recipient.name] = recipient
        except BadUrl as error:
            faults.append(f"URL no. {number} {error}")
        except Exception as error:  # noqa: BLE001 - what a library says of a URL may quote it
            faults.append(
                f"URL no. {number} is not a URL that apprise can read: {type(error).__name__}."
            )
    return [*found.values()], faults


def _recipient_of(given: str, number: int, sender: Any, others: Collection[str]) -> Recipient:
    """Return whom a URL means.

    Raises:
        BadUrl: apprise does not know it, or it is several; its name is none, or another one's;
            there are too many.
    """
    named = _named_url(given)
    name, url = named.groups() if named else ("", given)
    if not sender.add(url):
        raise BadUrl(
            "is not a URL that apprise knows. (It is not shown, because it may contain a password.)"
        )
    name = name if named else f"{url.partition(':')[0].lower()[:20]}-{number}"
    if not is_url_name(name) or name in others:
        raise BadUrl("must have a unique name of at most 32 characters A-Za-z0-9._-: NAME=URL.")
    if len(others) >= MAX_URLS:
        raise BadUrl(f"is one too many: at most {MAX_URLS} can be told.")
    plugin, *others_of_it = sender
    if others_of_it:  # told by halves it would have to be told again, both of them
        raise BadUrl("is several URLs: give each by itself, with a name of its own.")
    if plugin.overflow_mode == type(plugin).overflow_mode:
        plugin.overflow_mode = "split"  # else a chat refuses what is too long for it, for ever
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

    requests.sessions.HTTPAdapter = ShortAnswers  # each of its sessions looks it up here
    # requests would send a password of ~/.netrc to any host that a `default` entry matches.
    os.environ["NETRC"] = os.devnull


def _answer_timeout_s(plugin: Any) -> float:
    """Have it wait for an answer, unless its URL says for how long: apprise gives up after 4 s.

    To be connected takes less, so that who waited for so long was connected.
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
        # As plain text: apprise escapes it where a service takes HTML, and not in every Markdown.
        done = sender.notify(
            body=chat(message.body),
            title=chat(message.title),
            notify_type=kind,
            body_format="text",
        )
        return bool(done)

    return send
