"""Each rule of the checker finds its violation in a small history, and none in a good one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.proof.check import check, main
from tests.proof.history import FileSink, Line, read
from tests.proof.rules import RULES, WITHOUT_EVENTS

ABOUT = {"client": "test", "auto_unlock_after": 5.0, "expected_runtime": 1.0}
Found = list[Line]


def client(at: float, what: str, uuid: str = "", call: int = 0, **more: Any) -> Line:
    return Line(at, more.pop("process", "p"), what, call, "x", uuid, **more)


def written(at: float, revision: int, key: str, value: str | None, lease: int = 0) -> Line:
    key = f"/clustermutex/{key}"
    return Line(at, "etcd", "written", revision=revision, key=key, value=value, lease=lease)


def taken(at: float, revision: int, uuid: str, **about: Any) -> Found:
    return [
        written(at, revision, "locks/x/uuid", uuid),
        written(at, revision, "locks/x/about", json.dumps(ABOUT | about)),
        written(at, revision, "locks/x/alert_at", f"{at + 1:.3f}"),
    ]


def had(at: float, revision: int, uuid: str, call: int = 1) -> Found:
    """An acquisition as its client saw it, and as etcd did."""
    return [
        client(at - 0.1, "acquire", call=call),
        *taken(at, revision, uuid),
        client(at + 0.1, "acquired", uuid, call, revision=revision),
    ]


def gone(at: float, revision: int) -> Found:
    parts = ("uuid", "about", "alert_at")
    return [written(at, revision, f"locks/x/{part}", None) for part in parts]


def released(at: float, revision: int, uuid: str, call: int = 2) -> Found:
    return [
        client(at - 0.1, "release", uuid, call),
        *gone(at, revision),
        client(at + 0.1, "released", uuid, call),
    ]


def removed(at: float, revision: int, uuid: str, how: str = "auto-unlock") -> Found:
    record = json.dumps({"how": how, "uuid": uuid})
    return [*gone(at, revision), written(at, revision, f"removed/x/{uuid}", record, lease=7)]


def ticket(at: float, revision: int, uuid: str, value: str | None = "{}") -> Line:
    return written(at, revision, f"queue/x/{uuid}", value, lease=0 if value is None else 9)


GOOD = [
    client(0, "limits", limits={"max_removals": 2, "unlockers": 1}),
    *had(1.0, 10, "A"),
    client(1.2, "working", "A"),
    client(1.5, "push", "A", 3),
    written(1.6, 11, "locks/x/alert_at", "2.600"),
    client(1.7, "pushed", "A", 3),
    ticket(1.8, 12, "B"),
    *released(2.0, 13, "A"),
    client(1.7, "acquire", call=4),
    *taken(2.1, 14, "B"),
    ticket(2.1, 14, "B", None),
    client(2.2, "acquired", "B", 4, revision=14),
    client(7.1, "lost", "B"),
    *removed(7.2, 15, "B"),
    client(60, "settled"),
]

ENDS = [client(2, "ending"), client(2.1, "marked"), client(2.5, "ended", seconds=0.5)]
BROKEN: dict[str, Found] = {
    "one_holder": [*had(1, 10, "A"), *taken(2, 11, "B")],
    "tokens_rise": [
        *had(1, 10, "A"),
        *released(2, 12, "A"),
        client(2.5, "acquire", call=5),
        *taken(3, 13, "B"),
        client(3.1, "acquired", "B", 5, revision=9),
    ],
    "removal_recorded_once": [
        *had(1, 10, "A"),
        client(5, "lost", "A"),
        *removed(7, 11, "A"),
        written(7.1, 12, "removed/x/A", json.dumps({"how": "auto-unlock"}), lease=7),
    ],
    "no_early_removal": [*had(1, 10, "A"), client(3, "lost", "A"), *removed(3, 11, "A")],
    "pushes_count": [
        *had(1, 10, "A"),
        client(4, "push", "A", 3),
        client(4.2, "pushed", "A", 3),
        client(7, "lost", "A"),
        *removed(7, 11, "A"),
    ],
    "rate_limit": [
        client(0, "limits", limits={"max_removals": 2, "unlockers": 1}),
        *[
            line
            for number in range(3)
            for line in (
                *taken(1 + 6 * number, 10 + 2 * number, f"U{number}"),
                *removed(6.5 + 6 * number, 11 + 2 * number, f"U{number}"),
            )
        ],
    ],
    "queue_order": [
        ticket(1, 10, "A"),
        ticket(1, 11, "B"),
        *taken(2, 12, "B"),
        ticket(2, 12, "B", None),
    ],
    "queue_outlives_outage": [
        *(ticket(1, 10, "A"), ticket(1, 11, "B")),
        client(2, "outage", seconds=12.0),
        *(ticket(13, 12, "A", None), ticket(13, 12, "B", None)),
        *(ticket(15, 13, "B"), ticket(15, 14, "A")),
    ],
    "queue_outlives_outage, and a ticket is lost later": [
        ticket(1, 10, "A"),
        client(2, "outage", seconds=12.0),
        ticket(24, 11, "A", None),
        ticket(24, 12, "A"),
    ],
    "bound_to_leases": [written(1, 10, "withdrawn/x/A", "", lease=0)],
    "stamps_rise": [*had(5, 10, "A"), written(6, 11, "locks/x/alert_at", "3.000")],
    "no_lost_update": [
        Line(1, "etcd", "written", revision=10, key="/counters/x", value="1"),
        Line(2, "etcd", "written", revision=11, key="/counters/x", value="1"),
    ],
    "one_works": [
        client(1, "acquired", "A", 1),
        client(2, "acquired", "B", 2),
        client(2.5, "working", "B"),
        client(3, "working", "A"),
    ],
    "one_works, both before and after": [
        client(0.5, "acquired", "A", 1),
        client(0.7, "working", "A"),
        client(1, "acquired", "B", 2),
        client(2, "working", "A"),
        client(3, "working", "B"),
    ],
    "unlocked_by_holder": [*had(1, 10, "A"), *gone(2, 11), client(2.1, "lost", "A")],
    "loss_is_told": [
        *had(1, 10, "A"),
        *removed(2, 11, "A", how="force-unlock"),
        client(4, "lost", "A"),
        client(60, "settled"),
    ],
    "no_overlap": [
        *had(1, 10, "A"),
        *removed(8, 11, "A"),
        *had(9, 12, "B", call=7),
        client(9.5, "working", "A"),
    ],
    "works_in_time": [*had(1, 10, "A"), client(6.1, "working", "A")],
    "kept_alive": [
        *had(1, 10, "A")[:-1],
        client(1.1, "acquired", "A", 1, revision=10, seconds=1.0),
        client(5.9, "lost", "A"),
        *removed(6.1, 11, "A"),
    ],
    "waiters_are_served": [client(1, "acquire", call=1), client(60, "settled")],
    "nothing_left": [ticket(1, 10, "A"), client(60, "settled")],
    "orphans_go": [*taken(1, 10, "A"), *removed(7, 11, "A")],
    "linearizable": [
        *had(5, 9, "B", call=7),
        *released(6, 12, "B", call=8),
        *[line for line in had(1, 20, "A") if line.what != "written"],
        *taken(7, 20, "A"),
    ],
    "end_names_leftovers": [*taken(1, 10, "A", reason="p"), *ENDS],
    "end_withdraws": [ticket(1, 10, "A", json.dumps({"reason": "p"})), *ENDS],
    "end_withdraws, though the log names it": [
        *taken(1, 10, "A", reason="p"),
        client(2.4, "named", "A", key="granted"),
        *ENDS,
    ],
    "end_returns_no_acquire": [*ENDS[:2], *had(2.3, 10, "A")],
    "end_in_time": [client(1, "ending"), client(9, "ended", seconds=8.0)],
}


def test_nothing_is_found_in_a_good_history() -> None:
    assert check(GOOD) == []


def test_each_rule_has_a_violation() -> None:
    rules = {rule.__name__ for rule in (*RULES, *WITHOUT_EVENTS)}
    assert {case.partition(",")[0] for case in BROKEN} == rules


@pytest.mark.parametrize("case", sorted(BROKEN))
def test_each_rule_finds_its_violation(case: str) -> None:
    assert case.partition(",")[0] in {broken.rule for broken in check(BROKEN[case])}


def test_a_force_unlocked_holder_may_work_until_it_learns_of_it() -> None:
    lines = [
        *had(1, 10, "A"),
        *removed(3, 11, "A", how="force-unlock"),
        *had(3.3, 12, "B", call=7),
        client(3.6, "working", "A"),
        client(3.9, "lost", "A"),
    ]
    assert check(lines) == []


def test_a_killed_process_need_not_learn_of_a_loss() -> None:
    lines = [
        *had(1, 10, "A"),
        client(2, "killed"),
        *removed(7, 11, "A"),
        client(60, "settled"),
    ]
    assert check(lines) == []


def test_a_process_may_end_with_a_lock_that_its_log_names() -> None:
    lines = [
        *had(1, 10, "A")[:1],
        *taken(1, 10, "A", reason="p"),
        client(1.1, "acquired", "A", 1, revision=10),
        client(2.4, "named", "A", key="held"),
        *ENDS,
        *removed(7, 11, "A"),
        client(60, "settled"),
    ]
    assert check(lines) == []


def test_a_client_that_was_stopped_after_acquire_has_not_worked() -> None:
    """Seen on Valkey: B was stopped before it wrote its line, and its lock removed meanwhile."""
    lines = [
        client(1, "acquired", "A", 1),
        client(2, "acquired", "B", 2),
        client(3, "working", "A"),
        client(3, "lost", "B"),
    ]
    assert check(lines) == []


@pytest.mark.parametrize(("lines", "status"), [(GOOD, 0), (BROKEN["one_holder"], 1)])
def test_the_checker_runs_as_a_program(
    lines: Found, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in lines:
        FileSink(tmp_path / f"{line.process}.jsonl")(line)
    files = [*tmp_path.iterdir()]
    assert {*map(str, read(files))} == {*map(str, lines)}
    assert main([*map(str, files)]) == status
    assert ("one_holder: B took x at 11 while A had it" in capsys.readouterr().out) == bool(status)


def test_a_file_without_a_history_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"at": 1, "process": "p", "what": "acquire"}\n{"at"\n')
    assert main([str(file)]) == 2
    assert f"{file}:2 is no line of a history" in capsys.readouterr().err
    assert main([]) == 2
