"""The client's metrics, which Prometheus and OpenTelemetry name and explain alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from lockclient.instruments.events import Acquired, Event, GaveUp, Lost, Released, Requested


class Metric(NamedTuple):
    """A metric, and the values of its label `outcome` where those are known beforehand."""

    name: str
    help: str
    outcomes: tuple[str, ...] = ()


WAIT: Final = Metric(
    "clustermutex_client_wait_seconds",
    "How long it took until a lock was acquired, or given up (timeout, cancelled, error).",
    ("acquired", "timeout", "cancelled", "error"),
)
HOLD: Final = Metric(
    "clustermutex_client_hold_seconds",
    "How long a lock was held, until its end.",
    ("released", "lost"),
)
HELD: Final = Metric("clustermutex_client_held", "Locks that are held now.")
LOSSES: Final = Metric(
    "clustermutex_client_losses_total", "Locks that were lost while they were held."
)
PUSHES: Final = Metric(
    "clustermutex_client_pushes_total", "Pushes of locks' stamps, by outcome.", ("done", "failed")
)
REQUEST: Final = Metric(
    "clustermutex_client_request_seconds",
    "How long requests to the store took, by kind and outcome.",
)
DROPPED: Final = Metric(
    "clustermutex_client_events_dropped_total",
    "Events that no instrument got, because one was too slow for them.",
)

BUCKETS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)
"""From the fastest store to the jobs of a night."""


def wait_outcome(event: Acquired | GaveUp) -> str:
    """Return how a wait ended, as a label says it."""
    if isinstance(event, Acquired):
        return "acquired"
    if event.cancelled:
        return "cancelled"
    return "timeout" if event.error is None else "error"


def measure(event: Event) -> Iterator[tuple[Metric, float, dict[str, str]]]:
    """Yield the metrics that an event changes, each with a value and labels."""
    match event:
        case Requested():
            yield REQUEST, event.took_s, {"request": event.request, "outcome": event.outcome}
            if event.request == "push" and (event.error is not None or event.outcome == "done"):
                yield PUSHES, 1, {"outcome": "done" if event.error is None else "failed"}
        case Acquired() | GaveUp():
            yield WAIT, event.waited_s, {"outcome": wait_outcome(event)}
            if isinstance(event, Acquired):
                yield HELD, 1, {}
                yield LOSSES, 0, {}  # so that the series is there before the first loss
        case Released() | Lost():
            lost = isinstance(event, Lost)
            yield HELD, -1, {}
            yield HOLD, event.held_s, {"outcome": "lost" if lost else "released"}
            yield LOSSES, int(lost), {}
