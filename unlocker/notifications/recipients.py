"""Whom people's messages go to: the URLs that the operator gave, by apprise.

A URL holds a password as a rule: it is never logged, and neither is what apprise or the libraries
below it say, as they quote it. It is called by the operator's name for it (`ops=slack://…`), or by
its kind and place (`slack-1`): that name stands in the store.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockclient.model.clocks import monotonic
from lockclient.text.escaping import chat
from unlocker.notifications.events import Message
from unlocker.notifications.note import REFUSED, TOLD, UNANSWERED, is_url_name

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 32.0
"""Seconds for a URL to be connected, and to answer: one that does so within 30 is told once."""
_NOISY_LOGGERS = ("apprise", "urllib3", "requests", "requests_oauthlib", "oauthlib", "MARKDOWN")
_named_url = re.compile(r"([^=:/]*)=(.*)", re.DOTALL).fullmatch


class BadUrl(ValueError):
    """A URL that can't be told to, or nothing to tell with; the text does not quote it."""


@dataclass(slots=True)
class Recipient:
    """One place to tell people at.

    Attributes:
        name: what it is called in the log and in the store.
        send: tells it, and returns whether it took it.
        answer_timeout_s: seconds after which it gives up.
    """

    name: str
    send: Callable[[Message], bool]
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    _works: bool = True

    def deliver(self, message: Message) -> str:
        """Try to tell it; return how that ended.

        apprise says no more than that it failed. One that failed for so long was not refused, but
        most likely taken and not answered.
        """
        started = monotonic()
        try:
            works = self.send(message)
        except Exception as error:  # noqa: BLE001 - a service's mistake must not end the thread
            log.debug("%s failed by %s.", self.name, type(error).__name__)
            works = False
        waited = monotonic() - started
        if works != self._works:
            if works:
                log.warning("People can be told by %s again.", self.name)
            else:
                log.warning(
                    "People can't be told by %s; it is tried on. `apprise -vv -b test URL` says "
                    "why.",
                    self.name,
                    extra={"event": "notify-failed"},
                )
        self._works = works
        late = waited >= 0.95 * self.answer_timeout_s
        return TOLD if works else UNANSWERED if late else REFUSED


def recipients_of(urls: Sequence[str]) -> list[Recipient]:
    """Return whom these URLs mean, each as it is or behind `NAME=`.

    Raises:
        BadUrl: apprise is not installed, or does not know one of them; a name is none, or used
            twice.
    """
    if not urls:
        return []
    try:
        import apprise
    except ModuleNotFoundError as error:
        if error.name != "apprise":
            raise
        raise BadUrl("it needs apprise: pip install 'clustermutex[notify]'.") from None
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    asset = apprise.AppriseAsset(app_id="ClusterMutex", async_mode=False, secure_logging=True)
    found: dict[str, Recipient] = {}
    for number, given in enumerate(urls, 1):
        named = _named_url(given)
        name, url = named.groups() if named else ("", given)
        sender = apprise.Apprise(asset=asset)
        if not sender.add(url):
            raise BadUrl(
                f"URL no. {number} is none that apprise knows. (It is not shown, as it may hold a "
                "password.)"
            )
        name = name if named else f"{url.partition(':')[0].lower()[:20]}-{number}"
        if not is_url_name(name) or name in found:
            raise BadUrl(
                f"The name of URL no. {number} must be another one than each other's, of at most "
                "32 characters A-Za-z0-9._-: NAME=URL."
            )
        found[name] = Recipient(name, _sender(sender), _answer_timeout_s(sender[0]))
    return [*found.values()]


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
