"""Limits how many new series an hour labels that come from locks may create.

A series stays in Prometheus for hours after the lock that it was about. So it is not enough that
one scrape shows a hundred at most: whoever writes other names, hosts or reasons between any two
scrapes would fill it all the same. New sets an hour have a limit, too, for each kind of series.
What is left out is counted, and rings by its number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from prometheus_client.core import GaugeMetricFamily

from lockclient.model.clocks import monotonic
from lockclient.model.fields import pairs
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.text.escaping import label, shown_name

MAX_LISTED = 100
"""Locks past their alert, and client hosts, that get series of their own: what comes from outside
must not fill Prometheus. The locks beyond are counted, and the counts ring."""

KINDS = PAST_ALERT, SKEWS, UNLOCKED, FREE, TOO_LONG = (
    *("past-alert", "skew", "auto-unlocked", "free", "held-too-long"),
)
"""Of series whose labels come from locks; each has a `SeriesLimit`."""

NEW_AN_HOUR: Final = 100
"""Sets that no scrape of the last hour had: so many at once, and so many an hour from then on."""
HOUR_S: Final = 3600.0

_Item = TypeVar("_Item")


class SeriesLimit:
    """The sets of labels of one kind of series; several threads may use it.

    Args:
        left_out: called for each set that a scrape is to leave out.
    """

    def __init__(self, left_out: Callable[[], object] = lambda: None) -> None:
        self._left_out = left_out
        self._lock = threading.Lock()
        # When last, who was shown longest ago in front; a few hundred at most.
        self._shown: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._room, self._at = float(NEW_AN_HOUR), monotonic()
        self._spare = float(NEW_AN_HOUR)

    def admit(self, labels: tuple[str, ...], *, urgent: bool = False) -> bool:
        """Tell whether a scrape may show this set; what it has shown before stays, of course.

        What is `urgent` has room of its own where the other has used up what is there for both.
        """
        with self._lock:
            now = monotonic()
            more = (now - self._at) * NEW_AN_HOUR / HOUR_S
            self._room = min(NEW_AN_HOUR, self._room + more)
            self._spare = min(NEW_AN_HOUR, self._spare + more)
            self._at = now
            while self._shown and next(iter(self._shown.values())) < now - HOUR_S:
                self._shown.popitem(last=False)
            if labels not in self._shown:
                if self._room >= 1:
                    self._room -= 1
                elif urgent and self._spare >= 1:
                    self._spare -= 1
                else:
                    self._left_out()
                    return False
            self._shown[labels] = now
            self._shown.move_to_end(labels)
            return True

    def admitted(
        self, found: Iterable[tuple[Holder | Ticket, _Item]]
    ) -> Iterator[tuple[tuple[str, ...], _Item]]:
        """Yield, with their labels, those of at most `MAX_LISTED` that a scrape may show.

        Two locks may look alike, and two samples of one name would end a whole scrape: the first
        is shown.
        """
        names = set[str]()
        for who, item in found:
            labels = holder_labels(who)
            if labels[0] not in names and self.admit(labels):
                names.add(labels[0])
                yield labels, item


def unlisted_gauge(name: str, number: int) -> GaugeMetricFamily:
    """Return the gauge that counts the locks which have no series of their own."""
    return GaugeMetricFamily(
        name,
        f"Such locks that have no series of their own: beyond {MAX_LISTED}, or beyond "
        f"{NEW_AN_HOUR} new ones in an hour.",
        number,
    )


HEAD_LABELS: Final = ("name", "hostname", "pid", "reason")
HOLDER_LABELS: Final = (*HEAD_LABELS, "owner", "container", "labels")


def holder_labels(who: Holder | Ticket) -> tuple[str, ...]:
    """Return the values of `HOLDER_LABELS` of a holder, of `HEAD_LABELS` of who waits.

    Not a holder's `context`, which is another one each time, so that each would be a series. The
    lock's name is as it is shown.
    """
    texts = [who.hostname, str(who.pid or ""), who.reason]
    if isinstance(who, Holder):
        texts += [who.owner, who.container, pairs(who.labels or {})]
    return (shown_name(who.name), *(label(text or "") for text in texts))
