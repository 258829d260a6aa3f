"""Truths as an unlocker sees them, and a recipient that is sent their differences. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.overview.rows import Row
from unlocker.notifications.conditions import (
    KINDS,
    OF_UNLOCKER,
    PAST_ALERT,
    Condition,
    Kind,
    condition_of,
    holder_hash,
    possible_ids,
    unlocker_condition,
)
from unlocker.notifications.difference import Difference
from unlocker.notifications.message import Message, Writer
from unlocker.notifications.sent_document import SENT, Change, SentDocument
from unlocker.notifications.truth import Truth

WRITER = Writer("here")


def holder(name: str, alert_at: float = 1000.0, uuid: str = "u", reason: str = "x") -> Holder:
    """Return the holder of a lock."""
    return Holder(
        name=name,
        uuid=uuid,
        hostname="web-1",
        reason=reason,
        alert_at=alert_at,
        locked_at=900.0,
        fencing_token=7,
    )


def named(number: int, prefix: str = "lock") -> list[Holder]:
    """Return holders of so many locks."""
    return [holder(f"{prefix}-{each}") for each in range(number)]


def removal(of: Holder, how: str = AUTO_UNLOCK) -> Removal:
    """Return the record of a removal."""
    return Removal(of, 1100.0, "unlocker@a:1", how, "no heartbeat")


def truth(
    wrong: Mapping[Kind, Iterable[Holder]] | None = None,
    *,
    well: Iterable[Holder] = (),
    removals: Iterable[Removal] = (),
    unlockers: Mapping[Kind, Collection[str]] | None = None,
    is_ready: bool = True,
    is_sure: bool = True,
) -> Truth:
    """Return a truth.

    Args:
        wrong: holders by what is wrong with their locks.
        well: holders of other locks.
        unlockers: names of unlockers by what they announce.
    """
    found: dict[str, dict[str, Condition]] = {code: {} for code in KINDS}
    held = [*well]
    for kind, holders in (wrong or {}).items():
        for each in holders:
            condition = condition_of(kind, each)
            found[kind.code][condition.id] = condition
            held.append(each)
    announced = set[str]()
    for kind, names in (unlockers or {}).items():
        assert kind.of is OF_UNLOCKER
        for name in names:
            condition = unlocker_condition(kind, name, "It is so.")
            found[kind.code][condition.id] = condition
            announced.add(condition.id)
    rows = {each.name: Row(each, 0.0, False) for each in held}
    possible = {text for each in held for text in possible_ids(each)}
    gone = {holder_hash(each.holder.name, each.holder.uuid): each for each in removals}
    if not is_ready:
        return Truth({code: {} for code in KINDS}, removals=gone)
    return Truth(found, True, is_sure, gone, announced, lambda: rows, lambda: possible)


def late(*names: str) -> Truth:
    """Return a truth in which these locks are past their alert."""
    return truth({PAST_ALERT: [holder(name) for name in names]})


class Recipient:
    """A recipient that accepts all, and what it was sent."""

    def __init__(self) -> None:
        self.known = SentDocument()
        self.difference = Difference()
        self.now = 0.0
        self.most_bytes = 0
        self.messages: list[Message] = []

    def restarted(self) -> None:
        """Have another unlocker send, which reads the document."""
        self.known, self.difference = SentDocument.parse(self.known.value()), Difference()

    def change(self, found: Truth, seconds: float = 0.0) -> Change:
        """Return the difference after so many seconds in which a truth did not change."""
        self.difference.of(self.known, found, self.now)
        self.now += seconds
        return self.difference.of(self.known, found, self.now)

    def send(self, found: Truth, seconds: float = 0.0) -> str:
        """Send the difference; return the title without the store's name, or ""."""
        change = self.change(found, seconds)
        if not change:
            return ""
        message = WRITER.message(change, self.known, found)
        self.messages.append(message)
        self.known.begin(change, message.named, "me")
        self.measure()
        self.known.settle(change, SENT, is_full=True)
        self.measure()
        self.restarted()
        return message.title.partition(": ")[2]

    def measure(self) -> None:
        """Note how long the document is."""
        self.most_bytes = max(self.most_bytes, len(self.known.value()))
