"""Series whose labels come from locks: at most `MAX_LISTED` of a kind, the rest as a count.

Any client may write a lock's name, hostname or reason, and must not fill Prometheus by that. The
locks beyond are counted, and the count alerts, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.model.fields import pairs
from lockclient.model.holder import Holder
from lockclient.text.escaping import label, shown_name

MAX_LISTED: Final = 100
"""Series of one kind in a scrape."""

HOLDER_LABELS: Final = ("name", "hostname", "pid", "reason", "owner", "container", "labels")

_Item = TypeVar("_Item")


def holder_labels(holder: Holder) -> tuple[str, ...]:
    """Return the values of `HOLDER_LABELS`; the lock's name is as it is shown.

    Without the holder's `context`, which differs each time, so that each would be a new series.
    """
    texts = (holder.hostname, str(holder.pid or ""), holder.reason, holder.owner, holder.container)
    labels = (*texts, pairs(holder.labels or {}))
    return (shown_name(holder.name), *(label(text or "") for text in labels))


def unique(holders: Iterable[tuple[Holder, _Item]]) -> Iterator[tuple[tuple[str, ...], _Item]]:
    """Yield labels and item of at most `MAX_LISTED`, one for each name as it is shown.

    Two names may be shown alike, and two samples with one name would end a whole scrape.
    """
    names = set[str]()
    for holder, item in holders:
        labels = holder_labels(holder)
        if len(names) < MAX_LISTED and labels[0] not in names:
            names.add(labels[0])
            yield labels, item


def series(
    name: str, since: str, found: Sequence[tuple[Holder, float]], holders: str = ""
) -> Iterator[Metric]:
    """Yield since when locks are in some state, who holds them, and how many are not listed.

    Args:
        name: of the metrics, without `clustermutex_lock`.
        since: help text of the timestamps.
        found: the locks to list first in front, each with its timestamp.
        holders: help text of the holders' labels; without it only names are shown.
    """
    lock = f"clustermutex_lock_{name}"
    stamps = GaugeMetricFamily(f"{lock}_timestamp_seconds", since, labels=["name"])
    info = InfoMetricFamily(lock, holders, labels=HOLDER_LABELS)
    listed = 0
    for labels, at in unique(found):
        stamps.add_metric(labels[:1], at)
        info.add_metric(labels, {})
        listed += 1
    yield stamps
    if holders:
        yield info
    yield GaugeMetricFamily(
        f"clustermutex_locks_{name}_unlisted",
        f"Such locks that have no series of their own: beyond {MAX_LISTED}.",
        len(found) - listed,
    )
