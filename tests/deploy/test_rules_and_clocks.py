"""The alert rules on what unlockers export: one right, one of a wrong clock, one blind, one new.

The unlockers are real and run in virtual time; promtool evaluates the rules on their scrapes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from ruamel.yaml import YAML

from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from tests.deploy.test_rules import DEPLOY, RULES, run
from tests.simulation.hub import Hub
from tests.simulation.site import Site, UnlockerProcess, virtual_site

SCRAPE_S = 15
SCRAPES = 48
"""Twelve minutes: ClockSkew needs five."""
USED = {*re.findall(r"\bclustermutex_\w+", RULES.read_text(encoding="utf-8"))}

TRUE = {
    *("LockPastAlert late", "LockPastAlert stuck", "LockOverdue stuck", "LockHeldTooLong long"),
    *("LockFreeWithWaiters free", "LockAutoUnlocked gone"),
    *("ClockSkew off", "ClockSkew wrong"),
    *("UnlockerSnapshotStale blind", "UnlockerStale blind"),
    # etcd refuses the removal of `stuck`, or does not answer.
    *(f"EtcdFailing {instance}" for instance in ("right", "wrong", "blind", "restarted")),
}
"""The alerts that are right, with the lock, host or unlocker that they name."""


class Scrapes:
    """Prometheus' samples of several unlockers, as `promtool test rules` reads them."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = defaultdict(list)
        self._count = 0

    def scrape(self, services: dict[str, UnlockerProcess]) -> None:
        """Add one scrape of each; a series that is missing goes stale, as in Prometheus."""
        found: dict[str, str] = {}
        for instance, service in services.items():
            found[f'up{{job="unlocker", instance="{instance}"}}'] = "1"
            for family in parse(service.get("/metrics")[1]):
                for name, labels, value, *_ in family.samples:
                    texts = {"job": "unlocker", "instance": instance, **labels}
                    if name in USED:
                        inner = ", ".join(f"{key}={json.dumps(texts[key])}" for key in texts)
                        found[f"{name}{{{inner}}}"] = f"{value:f}"
        for series in {*self._values, *found}:
            known = self._values[series]
            known += ["_"] * (self._count - len(known))
            is_new_gap = known and known[-1] not in ("_", "stale")
            known.append(found.get(series, "stale" if is_new_gap else "_"))
        self._count += 1

    def fired(self, folder: Path, expected: set[str]) -> None:
        """Fail unless just these alerts have fired by the end."""
        alerts = 'max_over_time(ALERTS{alertstate="firing", alertname!="Watchdog"}[1h])'
        one = "group by (alertname, subject) (label_join(%s, 'subject', '', %s))"
        labels = "'name', 'hostname'"
        # The holder's host is a label of LockAutoUnlocked, too; its name comes first.
        named = f'label_replace({alerts}, "hostname", "", "name", ".+")'
        by_unlocker = f'label_replace({named}, "name", "$1", "instance", "(.+)")'
        case = {
            "interval": f"{SCRAPE_S}s",
            "input_series": [
                {"series": series, "values": " ".join(values)}
                for series, values in self._values.items()
            ],
            "promql_expr_test": [
                {
                    "expr": one % (by_unlocker, labels),
                    "eval_time": f"{SCRAPES * SCRAPE_S}s",
                    "exp_samples": [
                        {"labels": f'{{alertname="{alert}", subject="{subject}"}}', "value": 1}
                        for alert, _, subject in (text.partition(" ") for text in expected)
                    ],
                }
            ],
        }
        content = {
            "rule_files": [str(RULES), str(DEPLOY / "prometheus/links.rules.yml")],
            "evaluation_interval": f"{SCRAPE_S}s",
            "tests": [case],
        }
        path = folder / "scrapes.yml"
        YAML(typ="safe").dump(content, path)
        run("promtool", "test", "rules", path)


@pytest.fixture
def site() -> Iterator[Site]:
    with virtual_site() as found:
        yield found


def push(site: Site, name: str, host: str, behind: float = 0.0, **about: Any) -> None:
    """Have a host whose clock is so far behind push a lock."""
    wall = site.wall - behind
    facts = {"expected_runtime": 100, "auto_unlock_after": 200, **about}
    site.foreign(name, wall + 100, wall + 200, hostname=host, about=json.dumps(facts))


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_only_true_alerts_fire_beside_a_wrong_clock(
    site: Site, tmp_path: Path, ahead: float
) -> None:
    site.hub.clock_offsets = lambda: [-Hub.current.process.wall_ahead]
    began = site.wall
    old = Removal(Holder("old", "u", "h"), began - 1200, "unlocker@a:1", AUTO_UNLOCK, "silent")
    site.write({"removed/old/u": old.value()})
    services = {"right": site.unlocker()}
    site.foreign("late", began + 5, began + 1800)
    # Its own time is over in two hours.
    push(site, "in-time", "right", max_hold=7200, locked_at=began)
    site.run(10)

    services["wrong"] = site.unlocker(ready=False)
    services["wrong"].process.wall_ahead = ahead
    services["blind"], services["restarted"] = site.unlocker(), site.unlocker()
    site.until(services["wrong"].ready, "readiness")
    site.cut_off(services["blind"], 3600)
    site.foreign("gone", site.wall + 1, site.wall + 3)
    site.write({"queue/free/x": "{}"})
    scrapes = Scrapes()
    with site.refusing("/removed/stuck/"):
        site.foreign("stuck", site.wall + 1, site.wall + 3)
        for number in range(SCRAPES + 1):
            if number % 4 == 0:
                push(site, "long", "right", max_hold=60, locked_at=began)
                push(site, "in-time", "right", max_hold=7200, locked_at=began)
                push(site, "skewed", "off", behind=50, locked_at=began)
            if number == SCRAPES // 2:
                services["restarted"].kill()
                services["restarted"] = site.unlocker()
            scrapes.scrape(services)
            site.run(SCRAPE_S)
    scrapes.fired(tmp_path, TRUE)
