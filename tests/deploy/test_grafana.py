"""The Grafana dashboard can be provisioned from its file, and each of its queries has data."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lockclient import ClusterMutex
from tests.deploy.stack import Stack
from tests.support.etcd_store import etcd_store
from tests.support.processes import wait_until

GRAFANA = Path(__file__).parents[2] / "deploy/grafana"
TEXT = (GRAFANA / "clustermutex.json").read_text(encoding="utf-8")
BOARD: dict[str, Any] = json.loads(TEXT)
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> dict[str, str]:
    """Return what is asked of Prometheus, as Grafana would ask it for all clusters."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
    } | {annotation["name"]: annotation["expr"] for annotation in BOARD["annotations"]["list"]}
    return {
        name: text.replace("$cluster", ".*").replace("$__rate_interval", "20s")
        for name, text in found.items()
    }


@pytest.fixture(scope="module")
def busy(stack: Stack) -> Iterator[Stack]:
    """The stack with locks past their alert, held too long, released, auto-unlocked; a waiter."""
    store = etcd_store(stack.settings)

    def lock(name: str, auto_unlock_after: float | None = None, **more: Any) -> ClusterMutex:
        return ClusterMutex(
            *(name,), expected_runtime=1, auto_unlock_after=auto_unlock_after, store=store, **more
        )

    late, silent = lock("board-late", reason="shows"), lock("board-silent", 2)
    long = lock("board-long", max_hold=1, keepalive=True)
    assert long.acquire()
    assert late.acquire()
    assert silent.acquire()
    waiter = lock("board-late", timeout=120)
    waiting = threading.Thread(target=waiter.acquire)
    waiting.start()
    with lock("board-quick"):
        pass
    wait_until(
        lambda: stack.query('clustermutex_lock_auto_unlocked_age_seconds{name="board-silent"}'),
        what="the auto-unlock to be scraped",
    )
    wait_until(
        lambda: stack.query('clustermutex_lock_held_too_long_info{name="board-long"}'),
        what="the lock held too long to be scraped",
    )
    yield stack
    long.release()
    late.release()
    waiting.join()
    waiter.release()
    store.close()


def test_the_dashboard_can_be_provisioned() -> None:
    assert BOARD["uid"] == "clustermutex"
    assert BOARD.get("id") is None
    assert "__inputs" not in BOARD
    assert "__requires" not in BOARD
    provider = YAML(typ="safe").load(GRAFANA / "provisioning.yml")["providers"][0]
    assert provider["type"] == "file"


def test_each_panel_uses_the_chosen_data_source() -> None:
    kinds = {variable["name"]: variable["type"] for variable in BOARD["templating"]["list"]}
    assert kinds["datasource"] == "datasource"
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        assert panel["datasource"] == chosen
    assert BOARD["annotations"]["list"][0]["datasource"] == chosen
    assert {"cluster", "mutexdash"} <= kinds.keys()


def test_panels_have_numbers_of_their_own_and_do_not_lie_on_each_other() -> None:
    """Grafana would move them, and write another file than this."""
    every = BOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in every)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_panels_of_the_dashboard() -> None:
    titles = {panel["title"]: panel for panel in PANELS}
    assert [target["legendFormat"] for target in titles["Locks"]["targets"]][:3] == [
        "held",
        "past alert",
        "overdue",
    ]
    assert [target["legendFormat"] for target in titles["Waiters"]["targets"]] == [
        "all",
        "longest queue",
        "free locks with waiters",
    ]
    assert titles["Time held"]["type"] == "heatmap"
    assert titles["Time held"]["targets"][0]["format"] == "heatmap"
    assert {"Waiters", "Removals", "Since the last success"} <= titles.keys()


@pytest.mark.parametrize("name", queries())
def test_a_query_has_data(busy: Stack, name: str) -> None:
    """Valid PromQL of metrics that there are; and numbers, not NaN."""
    expression = queries()[name]

    def numbers() -> list[float]:
        found = [float(sample["value"][1]) for sample in busy.query(expression)]
        return [] if any(math.isnan(number) for number in found) else found

    wait_until(numbers, what=f"data of {expression}")


def test_its_figures_are_right(busy: Stack) -> None:
    """Lower bounds only: other tests may hold locks here, too."""
    asked = queries()

    def at_least(name: str, least: float) -> bool:
        samples = busy.query(asked[name])
        return bool(samples) and max(float(sample["value"][1]) for sample in samples) >= least

    for name, least in {
        "Locks A": 1,
        "Locks B": 1,
        "Waiters A": 1,
        "Waiters B": 1,
        "Past their alert now A": 0.1,
    }.items():
        wait_until(lambda name=name, least=least: at_least(name, least), what=name)  # type: ignore[misc]
    late = busy.query(asked["Past their alert now A"])
    (mine,) = [sample["metric"] for sample in late if sample["metric"]["name"] == "board-late"]
    assert mine["reason"] == "shows"
