"""The alert rules by promtool, their links, the runbook, and Alertmanager's file by amtool."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lockclient.cli.setup.etcd_server import Etcd
from tests.support.processes import needed, run_to_end

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "deploy"
RULES = DEPLOY / "prometheus/clustermutex.rules.yml"
RUNBOOK = CHECKOUT / "docs/runbook.md"
CASES = sorted((Path(__file__).parent / "rules").glob("*.yml"))
WANTED = {
    *("LockPastAlert", "LockOverdue", "LockAutoUnlocked", "LockQueueLong", "LockFreeWithWaiters"),
    *("LockDeadlock", "LockHeldTooLong"),
    *("BrokenLock", "LockUndecided", "LockKeptByRestarts", "UnlockerRestarting"),
    *("UnlockerDown", "UnlockerStale", "UnlockerRateLimit", "ClockSkew", "EtcdFailing"),
    *("UnlockerSnapshotStale", "NoUnlockerSees", "DashboardDown", "Watchdog"),
    *("NotificationsOff", "NotificationsFailing"),
    "ServerWithoutVote",
    *("EtcdOutOfSpace", "EtcdNearlyFull", "EtcdNotCompacted", "EtcdRestored"),
}
OF_LOCKS = (
    r"clustermutex_(locks?_|locks\b|longest_queue|unlockers\b|client_clock"
    r"|unlocker_(rate_limit|locks_kept|removal_failing|store_out_of_space))"
)
"""Gauges that an unlocker does not export while it does not see the locks."""


def rules() -> list[dict[str, Any]]:
    groups = YAML(typ="safe").load(RULES)["groups"]
    return [rule for group in groups for rule in group["rules"]]


def run(checker: str, *words: str | Path) -> None:
    """Run a checker, which says what it does not like."""
    run_to_end(needed(checker), *words)


@pytest.mark.parametrize("config", ["prometheus.yml", "kubernetes.yml"])
def test_prometheus_takes_its_files(config: str) -> None:
    """The rules that they name included."""
    run("promtool", "check", "config", DEPLOY / "prometheus" / config)


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_rules_fire_and_end_when_they_should(cases: Path) -> None:
    """`rules/*.yml`: each threshold from both sides, what is said, and an unlocker that died."""
    run("promtool", "test", "rules", cases)


def test_all_alerts_are_there_and_each_is_tested() -> None:
    """In its threshold and in its words."""
    assert {rule["alert"] for rule in rules()} == WANTED
    texts = {path.stem: path.read_text(encoding="utf-8") for path in CASES}
    assert {*re.findall(r"- alertname: (\w+)", texts.pop("annotations"))} == WANTED
    assert {*re.findall(r'alertname="(\w+)"', "".join(texts.values()))} == WANTED


def test_etcd_has_the_metrics_of_the_rules(etcd: Etcd) -> None:
    with urllib.request.urlopen(f"http://{etcd.endpoint}/metrics", timeout=30) as answer:
        there = {*re.findall(r"^(etcd_\w+)", answer.read().decode(), re.MULTILINE)}
    asked = {*re.findall(r"\betcd_\w+", RULES.read_text(encoding="utf-8"))}
    assert asked
    assert asked <= there


def test_alertmanager_takes_its_file() -> None:
    run("amtool", "check-config", DEPLOY / "alertmanager/alertmanager.yml")


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"severity": "critical"}, "pager"),
        ({"severity": "warning"}, "people"),
        ({"severity": "none", "alertname": "Watchdog"}, "watchdog"),
        ({}, "people"),
    ],
)
def test_only_critical_alerts_page(labels: dict[str, str], receiver: str) -> None:
    words = [f"{label}={value}" for label, value in labels.items()]
    config = f"--config.file={DEPLOY / 'alertmanager/alertmanager.yml'}"
    run(
        *("amtool", "config", "routes", "test", config),
        *(f"--verify.receivers={receiver}", "service=clustermutex", *words),
    )


def test_unlocker_down_inhibits_only_alerts_from_unlockers() -> None:
    target = inhibitions("UnlockerDown")[0]["target_matchers"]
    (names,) = [matcher.partition("!~")[2].strip('"') for matcher in target if "!~" in matcher]
    others = {
        rule["alert"]
        for rule in rules()
        if "clustermutex_" not in rule["expr"] and rule["alert"] != "UnlockerDown"
    }
    assert {*names.split("|")} == others


def test_an_alert_of_a_blind_unlockers_missing_gauges_does_not_end_while_none_sees() -> None:
    """It keeps firing, and then its end is held back."""
    (inhibition,) = inhibitions("NoUnlockerSees")
    names = inhibition["target_matchers"][1].partition("=~")[2].strip('"')
    missing = [rule for rule in rules() if re.search(OF_LOCKS, rule["expr"])]
    assert {*names.split("|")} == {rule["alert"] for rule in missing} - {"NoUnlockerSees"}
    for rule in missing:
        if rule["alert"] != "NoUnlockerSees":
            assert rule.get("keep_firing_for") == "3m" or "_over_time" in rule["expr"]


@pytest.mark.parametrize(
    "file",
    [
        *("prometheus/clustermutex.rules.yml", "kubernetes/monitoring/rules.yaml"),
        "grafana/clustermutex.json",
    ],
)
def test_the_greatest_age_of_a_lock_decides_and_no_clock_of_prometheus(file: str) -> None:
    """A restarted unlocker counts a lock's time anew; by `min` it would put the alert off."""
    text = (DEPLOY / file).read_text(encoding="utf-8")
    taken = re.findall(r"(\w+) by \([^)]*\)\s*\(clustermutex_lock_\w+_seconds\b", text)
    assert {*taken} == {"max"}
    code = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    assert not re.findall(r"\btime\(\)|_timestamp_", code)


def test_the_rules_of_one_alert_wait_equally_long() -> None:
    """Those with series of their own, and the number of the others."""
    for alert in ("LockPastAlert", "LockOverdue", "LockHeldTooLong", "LockAutoUnlocked"):
        first, unlisted = (rule for rule in rules() if rule["alert"] == alert)
        assert first.get("for") == unlisted.get("for"), alert


def test_the_rate_limit_holds_no_alert_back() -> None:
    """A lock that can't be removed rings while it is on; LockOverdue itself leaves out the rest."""
    assert inhibitions("UnlockerRateLimit") == []


def inhibitions(source: str) -> list[dict[str, Any]]:
    config = YAML(typ="safe").load(DEPLOY / "alertmanager/alertmanager.yml")
    return [
        inhibition
        for inhibition in config["inhibit_rules"]
        if source in str(inhibition["source_matchers"])
    ]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alerts_have_a_severity_and_links(rule: dict[str, Any]) -> None:
    assert rule["labels"]["service"] == "clustermutex"  # what inhibition looks for
    assert rule["labels"]["severity"] in ("warning", "critical", "none")
    assert (rule["labels"]["severity"] == "none") == (rule["alert"] == "Watchdog")
    said = rule["annotations"]
    assert {"summary", "description", "dashboard_url", "runbook_url"} <= said.keys()
    assert said["runbook_url"].endswith(f"}}#{rule['alert'].lower()}")


def test_every_link_leads_to_a_section_of_the_runbook_and_every_section_is_led_to() -> None:
    """A section's anchor is its heading in lower case, as GitHub and others make it."""
    text = RUNBOOK.read_text(encoding="utf-8")
    headings = Counter(re.findall(r"^## (.+)$", text, re.MULTILINE))
    assert headings == Counter(WANTED)
    inside = {*re.findall(r"\]\(#(\w+)\)", text)}
    assert inside <= {heading.lower() for heading in headings}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        for part in ("**It means:**", "**Look at:**", "**Do:**"):
            assert part in section, f"{section.split()[0]} lacks {part}"


def test_link_targets_are_set_in_one_place() -> None:
    assert "http://" not in RULES.read_text(encoding="utf-8")
    (rule,) = YAML(typ="safe").load(DEPLOY / "prometheus/links.rules.yml")["groups"][0]["rules"]
    assert rule["record"] == "clustermutex:links:info"
    assert rule["labels"].keys() == {"dashboard", "runbook"}
    assert not any(link.endswith("/") for link in rule["labels"].values())
