"""The client's metrics, which Prometheus and OpenTelemetry name and explain alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from lockclient.instruments.events import Acquired, Event, GaveUp, Lost, Released, Requested


class Metric(NamedTuple):
    """A metric; `outcomes` are the values of its label `outcome` where those are known."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()


WAIT: Final = Metric(
    "clustermutex_client_wait_seconds",
    "How long it took until a lock was acquired, or given up (timeout, cancelled, error).",
    ("outcome",),
    ("acquired", "timeout", "cancelled", "error"),
)
HOLD: Final = Metric(
    "clustermutex_client_hold_seconds",
    "How long a lock was held, until its end.",
    ("outcome",),
    ("released", "lost"),
)
HELD: Final = Metric("clustermutex_client_held", "Locks that are held now.")
LOSSES: Final = Metric(
    "clustermutex_client_losses_total", "Locks that were lost while they were held."
)
PUSHES: Final = Metric(
    "clustermutex_client_pushes_total",
    "Pushes of locks' stamps, by outcome.",
    ("outcome",),
    ("done", "failed"),
)
REQUEST: Final = Metric(
    "clustermutex_client_request_seconds",
    "How long requests to the store took, by kind and outcome.",
    ("request", "outcome"),
)
DROPPED: Final = Metric(
    "clustermutex_client_events_dropped_total",
    "Events that no instrument got, because one was too slow for them.",
)
HISTOGRAMS: Final = (WAIT, HOLD, REQUEST)
COUNTERS: Final = (LOSSES, PUSHES, DROPPED)
OF_A_LOCK: Final = (WAIT, HOLD, HELD, LOSSES, PUSHES)

LockLabel = Callable[[str], str] | None


def wait_outcome(event: Acquired | GaveUp) -> str:
    """Return how a wait ended, as a label says it."""
    if isinstance(event, Acquired):
        return "acquired"
    if event.cancelled:
        return "cancelled"
    return "timeout" if event.error is None else "error"


def measure(
    event: Event, lock_label: LockLabel = None
) -> Iterator[tuple[Metric, float, dict[str, str]]]:
    """Yield the metrics that an event changes, each with a value and labels."""
    lock = {} if lock_label is None else {"lock": lock_label(event.lock)}
    match event:
        case Requested():
            yield REQUEST, event.took_s, {"request": event.request, "outcome": event.outcome}
            if event.request == "push" and (event.error is not None or event.outcome == "done"):
                yield PUSHES, 1, {**lock, "outcome": "failed" if event.error else "done"}
        case Acquired() | GaveUp():
            yield WAIT, event.waited_s, {**lock, "outcome": wait_outcome(event)}
            if isinstance(event, Acquired):
                yield HELD, 1, lock
                yield LOSSES, 0, lock  # so that the series is there before the first loss
        case Released() | Lost():
            lost = isinstance(event, Lost)
            yield HELD, -1, lock
            yield HOLD, event.held_s, {**lock, "outcome": "lost" if lost else "released"}
            yield LOSSES, int(lost), lock
