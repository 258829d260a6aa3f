"""Labels that come from locks: which series have them, how many, and how they are written."""

from __future__ import annotations

from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.text.confusables import told_apart
from lockclient.text.escaping import label

LISTED = 100
"""Locks past their alert, and client hosts, that get series of their own: what comes from outside
must not fill Prometheus. The locks beyond are counted, and the counts ring."""

KINDS = PAST_ALERT, SKEWS, UNLOCKED, FREE = "past-alert", "skew", "auto-unlocked", "free"
"""Of series whose labels come from locks; each has a `SeriesLimit`."""


def labels_of(who: Holder | Ticket) -> tuple[str, str, str, str]:
    """Return a lock's name, as it is shown, and host, process and reason of its holder or head."""
    said = (who.hostname or "", str(who.pid or ""), who.reason or "")
    return told_apart(who.name), label(said[0]), label(said[1]), label(said[2])
