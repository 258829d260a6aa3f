"""Series whose labels come from locks: at most `MAX_LISTED` of a kind, the rest as a count.

Any client may choose a lock's name, hostname and reason, and must not fill Prometheus by that. The
other locks are counted, and an alert rule uses the count, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.model.fields import pairs
from lockclient.model.holder import Holder
from lockclient.service.metrics import gauge_by_label
from lockclient.text.escaping import label, shown_name

MAX_LISTED: Final = 100
"""Series of one kind in a scrape."""

HOLDER_LABELS: Final = ("name", "hostname", "pid", "reason", "owner", "container", "labels")

_Item = TypeVar("_Item")


def holder_labels(holder: Holder) -> tuple[str, ...]:
    """Return the values of `HOLDER_LABELS`, the lock's name as it is shown.

    The holder's `context` is not among them: it differs each time and would make new series.
    """
    texts = (holder.hostname, str(holder.pid or ""), holder.reason, holder.owner, holder.container)
    labels = (*texts, pairs(holder.labels or {}))
    return (shown_name(holder.name), *(label(text or "") for text in labels))


def unique(holders: Iterable[tuple[Holder, _Item]]) -> Iterator[tuple[tuple[str, ...], _Item]]:
    """Yield labels and item of at most `MAX_LISTED` holders, one for each shown name.

    Two names may look alike when shown, and two samples of one name would fail the whole scrape.
    """
    names = set[str]()
    for holder, item in holders:
        labels = holder_labels(holder)
        if len(names) < MAX_LISTED and labels[0] not in names:
            names.add(labels[0])
            yield labels, item


def holders_info(name: str, text: str, listed: Iterable[tuple[str, ...]]) -> Metric:
    """Return a metric without a value, for its labels: `holder_labels` of each holder."""
    family = InfoMetricFamily(name, text, labels=HOLDER_LABELS)
    for labels in listed:
        family.add_metric(labels, {})
    return family


def series(
    name: str, text: str, age: str, found: Sequence[tuple[Holder, float]], holders: str = ""
) -> Iterator[Metric]:
    """Yield the number, ages and holders of locks in some state, and the number of unlisted locks.

    Args:
        name: the metrics' name, without `clustermutex_lock`.
        text: help text of the number.
        age: help text of the ages.
        found: the locks, each with its seconds in that state; the first ones are listed.
        holders: help text of the holders' labels; without it only names are shown.
    """
    lock = f"clustermutex_lock_{name}"
    yield GaugeMetricFamily(f"clustermutex_locks_{name}", text, len(found))
    listed = dict(unique(found))
    ages = {labels[0]: seconds for labels, seconds in listed.items()}
    yield gauge_by_label(f"{lock}_seconds", age, "name", ages)
    if holders:
        yield holders_info(lock, holders, listed)
    yield GaugeMetricFamily(
        f"clustermutex_locks_{name}_unlisted",
        f"Such locks that have no series of their own: beyond {MAX_LISTED}.",
        len(found) - len(listed),
    )
