"""Metric names: what Prometheus and OpenTelemetry both call the client's metrics, and explain."""

from __future__ import annotations

from typing import Final

from lockclient.instruments.events import Acquired, GaveUp

WAIT: Final = (
    "clustermutex_client_wait_seconds",
    "How long it took until a lock was acquired, or given up (timeout, cancelled, error).",
)
HOLD: Final = ("clustermutex_client_hold_seconds", "How long a lock was held, until its end.")
HELD: Final = ("clustermutex_client_held", "Locks that are held now.")
WAITING: Final = ("clustermutex_client_waiting", "Calls that ask or wait for a lock now.")
LOSSES: Final = ("clustermutex_client_losses_total", "Locks that were lost while they were held.")
PUSHES: Final = ("clustermutex_client_pushes_total", "Pushes of locks' stamps, by their outcome.")
REQUEST: Final = (
    "clustermutex_client_request_seconds",
    "How long requests to the store took, by what they asked and what came of them.",
)
DROPPED: Final = (
    "clustermutex_client_events_dropped_total",
    "Events that no instrument was told, because one was too slow for them.",
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
