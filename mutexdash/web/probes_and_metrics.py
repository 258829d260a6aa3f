"""Metrics and probes: `/metrics`, `/healthz`, `/readyz`. They ask the store nothing."""

from __future__ import annotations

from collections.abc import Iterator

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from lockclient.model.holder import STATES
from lockclient.service.metrics import gauge_by_label, votes_gauge
from lockclient.stores.findings import too_few
from lockclient.stores.service_store import ServiceStore
from lockclient.text.escaping import plain
from mutexdash.data.snapshot_refresh import Live
from mutexdash.web.context import dashboard

blueprint = Blueprint("machines", __name__)


@blueprint.get("/metrics")
def metrics() -> Response:
    return Response(generate_latest(dashboard().registry), content_type=CONTENT_TYPE_LATEST)


@blueprint.get("/healthz")
def healthz() -> Response:
    """Answer 200 unless a thread has ended or hangs."""
    why = dashboard().live.is_live()
    return _sentence("The dashboard runs.") if why is None else _sentence(why, 503)


@blueprint.get("/readyz")
def readyz() -> Response:
    """Answer 200 once everything was read.

    With an unreachable store it stays 200: the last known state is needed just then, and a load
    balancer would take all dashboards out. If the store answers and only this process's watch is
    silent, another dashboard may be up to date: then 503.
    """
    live, store = dashboard().live, dashboard().store.can.display_name
    votes = dashboard().store.votes()
    if live.dated_snapshot() is None:
        unread = f"The locks have not been read yet: {store} has not answered so far."
        return _sentence(f"{unread} {too_few(votes)}", 503)
    if live.silent():
        return _sentence(f"The watch on {store} is silent, and the dashboard is out of date.", 503)
    if live.table.trouble:
        return _sentence(f"The dashboard is ready, but out of date. {live.table.trouble}")
    if live.outdated_since() is not None:
        last = f"The dashboard is ready, with the last known state: {store} is unreachable."
        return _sentence(f"{last} {too_few(votes)}")
    return _sentence("The dashboard is ready.")


def _sentence(text: str, status: int = 200) -> Response:
    return Response(f"{plain(text.strip())}\n", status, content_type="text/plain; charset=utf-8")


def lock_gauges(live: Live, store: ServiceStore) -> Iterator[Metric]:
    """Yield gauges; those of locks once everything was read."""
    is_current = live.outdated_since() is None
    yield GaugeMetricFamily(
        "mutexdash_store_connected", "1 while the pages are up to date.", float(is_current)
    )
    yield GaugeMetricFamily(
        "mutexdash_snapshot_proven_timestamp_seconds",
        "Until when the pages were verified to be up to date.",
        live.updated_at(),
    )
    yield votes_gauge("mutexdash_store_server_votes", store)
    dated = live.dated_snapshot()
    if dated is None:
        return
    snapshot = dated.snapshot
    states = {state: snapshot.counts[state] for state in STATES}
    yield gauge_by_label("mutexdash_locks", "Locks that are held.", "state", states)
    yield GaugeMetricFamily(
        "mutexdash_waiters",
        "Clients in the queue for a lock; 0 in a store without queues.",
        snapshot.waiting,
    )
    yield GaugeMetricFamily(
        "mutexdash_deadlocks",
        "Suspected deadlocks: cycles of clients that wait for each other's locks.",
        len(snapshot.waits.deadlocks),
    )
    yield GaugeMetricFamily(
        "mutexdash_waiters_unread",
        "Queued clients whose tickets were not read: a deadlock among them is not detected.",
        snapshot.waits.unread,
    )
    running = len(snapshot.unlockers)
    yield GaugeMetricFamily("mutexdash_unlockers", "Unlockers that run.", running)
