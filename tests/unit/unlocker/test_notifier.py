"""What an unlocker has noticed and not noted yet."""

from __future__ import annotations

from collections import Counter

from unlocker.notifications.events import AUTO_UNLOCKED, Event
from unlocker.notifications.note import MAX_OVER
from unlocker.notifications.notifier import Notifier
from unlocker.notifications.recipients import Recipient


def test_what_is_not_noted_yet_is_bounded_and_holds_the_heartbeat_back() -> None:
    counts = Counter[str]()
    notifier = Notifier([Recipient("ops", lambda _: True)])
    notifier.count = lambda result, number: counts.update({result: number})
    for number in range(MAX_OVER + 2):
        notifier.notify(Event(f"{number}", AUTO_UNLOCKED, "It is gone.", 1e9, 8))
    assert counts == {"dropped": 2}
    assert notifier.heartbeat_fields(10) == {"told": 7}
