"""What a doctor makes of what it finds, without a cluster that has the trouble."""

from __future__ import annotations

import time
from typing import Any

from lockclient.cli.operate import doctor_checks
from lockclient.model.holder import Holder
from lockclient.overview.columns import Listed
from lockclient.overview.rows import Row
from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Clock, Finding

NOW = 1_800_000_000.0


def levels(findings: list[Finding], check: str) -> list[str]:
    return [finding.level for finding in findings if finding.check == check]


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
        clocks = [doctor_checks.of_holder(entry, NOW, entry.seen_at) for entry in rows]
        return list(doctor_checks.clocks([clock for clock in clocks if clock]))

    assert [finding.level for finding in found(row(NOW - 600, found=True))] == [FINE]
    (ahead,) = found(row(NOW + 30, found=True))
    assert "host h is 30 s ahead" in ahead.text
    (behind,) = found(row(NOW - 30, found=False), row(NOW - 31, found=False))
    assert "host h is 30 s behind" in behind.text
    (fine,) = doctor_checks.clocks([Clock("etcd", -2.2, -1.2)])
    assert fine.level == FINE
    assert "etcd" in fine.text


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
    told = {finding.text.split("'")[1]: finding for finding in found if "'" in finding.text}
    assert {name: finding.level for name, finding in told.items()} == {
        "odd": ERROR,
        "past": WARNING,
        "gone": WARNING,
        "ever": WARNING,
        "new": WARNING,
    }
    assert all(finding.advice for finding in told.values())
    assert "undecided" in told["new"].text
    assert found[-1] == Finding("locks", FINE, "6 locks held: 2 well, 4 not, as told above.")
    (late, *_) = doctor_checks.locks([lock("gone", -900, -600)], NOW)
    assert late.level == ERROR, "an unlocker would have removed it long ago"
    many = next(doctor_checks.locks([lock(f"n{number}", -1, 9) for number in range(7)], NOW))
    assert "7 locks ('n0', 'n1', 'n2', 'n3', 'n4' and 2 more)" in many.text
