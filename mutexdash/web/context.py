"""What all views share: the dashboard of the application, parameters, ETags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from flask import Flask, Response, abort, current_app, make_response, request
from prometheus_client import CollectorRegistry

from lockclient.model.lock_name import check_name
from lockclient.stores.service_protocol import ServiceStore
from mutexdash.data.live import Live, Moment
from mutexdash.data.query import BadParameter
from mutexdash.security.guard import guard
from mutexdash.web.response_cache import shared


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard.

    Attributes:
        live: what there is to show.
        store: asked for what the table does not keep.
        registry: the metrics of this dashboard.
        url: the store's URL as people may see it, for the commands that pages propose.
        build: changes with templates and static files, so that no page of before is kept.
    """

    live: Live
    store: ServiceStore
    registry: CollectorRegistry
    url: str
    build: str

    def moment(self) -> Moment:
        """Return what there is to see now, or answer 503 before everything was read once."""
        moment = self.live.moment()
        if moment is None:
            where = f"{self.store.can.display_name} at {', '.join(self.store.endpoints())}"
            abort(503, f"The locks have not been read yet: {where} has not answered so far.")
        return moment


def attach(app: Flask, dashboard: Dashboard) -> None:
    """Make it known to the application's views."""
    app.extensions["mutexdash"] = dashboard


def dashboard() -> Dashboard:
    """Return the dashboard of the current application."""
    return cast(Dashboard, current_app.extensions["mutexdash"])


def name_asked_for(name: str | None) -> str:
    """Return the lock's name from the path, or else from `?name=`.

    Raises:
        BadParameter: there is neither.
        InvalidLockName: no lock can have that name.
    """
    if name is None:
        name = request.args.get("name")
    if name is None:
        raise BadParameter("The parameter name is missing: give the lock's name.")
    return check_name(name)


def unchanged(tag: str | None) -> Response | None:
    """Return what can be answered at once: 304 if the client has what `tag` names already, or
    what another viewer has just been answered; else None."""
    if tag is None:
        return None
    if request.if_none_match.contains_weak(_of_this_build(tag)):
        return tagged(Response(status=304), tag)
    return shared(_of_this_build(tag), dashboard().live.now())


def cached(tag: str, make: Callable[[], Response | str]) -> Response:
    """Return what can be answered at once, see `unchanged`; else what `make` returns, tagged."""
    same = unchanged(tag)
    return tagged(make(), tag) if same is None else same


def tagged(answer: Response | str, tag: str | None) -> Response:
    """Return the answer with its ETag, None for one that is to be asked for again.

    The tag is weak: the moment of the answer and all durations differ between two answers with
    one tag, and a page counts those on by itself.
    """
    response = make_response(answer)
    if tag is not None:
        response.set_etag(_of_this_build(tag), weak=True)
    return response


def _of_this_build(tag: str) -> str:
    return f"{tag}-{dashboard().build}-{guard().viewer_cache_key()}"
