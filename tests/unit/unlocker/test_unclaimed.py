"""Free locks with waiters are found by their state alone, and never too early."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.simulation.site import Site, UnlockerProcess

COUNT = "clustermutex_locks_free_with_waiters"
FREE = "clustermutex_lock_free_with_waiters_seconds"
LONG_S = 25.0
"""Seconds after which a lock that stayed free is shown."""


def shown(service: UnlockerProcess) -> dict[str, float]:
    """Return the names that are shown, and for how long they have been free."""
    families = {family.name: family for family in parse(service.get("/metrics")[1])}
    free = {sample.labels["name"]: sample.value for sample in families[FREE].samples}
    assert families[COUNT].samples[0].value == len(free)
    return free


def queue(site: Site, name: str, uuid: str = "x", host: str = "web-1", **more: object) -> None:
    site.write({f"queue/{name}/{uuid}": json.dumps({"hostname": host, **more})})


def leave(site: Site, name: str, uuid: str = "x") -> None:
    site.write({f"queue/{name}/{uuid}": None})


def hold(site: Site, name: str) -> None:
    site.foreign(name, site.wall + 600, site.wall + 900)


def test_a_free_lock_with_a_queue_is_shown_until_it_is_taken(site: Site) -> None:
    service = site.unlocker()
    put = site.wall
    queue(site, "a", pid=4711, reason="totals")
    site.run(13)
    assert shown(service) == {}
    site.run(LONG_S - 13)
    assert shown(service)["a"] == pytest.approx(site.wall - put, abs=2)
    hold(site, "a")
    site.run(600)
    assert shown(service) == {}
    site.clear("a")
    released = site.wall
    site.run(13)
    assert shown(service) == {}
    site.run(LONG_S - 13)
    assert shown(service)["a"] == pytest.approx(site.wall - released, abs=2)
    leave(site, "a")
    site.run(2)
    assert shown(service) == {}


def test_a_lock_taken_and_released_at_once_counts_as_taken(site: Site) -> None:
    service = site.unlocker()
    queue(site, "a")
    site.run(LONG_S)
    assert "a" in shown(service)
    hold(site, "a")
    site.clear("a")
    site.run(2)
    assert shown(service) == {}
    site.run(LONG_S)
    assert "a" in shown(service)


def test_a_new_head_of_the_queue_does_not_restart_the_time(site: Site) -> None:
    service = site.unlocker()
    put = site.wall
    queue(site, "a", "first")
    queue(site, "a", "second", "web-2")
    site.run(10)
    leave(site, "a", "first")
    site.run(LONG_S)
    assert shown(service)["a"] > site.wall - put - 2


def test_a_broken_lock_is_held_and_leftover_keys_are_not(site: Site) -> None:
    service = site.unlocker()
    for name in ("broken", "left"):
        queue(site, name)
    site.write({"locks/broken/uuid": "", "locks/left/reason": "of nobody"})
    site.run(LONG_S)
    assert [*shown(service)] == ["left"]


def test_without_a_current_table_nothing_is_shown(site: Site) -> None:
    service = site.unlocker()
    queue(site, "a")
    queue(site, "b")
    site.run(LONG_S)
    site.cut_off(service, 60)
    site.run(20)
    assert not service.ready()
    site.run(15)
    assert FREE not in {name.partition("{")[0] for name in service.figures()}
    hold(site, "b")
    site.clear("b")
    site.run(25)
    back = site.wall
    site.until(service.ready, "readiness")
    assert shown(service) == {}
    site.run(LONG_S + 15)
    assert {*shown(service)} == {"a", "b"}
    assert max(shown(service).values()) <= site.wall - back


def test_reading_all_again_does_not_begin_anew(site: Site) -> None:
    service = site.unlocker()
    site.run(1190)
    put = site.wall
    queue(site, "a")
    site.run(LONG_S)
    assert service.figures()["clustermutex_unlocker_table_loads_total"] == 2
    assert shown(service)["a"] > site.wall - put - 2
