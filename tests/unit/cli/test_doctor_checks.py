"""What a doctor makes of what it finds, without a cluster that has the trouble."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lockclient.cli.operate import doctor_checks
from lockclient.cli.operate.doctor_checks import Clock
from lockclient.model.holder import Holder
from lockclient.overview.columns import Listed
from lockclient.overview.rows import Row
from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Finding, History, Member

NOW = 1_800_000_000.0


def levels(findings: list[Finding], check: str) -> list[str]:
    return [each.level for each in findings if each.check == check]


def member(version: str = "3.5.9", **values: object) -> Member:
    return Member("h:2379", version, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "level"),
    [
        *(("3.5.0", WARNING), ("3.5.1", WARNING), ("3.5.2", WARNING), ("3.5.3", None)),
        *(("3.4.23", None), ("3.6.0", None), ("3.3.27", WARNING), ("4.0.0", None), ("odd", None)),
    ],
)
def test_versions_with_known_bugs_are_named(version: str, level: str | None) -> None:
    """3.5.0 to 3.5.2 can lose data when they crash."""
    found = [each for each in doctor_checks.members([member(version)]) if each.check == "version"]
    assert [each.level for each in found] == ([level] if level else [])
    for each in found:
        assert version in each.text
        assert each.advice


def test_members() -> None:
    """Who is away is a warning while others answer; alarms and unnamed members are told."""
    away = Member("b:2379", trouble="connection refused")
    here = member(cluster=("a (u)", "b (u)", "c (u)"), alarms=("NOSPACE",))
    found = list(doctor_checks.members([here, away]))
    assert levels(found, "member") == [FINE, ERROR, WARNING]
    assert "NOSPACE" in found[1].text
    assert "connection refused" in found[2].text
    assert levels(found, "cluster") == [WARNING]
    assert "3 members, of which 2 are named" in found[-1].text
    assert levels(list(doctor_checks.members([away])), "member") == [ERROR]


def test_members_of_different_versions() -> None:
    """An upgrade that stopped half way."""
    found = list(doctor_checks.members([member("3.4.1"), member("3.5.9")]))
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
    found = [each for each in doctor_checks.members([filled]) if each.check == "space"]
    assert [each.level for each in found] == [WARNING] * bool(told)
    assert all(told in each.text + each.advice for each in found)
    assert not levels(list(doctor_checks.members([member(size=quota)])), "space")


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
    found = doctor_checks.history(History(oldest + kept, oldest, sign), NOW)
    assert (found.check, found.level) == ("history", level)
    assert found.text.endswith(told)
    assert bool(found.advice) == (level != FINE)


@pytest.mark.parametrize(("slowest", "level"), [(0.01, FINE), (0.2, WARNING), (3.0, ERROR)])
def test_latency(slowest: float, level: str) -> None:
    """By the one in a hundred that took longest."""
    found = doctor_checks.latency([0.002] * 49 + [slowest], "unlocks")
    assert found.level == level
    assert "p50 2.0 ms" in found.text
    assert f"p99 {slowest * 1000:.1f} ms" in found.text
    assert bool(found.advice) == (level != FINE)


def test_rights() -> None:
    """Which of the programs could run with them."""
    none = dict.fromkeys(("locks", "queue", "withdrawn", "removed", "code", "unlockers"), False)
    (found,) = doctor_checks.rights(none, "o", auth=None)
    assert found.level == FINE
    assert "need: dashboard" in found.text
    everything = dict.fromkeys(none, True)
    found, auth = doctor_checks.rights(everything, None, auth=False)
    assert "client, unlocker, dashboard, operator" in found.text
    assert auth.level == WARNING
    half = none | {"locks": True}
    assert [each.level for each in doctor_checks.rights(half, "o", auth=True)] == [
        FINE,
        WARNING,
        FINE,
    ]
    (unknown,) = doctor_checks.rights({}, "o", auth=None)
    assert unknown.level == WARNING


def test_unlockers() -> None:
    """None is an error; what one says of itself may be anything."""
    assert doctor_checks.unlockers({}).level == ERROR
    found = doctor_checks.unlockers(
        {"a": '{"version": "1.2"}', "b": "[" * 100_000, "c\x1b": '"text"'}
    )
    assert found.level == FINE
    assert found.text == r"3 running: a (version 1.2), b, c\x1b."


def test_clocks() -> None:
    """Only what is certain: a found stamp tells that a clock is ahead, never that it is behind."""

    def row(alive_at: float, *, found: bool) -> Row:
        holder = Holder("x", "u", "h", alert_at=alive_at + 5, expected_runtime=5)
        return Row(holder, time.monotonic(), found)

    def found(*rows: Row) -> list[Finding]:
        clocks = [doctor_checks.of_holder(each, NOW, each.seen_at) for each in rows]
        return list(doctor_checks.clocks([each for each in clocks if each]))

    assert [each.level for each in found(row(NOW - 600, found=True))] == [FINE]
    (ahead,) = found(row(NOW + 30, found=True))
    assert "host h is 30 s ahead" in ahead.text
    (behind,) = found(row(NOW - 30, found=False), row(NOW - 31, found=False))
    assert "host h is 30 s behind" in behind.text
    (fine,) = doctor_checks.clocks([Clock("etcd", -2.2, -1.2)])
    assert fine.level == FINE
    assert "etcd" in fine.text
    assert doctor_checks.of_member(member()) is None


def test_locks() -> None:
    """Past their alert or their end, broken, never expiring, undecided: each named and advised."""

    def lock(name: str, alert: float, end: float | None, **facts: Any) -> Listed:
        after = None if end is None else 10 + end - alert
        holder = Holder(
            *(name, "u", "h"), alert_at=NOW + alert, expected_runtime=10, auto_unlock_after=after,
            auto_unlock_at=None if end is None else NOW + end, **facts,
        )  # fmt: skip
        return Listed(holder, holder.state(NOW), 0)

    found = list(
        doctor_checks.locks(
            [
                *(lock("fine", 5, 9), lock("past", -5, 9), lock("gone", -9, -5)),
                *(lock("ever", 5, None), Listed(Holder("odd", uuid="u"), "broken", 0)),
                lock("new", 5, 9, needs=("two-keys",)),
            ],
            NOW,
        )
    )
    told = {each.text.split("'")[1]: each for each in found if "'" in each.text}
    assert {name: each.level for name, each in told.items()} == {
        "odd": ERROR,
        "past": WARNING,
        "gone": WARNING,
        "ever": WARNING,
        "new": WARNING,
    }
    assert all(each.advice for each in told.values())
    assert "undecided" in told["new"].text
    assert found[-1] == Finding("locks", FINE, "6 locks held: 2 well, 4 not, as told above.")
    (late, *_) = doctor_checks.locks([lock("gone", -900, -600)], NOW)
    assert late.level == ERROR, "an unlocker would have removed it long ago"
    many = next(doctor_checks.locks([lock(f"n{each}", -1, 9) for each in range(7)], NOW))
    assert "7 locks ('n0', 'n1', 'n2', 'n3', 'n4' and 2 more)" in many.text


@pytest.mark.parametrize("said", [10**400, float("nan"), float("inf"), "1", None])
def test_what_is_no_time_is_not_compared(said: object) -> None:
    """Whoever may write an unlocker's sign of life may write anything."""
    assert not doctor_checks.is_time(said)
    assert doctor_checks.is_time(1.8e9)
