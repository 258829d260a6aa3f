"""Kinds of conditions: the same durations as the alert rules."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

from lockclient.text.durations import parse_duration
from unlocker.notifications.conditions import KINDS, OVER_S

RULES = Path("deploy/prometheus/clustermutex.rules.yml")


def test_each_kind_lasts_as_long_as_its_rule() -> None:
    groups = YAML(typ="safe").load(RULES)["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for kind in KINDS.values():
        found = [rule for rule in rules if rule["alert"] == kind.rule]
        assert found, kind.rule
        for rule in found:
            assert parse_duration(rule.get("for", "0")) == kind.for_s, kind.rule
            assert parse_duration(rule.get("keep_firing_for", "3m")) == OVER_S, kind.rule
            assert rule["labels"]["severity"] == kind.severity, kind.rule
