"""Tells people what happens to locks, by the services that apprise knows: chats, mail, webhooks.

What is to be told is put into a bounded `outbox`, which never waits; a thread of its own sends it,
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockclient.model.clocks import monotonic
from unlocker.notifications.notification_queue import (
    BRAKE,
    BlindnessDetector,
    Message,
    Notification,
    NotificationQueue,
)

log = logging.getLogger(__name__)

_LOOK = 0.5
"""Seconds between two looks whether there is something to tell."""
_LEAST, _MOST = 10.0, 600.0
"""Seconds between two tries with a URL that does not work while others do."""
_KEPT = 20
"""Messages that are kept for such a URL."""
_END = 1.0
"""Seconds that the last message may take when the service ends."""
_CHATTY = ("apprise", "urllib3", "requests", "requests_oauthlib", "oauthlib", "MARKDOWN")


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
    left: deque[Message] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _works: bool = True
    _pause: float = 0.0
    _not_before: float = 0.0

    def take(self, message: Message) -> bool:
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
        self._pause = 0.0 if works else min(_MOST, max(_LEAST, 2 * self._pause))
        self._not_before = monotonic() + self._pause
        return works

    def retry(self) -> None:
        """Try to tell what is left, if it is time."""
        while self.left and monotonic() >= self._not_before and self.take(self.left[0]):
            self.left.popleft()


@dataclass(frozen=True, slots=True)
class UnlockerState:
    """What the unlocker knows now.

    Attributes:
        unready: why it can't do its work; None if it can.
        braking: whether the brake keeps back locks that are due.
        revision: what its table shows.
        unlockers: the signs of life in it, the oldest first.
    """

    unready: str | None
    braking: bool
    revision: int
    unlockers: Mapping[str, str]


class Notifier:
    """Tells people; with no targets it does nothing at all.

    Args:
        targets: whom.
        where: the store, for the titles.
    """

    def __init__(self, targets: Sequence[Recipient] = (), where: str = "") -> None:
        self._targets = targets
        self._where = where
        self._outbox = NotificationQueue("", where)
        self._sight = BlindnessDetector("")
        self._braking = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, identity: str, look: Callable[[], UnlockerState]) -> None:
        """Begin.

        Args:
            identity: what this unlocker's sign of life is called.
            look: is asked twice a second, in the thread that tells.
        """
        if not self._targets:
            return
        self._outbox, self._sight = (
            NotificationQueue(identity, self._where),
            BlindnessDetector(identity),
        )
        self._thread = threading.Thread(target=self._run, args=(look,), name="notify", daemon=True)
        self._thread.start()

    def tell(self, event: Notification) -> None:
        """Have something told, without waiting."""
        if self._targets:
            self._outbox.put(event)

    def told(self, revision: int) -> dict[str, int]:
        """Return what this unlocker's sign of life is to say."""
        return {"told": self._outbox.told(revision)} if self._targets else {}

    def stop(self) -> None:
        """End, when the last message was told or has had its time."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_END)

    def _run(self, look: Callable[[], UnlockerState]) -> None:
        while True:
            ending = self._ending.wait(_LOOK)
            try:
                self._step(look(), monotonic(), ending=ending)
            except Exception:
                log.exception("What is to be told could not be seen to.")
            if ending:
                return

    def _step(self, look: UnlockerState, now: float, *, ending: bool) -> None:
        if event := self._sight.look(look.unready, self._outbox.rank(look.unlockers), now):
            self._outbox.put(event)
        if look.braking and not self._braking:
            line = "More locks are due than may be removed in a minute: the rest is kept for now."
            self._outbox.put(Notification(BRAKE, line, now, look.revision))
        self._braking = look.braking
        for target in self._targets:
            target.retry()
        if message := self._outbox.take(now, look.unlockers, end=ending):
            self._send(message)

    def _send(self, message: Message) -> None:
        # All at once would need threads; one after the other a slow one delays the others only.
        failed = [each for each in self._targets if each.left or not each.take(message)]
        if len(failed) == len(self._targets):
            self._outbox.failed(monotonic())
            return
        self._outbox.sent(monotonic())
        for target in failed:
            target.left.append(message)


def targets_of(urls: Sequence[str]) -> list[Recipient]:
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
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    asset = apprise.AppriseAsset(app_id="ClusterMutex", async_mode=False, secure_logging=True)
    found = []
    for number, url in enumerate(urls, 1):
        teller = apprise.Apprise(asset=asset)
        if not teller.add(url):
            raise BadUrl(
                f"URL no. {number} is none that apprise knows. (It is not shown, as it may hold a "
                "password.)"
            )
        found.append(Recipient(f"{teller[0].service_name} (URL no. {number})", _sender(teller)))
    return found


def _sender(teller: Any) -> Callable[[Message], bool]:
    def send(message: Message) -> bool:
        kind = "info" if message.good else "warning"
        # As plain text: apprise escapes it where a service takes HTML or Markdown.
        done = teller.notify(
            body=message.body, title=message.title, notify_type=kind, body_format="text"
        )
        return bool(done)

    return send
