"""Objects that all views share: the dashboard of the application, its memo, its limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Final, cast

from flask import Flask, Response, abort, current_app, request
from prometheus_client import CollectorRegistry

from lockclient.model.lock_name import check_name
from lockclient.service.metrics import counter_by_label
from lockclient.service.rate_limits import RateLimits
from lockclient.stores.service_store import ServiceStore
from mutexdash.data.list_parameters import BadParameter
from mutexdash.data.snapshot import DatedSnapshot
from mutexdash.data.snapshot_refresh import Live

RESULTS = DONE, CHANGED, FAILED, UNKNOWN = "done", "changed", "failed", "unknown"
"""Results of a force-unlock."""
_MAX_KEPT: Final = 64
_MAX_KEPT_BYTES: Final = 256 * 1024
"""Answers of one second that are kept, and bytes of one."""


class Memo:
    """The answers of the current second: a page is rendered once for all its viewers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._second = 0
        self._kept: dict[object, tuple[bytes, list[tuple[str, str]]]] = {}

    def get(self, second: int, key: object) -> Response | None:
        with self._lock:
            if second != self._second:
                self._second, self._kept = second, {}
            kept = self._kept.get(key)
        return kept and Response(kept[0], headers=kept[1])

    def keep(self, second: int, key: object, response: Response) -> None:
        """Keep an answer until the second ends, if it is small and there is room."""
        body = response.get_data()
        with self._lock:
            has_room = len(self._kept) < _MAX_KEPT and len(body) <= _MAX_KEPT_BYTES
            if has_room and second == self._second:
                self._kept[key] = body, list(response.headers)


class Unlocks:
    """Counts force-unlocks by their results, and limits them to `most` a minute for each user."""

    def __init__(self, registry: CollectorRegistry, most: int, ticks: Callable[[], float]) -> None:
        self.most = most
        self.counted = RateLimits(ticks)
        self.results = counter_by_label(
            registry,
            "mutexdash_force_unlocks",
            "Force-unlocks attempted in this dashboard.",
            "result",
            RESULTS,
        )


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard.

    Attributes:
        url: the store's URL for people, in the commands that pages propose.
        build: changes with templates and static files, and every ETag with it.
        process: a random text in every ETag, as two processes may have equal versions.
    """

    live: Live
    store: ServiceStore
    registry: CollectorRegistry
    url: str
    build: str
    unlocks: Unlocks
    memo: Memo = field(default_factory=Memo)
    process: str = field(default_factory=partial(token_hex, 8))

    def dated_snapshot(self) -> DatedSnapshot:
        """Return the current snapshot; 503 before everything was read once."""
        dated = self.live.dated_snapshot()
        if dated is None:
            where = f"{self.store.can.display_name} at {', '.join(self.store.endpoints())}"
            abort(503, f"The locks have not been read yet: {where} has not answered so far.")
        return dated


def attach(app: Flask, dashboard: Dashboard) -> None:
    app.extensions["mutexdash"] = dashboard


def dashboard() -> Dashboard:
    return cast(Dashboard, current_app.extensions["mutexdash"])


def name_asked_for(name: str | None) -> str:
    """Return the lock's name from the path, or else from `?name=`; raises BadParameter and
    InvalidLockName."""
    if name is None:
        name = request.args.get("name")
    if name is None:
        raise BadParameter("The parameter name is missing: give the lock's name.")
    return check_name(name)
