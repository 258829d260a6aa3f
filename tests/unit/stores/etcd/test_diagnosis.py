"""What a doctor makes of what a cluster says, without one that has the trouble."""

from __future__ import annotations

import pytest

from lockclient.model.announcement import announced_at
from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Finding, History, Member
from lockclient.stores.etcd import diagnosis

NOW = 1_800_000_000.0


def levels(findings: list[Finding], check: str) -> list[str]:
    return [finding.level for finding in findings if finding.check == check]


def member(version: str = "3.5.9", **values: object) -> Member:
    return Member("h:2379", version, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "level"),
    [
        *(("3.5.0", WARNING), ("3.5.1", WARNING), ("3.5.2", WARNING), ("3.5.3", None)),
        *(("3.4.23", None), ("3.7.3", None), ("3.3.27", WARNING), ("odd", None)),
        *(("3.8.0", FINE), ("3.10.1", FINE), ("4.0.0", FINE)),
    ],
)
def test_versions_with_known_bugs_and_untested_ones_are_named(
    version: str, level: str | None
) -> None:
    """3.5.0 to 3.5.2 can lose data when they crash; a version after the tested ones may be fine."""
    found = [
        finding
        for finding in diagnosis.judge_members([member(version)])
        if finding.check == "version" and "before it is upgraded" not in finding.text.lower()
    ]
    assert [finding.level for finding in found] == ([level] if level else [])
    for finding in found:
        assert version in finding.text
        assert bool(finding.advice) is (level == WARNING)


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        ("3.5.35", ["from 3.5 to 3.6", "as 3.5: else 3.6 may end"]),
        ("3.6.16", ["from 3.6 to 3.7", "as 3.6: else 3.7 may end"]),
        *(("3.4.23", []), ("3.7.3", [])),
    ],
)
def test_what_an_upgrade_needs_is_said_once(version: str, notes: list[str]) -> None:
    found = list(diagnosis.judge_members([member(version)] * 3))
    assert levels(found, "version") == [FINE] * bool(notes)
    text = "".join(finding.text for finding in found if finding.check == "version")
    assert all(note in text for note in notes)


def test_members() -> None:
    """Who is away is a warning while others answer; alarms and unnamed members are told."""
    away = Member("b:2379", trouble="connection refused")
    here = member(cluster=("a (u)", "b (u)", "c (u)"), alarms=("NOSPACE",))
    found = list(diagnosis.judge_members([here, away]))
    assert levels(found, "member") == [FINE, ERROR, WARNING]
    assert "NOSPACE" in found[1].text
    assert "connection refused" in found[2].text
    assert levels(found, "cluster") == [WARNING]
    assert "3 members, of which 2 are named" in found[-1].text
    assert levels(list(diagnosis.judge_members([away])), "member") == [ERROR]


def test_members_of_different_versions() -> None:
    """An upgrade that stopped half way."""
    found = list(diagnosis.judge_members([member("3.4.1"), member("3.7.3")]))
    assert levels(found, "version") == [WARNING]


@pytest.mark.parametrize(
    ("size", "in_use", "told"),
    [
        (0.5, 0.5, ""),
        (0.85, 0.8, "85% of its quota"),
        (0.85, 0.2, "Defragment"),
        (1.1, 1.1, "110%"),
    ],
)
def test_an_etcd_that_fills_up(size: float, in_use: float, told: str) -> None:
    """By its own figures, and what helps; one that does not say them is not judged."""
    quota = 2 << 30
    filled = member(size=int(size * quota), in_use=int(in_use * quota), quota=quota)
    found = [finding for finding in diagnosis.judge_members([filled]) if finding.check == "space"]
    assert [finding.level for finding in found] == [WARNING] * bool(told)
    assert all(told in finding.text + finding.advice for finding in found)
    assert not levels(list(diagnosis.judge_members([member(size=quota)])), "space")


@pytest.mark.parametrize(
    ("kept", "ago", "oldest", "level", "told"),
    [
        (500, None, 1, FINE, "500 revisions of history."),
        (2_000_000, 7000.0, 9, FINE, "at least 1 h 56 min back."),
        (500, 40_000.0, 9, WARNING, "11 h 6 min back. It is not compacted."),
        (500, 40_000.0, 1, WARNING, "It is not compacted, and never was."),
        (2_000_000, None, 9, WARNING, "2,000,000 revisions of history. It is not compacted."),
        (500, -9000.0, 9, FINE, "500 revisions of history."),
    ],
)
def test_an_etcd_that_does_not_compact(
    kept: int, ago: float | None, oldest: int, level: str, told: str
) -> None:
    """By how long ago an unlocker wrote the oldest that can be read, else by how much it is."""
    sign = "" if ago is None else f'{{"now": {NOW - ago}}}'
    found = diagnosis.judge_history(History(oldest + kept, oldest, sign), NOW)
    assert (found.check, found.level) == ("history", level)
    assert found.text.endswith(told)
    assert bool(found.advice) == (level != FINE)


@pytest.mark.parametrize(("slowest", "level"), [(0.01, FINE), (0.2, WARNING), (3.0, ERROR)])
def test_latency(slowest: float, level: str) -> None:
    """By the one in a hundred that took longest."""
    found = diagnosis.judge_latency([0.002] * 49 + [slowest], "unlocks")
    assert found.level == level
    assert "p50 2.0 ms" in found.text
    assert f"p99 {slowest * 1000:.1f} ms" in found.text
    assert bool(found.advice) == (level != FINE)


def test_rights() -> None:
    """Which of the programs could run with them."""
    none = dict.fromkeys(diagnosis.FOLDERS, False)
    (found,) = diagnosis.judge_rights(none, "o", auth=None)
    assert found.level == FINE
    assert "need: dashboard" in found.text
    everything = dict.fromkeys(none, True)
    found, auth = diagnosis.judge_rights(everything, None, auth=False)
    assert "client, unlocker, dashboard, operator" in found.text
    assert auth.level == WARNING
    found, auth = diagnosis.judge_rights(everything, None, auth=False, certified=True)
    assert found.text.startswith("Everybody with a certificate may")
    assert auth.level == FINE
    half = none | {"locks": True}
    assert [finding.level for finding in diagnosis.judge_rights(half, "o", auth=True)] == [
        FINE,
        WARNING,
        FINE,
    ]
    (unknown,) = diagnosis.judge_rights({}, "o", auth=None)
    assert unknown.level == WARNING


def test_a_member_that_does_not_tell_its_time_is_no_clock() -> None:
    assert diagnosis.clock_of(member()) is None


@pytest.mark.parametrize("said", [f"1{'0' * 400}", "NaN", "Infinity", '"1"', "null", "1e400"])
def test_what_is_no_time_is_not_compared(said: str) -> None:
    """Whoever may write an unlocker's announcement may write anything."""
    assert announced_at(f'{{"now": {said}}}') is None
    assert announced_at('{"now": 1.8e9}') == 1.8e9
