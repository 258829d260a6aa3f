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
from urllib.parse import unquote, urljoin, urlsplit

from lockclient.model.clocks import monotonic
from lockclient.text.escaping import chat, plain
from unlocker.notifications.events import Message
from unlocker.notifications.note import REFUSED, TOLD, UNANSWERED, is_url_name

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 32.0
"""Seconds for a URL to be connected, and to answer: one that does so within 30 is told once."""
TRY_S = 75.0
"""Seconds for one try, whatever it waits for: names, several requests, an answer that drips."""
MAX_ANSWER_BYTES = 64 << 10
MAX_URLS = 20
_DROPPING_REDIRECTS = (301, 302, 303)
"""Statuses to which a client sends a GET elsewhere; 307 and 308 have it send the same again."""
_NOISY_LOGGERS = ("apprise", "urllib3", "requests", "requests_oauthlib", "oauthlib", "MARKDOWN")
_named_url = re.compile(r"([^=:/]*)=(.*)", re.DOTALL).fullmatch


class BadUrl(ValueError):
    """A URL that can't be told to, or nothing to tell with; the text does not quote it."""


class _Try(threading.Thread):
    """One try to tell somebody, which may last longer than anybody waits for it."""

    def __init__(self, send: Callable[[Message], bool], message: Message) -> None:
        super().__init__(name="try to tell", daemon=True)
        self.send, self.message = send, message
        self.works = False
        self.moved_to = ""
        """Where a redirect pointed that was not followed."""

    def run(self) -> None:
        try:
            self.works = self.send(self.message)
        except Exception as error:  # noqa: BLE001 - a service's mistake is no more than a failure
            log.debug("It failed by %s.", type(error).__name__)


@dataclass(slots=True)
class Recipient:
    """One place to tell people at.

    Attributes:
        name: what it is called in the log and in the store.
        send: tells it, and returns whether it took it.
        answer_timeout_s: seconds after which it gives up.
        try_s: seconds after which nobody waits for a try any more.
    """

    name: str
    send: Callable[[Message], bool]
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    try_s: float = TRY_S
    _works: bool = True
    _last: _Try | None = None
    _moved_to: str = ""

    def deliver(self, message: Message) -> str:
        """Try to tell it; return how that ended.

        apprise says no more than that it failed. One that failed for so long was not refused, but
        most likely taken and not answered. While a try hangs there is no other one from here.
        """
        started, how = monotonic(), REFUSED
        if self._last is None or not self._last.is_alive():
            self._last = _Try(self.send, message)
            self._last.start()
            self._last.join(self.try_s)
            late = monotonic() - started >= 0.95 * min(self.answer_timeout_s, self.try_s)
            how = TOLD if self._last.works else UNANSWERED if late else REFUSED
        if (works := how == TOLD) != self._works:
            if works:
                log.warning("Notifications by %s work again.", self.name)
            else:
                log.warning(
                    "Notifications by %s fail; retrying. `apprise -vv -b test URL` says why.",
                    self.name,
                    extra={"event": "notify-failed"},
                )
        moved_to = "" if works or self._last is None else self._last.moved_to
        if moved_to and moved_to != self._moved_to:
            log.warning(
                "Notifications by %s are redirected to %s, where they would be lost: that is not "
                "followed. Has the URL moved, or does a login page stand before it?",
                self.name,
                plain(moved_to[:200]),
                extra={"event": "notify-redirected"},
            )
        self._moved_to = moved_to or ("" if works else self._moved_to)
        self._works = works
        return how


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
    """Patch requests: a `_Try` reads at most `MAX_ANSWER_BYTES` and follows no redirect that drops
    the message.

    apprise takes no adapter. After a 301, 302 or 303 it would count the 200 of a GET as success.
    """
    import requests.sessions
    from requests.adapters import HTTPAdapter

    class ShortAnswers(HTTPAdapter):
        def send(self, *args: Any, **kwargs: Any) -> requests.Response:
            response = super().send(*args, **kwargs)
            if isinstance(attempt := threading.current_thread(), _Try):
                if response.status_code in _DROPPING_REDIRECTS and "Location" in response.headers:
                    moved_to = response.headers.pop("Location")
                    attempt.moved_to = _shown_address(moved_to, response.url)
                begins = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
                response.close()
                response.raw = BytesIO(begins[:MAX_ANSWER_BYTES])
            return response

    requests.sessions.HTTPAdapter = ShortAnswers  # each of its sessions looks it up here
    # requests would send a password of ~/.netrc to any host that a `default` entry matches.
    os.environ["NETRC"] = os.devnull


def _shown_address(moved_to: str, asked: str) -> str:
    """Return where a redirect points, without what may be a secret: user, query, and a path that
    has a part of the URL's own."""
    try:
        old, new = (urlsplit(unquote(url)) for url in (asked, urljoin(asked, moved_to)))
    except ValueError:
        return "an address that is no URL"
    shared = {*old.path.split("/")} & {*new.path.split("/")} - {""}
    return f"{new.scheme}://{new.netloc.rpartition('@')[2]}{'/…' if shared else new.path}"


def _answer_timeout_s(plugin: Any) -> float:
    """Have it wait for an answer, unless its URL says for how long: apprise gives up after 4 s.

    To be connected takes less, so that who waited for so long was connected.
    """
    answer_s: float = getattr(plugin, "socket_read_timeout", None) or ANSWER_TIMEOUT_S
    if answer_s == getattr(type(plugin), "socket_read_timeout", None):
        answer_s = ANSWER_TIMEOUT_S
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
