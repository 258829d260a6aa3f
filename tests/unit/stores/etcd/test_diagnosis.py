"""The limits at which `doctor` reports a fault of etcd; more in `doctor_cases.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from lockclient.model.announcement import announced_at
from lockclient.stores.etcd import diagnosis
from lockclient.stores.etcd.members import Member
from lockclient.stores.findings import FINE, WARNING, Finding

QUOTA = 2 << 30


def member(version: str = "3.7.3", **values: object) -> Member:
    return Member("h:2379", version, **values)  # type: ignore[arg-type]


def filled(size: float, in_use: float) -> Iterable[Finding]:
    parts: dict[str, Any] = {
        "size": int(size * QUOTA),
        "in_use": int(in_use * QUOTA),
        "quota": QUOTA,
    }
    return diagnosis.judge_members([member(**parts)])


def took(slowest: float) -> Iterable[Finding]:
    return [diagnosis.judge_latency([0.002] * 49 + [slowest], "unlocks")]


NO_RIGHTS = dict.fromkeys(diagnosis.FOLDERS, False)
AWAY = Member("b:2379", trouble="connection refused")
ROWS = [
    # 3.5.0 to 3.5.2 can lose data when they crash; a version after the tested ones may be fine.
    *(
        (diagnosis.judge_members([member(version)]), "version", level, "")
        for version, level in (
            *(("3.5.0", "warning"), ("3.5.2", "warning"), ("3.4.23", ""), ("3.7.3", "")),
            *(("3.3.27", "warning"), ("odd", ""), ("3.8.0", "ok"), ("3.10.1", "ok")),
        )
    ),
    (diagnosis.judge_members([AWAY]), "member", "error", "connection refused"),
    (filled(0.5, 0.5), "space", "", ""),
    (filled(0.85, 0.8), "space", "warning", "85% of its quota"),
    (filled(0.85, 0.2), "space", "warning", "Defragment"),
    (filled(1.1, 1.1), "space", "warning", "110%"),
    (diagnosis.judge_members([member(size=QUOTA)]), "space", "", ""),
    (took(0.01), "latency", "ok", "p50 2.0 ms, p99 10.0 ms."),
    (took(0.2), "latency", "warning", "p99 200.0 ms"),
    (took(3.0), "latency", "error", "p99 3000.0 ms"),
    (diagnosis.judge_rights(NO_RIGHTS, "o", auth=None), "rights", "ok", "need: dashboard"),
]


@pytest.mark.parametrize(("found", "check", "level", "told"), ROWS)
def test_limits(found: Iterable[Finding], check: str, level: str, told: str) -> None:
    """By a member's own figures; what it does not say is not judged."""
    these = [finding for finding in found if finding.check == check]
    assert [finding.level for finding in these] == level.split()
    for finding in these:
        assert told in f"{finding.text} {finding.advice}"
        assert finding.advice or finding.level == FINE


def test_an_unreachable_member_beside_reachable_ones_is_a_warning() -> None:
    found = list(diagnosis.judge_members([member(), AWAY]))
    assert [finding.level for finding in found if finding.check == "member"] == [FINE, WARNING]


@pytest.mark.parametrize("said", [f"1{'0' * 400}", "NaN", "Infinity", '"1"', "null", "1e400"])
def test_a_malformed_time_of_an_announcement_is_ignored(said: str) -> None:
    assert announced_at(f'{{"now": {said}}}') is None
    assert announced_at('{"now": 1.8e9}') == 1.8e9
