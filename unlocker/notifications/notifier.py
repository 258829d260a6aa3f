"""Notifies people of what happens to locks, by apprise: chats, mail, webhooks.

A notification is put into a bounded queue, which never waits; a thread of its own sends it,
so that a service that is slow or away delays no sweep. A message that nobody gets is put back and
tried on; one that only some of several URLs take is tried on for the others.

A message is news and no record: an unlocker that is killed with nobody beside it takes along what
it had not told. The records are in the store.

A URL holds a password as a rule: it is never logged, and neither is what apprise or the libraries
below it say, as they quote it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockclient.model.clocks import monotonic
from lockclient.overview.table import Table
from unlocker.notifications.notification_queue import (
    BRAKE,
    BlindnessDetector,
    Message,
    Notification,
    NotificationQueue,
)

log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.5
"""Seconds between two looks whether there is something to tell."""
_MIN_RETRY_S = 10.0
_MAX_RETRY_S = 600.0
"""Seconds between two tries with a URL that does not work while others do."""
_MAX_UNSENT = 20
"""Messages that are kept for such a URL."""
_SHUTDOWN_TIMEOUT_S = 1.0
"""Seconds that the last message may take when the service ends."""
_NOISY_LOGGERS = ("apprise", "urllib3", "requests", "requests_oauthlib", "oauthlib", "MARKDOWN")


class BadUrl(ValueError):
    """A URL that can't be told to, or nothing to tell with; the text does not quote it."""


@dataclass(slots=True)
class Recipient:
    """One place to tell people at.

    Attributes:
        name: what kind of service it is and which of the URLs, without its secrets.
        send: tells it, and returns whether it took it.
    """

    name: str
    send: Callable[[Message], bool]
    unsent: deque[Message] = field(default_factory=lambda: deque(maxlen=_MAX_UNSENT))
    _works: bool = True
    _pause: float = 0.0
    _not_before: float = 0.0

    def deliver(self, message: Message) -> bool:
        """Try to tell it."""
        try:
            works = self.send(message)
        except Exception as error:  # noqa: BLE001 - a service's mistake must not end the thread
            log.debug("%s failed by %s.", self.name, type(error).__name__)
            works = False
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
        self._pause = 0.0 if works else min(_MAX_RETRY_S, max(_MIN_RETRY_S, 2 * self._pause))
        self._not_before = monotonic() + self._pause
        return works

    def retry(self) -> None:
        """Try to tell what is left, if it is time."""
        while self.unsent and monotonic() >= self._not_before and self.deliver(self.unsent[0]):
            self.unsent.popleft()


class Notifier:
    """Tells people; with no recipients it does nothing at all.

    Args:
        recipients: whom.
        where: the store, for the titles.
    """

    def __init__(self, recipients: Sequence[Recipient] = (), where: str = "") -> None:
        self._recipients = recipients
        self._where = where
        self._queue = NotificationQueue("", where)
        self._blindness = BlindnessDetector("")
        self._rate_limited = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(
        self,
        identity: str,
        table: Table,
        trouble: Callable[[], str | None],
        is_rate_limited: Callable[[], bool],
    ) -> None:
        """Begin; what is handed in is asked twice a second, in the thread that sends.

        Args:
            identity: what this unlocker's sign of life is called.
            trouble: says why the unlocker can't do its work; None if it can.
            is_rate_limited: tells whether locks that are due are kept back.
        """
        if not self._recipients:
            return
        self._queue = NotificationQueue(identity, self._where)
        self._blindness = BlindnessDetector(identity)
        state = (table, trouble, is_rate_limited)
        self._thread = threading.Thread(target=self._run, args=state, name="notify", daemon=True)
        self._thread.start()

    def notify(self, event: Notification) -> None:
        """Have something told, without waiting."""
        if self._recipients:
            self._queue.put(event)

    def heartbeat_fields(self, revision: int) -> dict[str, int]:
        """Return what this unlocker's sign of life is to say."""
        return {"told": self._queue.notified_upto(revision)} if self._recipients else {}

    def stop(self) -> None:
        """End, when the last message was told or has had its time."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_SHUTDOWN_TIMEOUT_S)

    def _run(
        self, table: Table, trouble: Callable[[], str | None], is_rate_limited: Callable[[], bool]
    ) -> None:
        while True:
            ending = self._ending.wait(_POLL_INTERVAL_S)
            try:
                self._step(table, trouble(), ending=ending, rate_limited=is_rate_limited())
            except Exception:
                log.exception("What is to be told could not be seen to.")
            if ending:
                return

    def _step(self, table: Table, trouble: str | None, *, ending: bool, rate_limited: bool) -> None:
        now, unlockers = monotonic(), table.unlockers()
        if event := self._blindness.observe(trouble, self._queue.rank(unlockers), now):
            self._queue.put(event)
        if rate_limited and not self._rate_limited:
            line = "More locks are due than may be removed in a minute: the rest is kept for now."
            self._queue.put(Notification(BRAKE, line, now, table.revision))
        self._rate_limited = rate_limited
        for recipient in self._recipients:
            recipient.retry()
        if message := self._queue.take(now, unlockers, end=ending):
            self._send(message)

    def _send(self, message: Message) -> None:
        # All at once would need threads; one after the other a slow one delays the others only.
        failed = [place for place in self._recipients if place.unsent or not place.deliver(message)]
        if len(failed) == len(self._recipients):
            self._queue.failed(monotonic())
            return
        self._queue.sent(monotonic())
        for recipient in failed:
            recipient.unsent.append(message)


def recipients_of(urls: Sequence[str]) -> list[Recipient]:
    """Return whom these URLs mean.

    Raises:
        BadUrl: apprise is not installed, or does not know one of them.
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
    found = []
    for number, url in enumerate(urls, 1):
        sender = apprise.Apprise(asset=asset)
        if not sender.add(url):
            raise BadUrl(
                f"URL no. {number} is none that apprise knows. (It is not shown, as it may hold a "
                "password.)"
            )
        found.append(Recipient(f"{sender[0].service_name} (URL no. {number})", _sender(sender)))
    return found


def _sender(sender: Any) -> Callable[[Message], bool]:
    def send(message: Message) -> bool:
        kind = "info" if message.good else "warning"
        # As plain text: apprise escapes it where a service takes HTML or Markdown.
        done = sender.notify(
            body=message.body, title=message.title, notify_type=kind, body_format="text"
        )
        return bool(done)

    return send
