"""The tables of facts and columns: each fact is shown everywhere it should be."""

from __future__ import annotations

import csv
import functools
import io
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

import mutexdash
from lockclient.cli.operate import ls, removed
from lockclient.cli.operate.show import lock_lines
from lockclient.cli.operate.show import show as show_command
from lockclient.model.clocks import Deadline
from lockclient.model.fields import COUNT, FLAG, KNOWN, NAMES, SECONDS, TEXT, TEXTS, TIME, Fact
from lockclient.model.holder import FACTS, Holder
from lockclient.model.removal import AUTO_UNLOCK, REMOVAL_FACTS, Removal
from lockclient.model.ticket import Ticket
from lockclient.overview import columns_and_order as columns
from lockclient.overview.columns_and_order import COLUMNS, SORTS, CellKind, first_of
from lockclient.overview.listed_locks import Listed, urgency
from lockclient.overview.live_table import Table
from lockclient.overview.lock_presentation import fact_rows, fact_text
from lockclient.overview.lock_status import LockStatus
from mutexdash.web.openapi import description
from tests.support.board import Board

NOW = 1_800_000_000.0
VALUES: dict[str, Callable[[int], Any]] = {
    TEXT: lambda number: f"said-{number}",
    COUNT: lambda number: 40_000 + number,
    TIME: lambda number: NOW + 1000 * number,
    SECONDS: lambda number: 7000.0 + number,
    NAMES: lambda number: (f"need-{number}", "other"),
    TEXTS: lambda number: {f"label-{number}": "said"},
    FLAG: lambda number: True,
}
TITLED = [fact for fact in FACTS if fact.title]
SENT = [fact for fact in FACTS if fact.in_json]
MADE = Holder(
    "whole",
    **{
        fact.name: VALUES[fact.kind](number)
        for number, fact in enumerate(FACTS)
        if fact.place != KNOWN
    },
)
WHOLE = replace(
    MADE,
    alert_at=NOW + (MADE.expected_runtime or 0),
    auto_unlock_at=NOW + (MADE.auto_unlock_after or 0),
)
"""A holder that says something different in everything that is written."""


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        started.store.unlocker()
        values = WHOLE.subkeys().items()
        started.store.write(*[("locks", "whole", part, text.encode()) for part, text in values])
        yield started


def table_of(board: Board) -> Table:
    """Read what the board's store has into a table."""
    table = Table(board.store)
    table.read(Deadline.after(60))
    return table


def text_of(fact: Fact, holder: Holder) -> str:
    return fact_text(fact, getattr(holder, fact.name))


# ---------------------------------------------------------------- facts


def test_titled_facts_are_on_the_lock_page_and_in_show(board: Board) -> None:
    board.settle()
    row = table_of(board).row("whole")
    assert row is not None
    shown = {fact.title: text_of(fact, row.holder) for fact in TITLED}
    board.shows("/lock/whole", *shown, *shown.values())
    said = [click.unstyle(line).strip() for line in lock_lines(row.holder, (), NOW)]
    for title, text in shown.items():
        assert any(line.startswith(title.lower()) and text in line for line in said), title


def test_and_on_a_removal_s_page(board: Board) -> None:
    removal = Removal(WHOLE, NOW, "dog", AUTO_UNLOCK, "late")
    board.store.write(("removed", "whole", str(WHOLE.uuid), removal.value().encode()))
    shown = {fact.title: text_of(fact, WHOLE) for fact in TITLED if getattr(WHOLE, fact.name)}
    for path in ("/removed", f"/removal?name=whole&uuid={WHOLE.uuid}"):
        board.shows(path, *shown, *shown.values())


def test_sent_facts_are_in_json_csv_openapi_and_help(board: Board) -> None:
    board.store.write(("removed", "whole", "u", Removal(WHOLE, NOW, "", "", "").value().encode()))
    lock = board.get("/api/locks/whole").json
    (listed,) = board.get("/api/locks").json["locks"]
    (exported,) = csv.DictReader(io.StringIO(board.html("/removed.csv")))
    schemas = described()["components"]["schemas"]
    for fact in SENT:
        value = getattr(WHOLE, fact.name)
        if fact.place != KNOWN:
            assert lock[fact.name] == (list(value) if fact.kind == NAMES else value)
        assert (fact.name in listed) == fact.listed
        assert not fact.listed or listed[fact.name] == lock[fact.name]
        assert exported[fact.name] or fact.name == "fencing_token"
        for name in ("LockWhole", "RemovalWhole"):
            assert fact.name in schemas[name]["properties"]
            assert fact.name in schemas[name]["required"]
        assert (fact.name in schemas["Lock"]["properties"]) == fact.listed
        command = ls.ls if fact.listed else show_command
        assert f"    {fact.name} " in (command.help or "")


def test_the_facts_of_a_removal_are_everywhere() -> None:
    removal = described()["components"]["schemas"]["Removal"]
    for fact in REMOVAL_FACTS:
        assert fact.name in removal["properties"]
        assert f"    {fact.name} " in (removed.removed.help or "")


def test_private_facts_are_nowhere(board: Board) -> None:
    assert {fact.name for fact in FACTS} - {fact.name for fact in SENT} == {"process"}
    for path in ("/lock/whole", "/api/locks/whole", "/api/locks", "/", "/removed.json"):
        assert str(WHOLE.process) not in board.html(path)


@functools.cache
def described() -> Any:
    return YAML(typ="safe").load(description(Path(mutexdash.__file__).with_name("static")))


def test_a_missing_fact_has_its_word_or_no_row() -> None:
    words = {line.fact.name: line.word for line in fact_rows(Holder("a", "u", "h", alert_at=NOW))}
    assert words["auto_unlock_at"] == words["auto_unlock_after"] == "never"
    assert words["locked_at"] == "unknown"
    assert "reason" not in words
    broken = {line.fact.name: line.word for line in fact_rows(Holder("a"))}
    assert broken["auto_unlock_at"] == "unknown"
    assert broken["uuid"] == "none, so that nobody holds it"


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.key)
def test_a_column_is_shown_and_sorted_by_everywhere(board: Board, column: Any) -> None:
    html = board.html(f"/?sort={column.key}")
    assert (f'<th scope="col" class="c-{column.key}" aria-sort=' in html) == bool(column.title)
    assert column.title in html
    body = html.partition("<tbody")[2]
    assert bool(re.search(rf'<t[dh][^>]* class="c-{column.key}\W', body)) == bool(column.title)
    assert column.short in [shown_by_ls.title for shown_by_ls in ls.COLUMNS]
    assert column.key in described()["components"]["schemas"]["Sort"]["enum"]
    assert column.key in SORTS


def test_each_kind_of_cell_is_written_everywhere(board: Board) -> None:
    with board.app.test_request_context():
        cells = board.app.jinja_env.get_template("cells.html").module
    for kind in {value for value in vars(columns).values() if isinstance(value, CellKind)}:
        assert callable(getattr(cells, kind.name)), "a macro"


# ---------------------------------------------------------------- what is undecided

ODD = {
    "newer": {"format": 2},
    "no duration": {"auto_unlock_after": None},
}


@pytest.mark.parametrize("facts", ODD.values(), ids=ODD)
def test_an_undecided_lock_says_so_and_promises_no_auto_unlock(
    board: Board, facts: dict[str, Any]
) -> None:
    board.store.take("odd", **facts)
    board.store.take("fine")
    board.settle()
    row = table_of(board).row("odd")
    assert row is not None
    why = row.holder.undecided()
    assert why

    nobody = "It is unknown when this lock may be removed"
    board.shows("/lock/odd", nobody, why, "auto-unlock undecided.", but=("auto-unlock in",))
    html = board.html("/?q=odd")
    assert ">undecided</span>" in html
    if row.holder.alive_at is not None:  # else nothing tells how long it has been silent
        assert "auto-unlock undecided" in html, "the bar"
    assert " left</span>" not in html
    for path in ("/api/locks?q=odd", "/api/locks/odd"):
        said = board.get(path).json
        assert said.get("locks", [said])[0]["undecided"] == why
    assert (said["state"], board.get("/api/locks/fine").json["state"]) == ("undecided", "ok")
    found = board.get("/api/locks?state=undecided").json["locks"]
    assert [lock["name"] for lock in found] == ["odd", "whole"]
    assert board.html("/?state=undecided").count('<tr class="undecided"') == 2
    assert 'mutexdash_locks{state="undecided"} 2' in board.html("/metrics")

    (cells,) = ls.cells([Listed.of(row.holder, time.time())], time.time())
    assert cells[[*SORTS].index("auto_unlock_at")] == "undecided"
    told = "\n".join(map(click.unstyle, lock_lines(row.holder, (), time.time())))
    assert f"undecided         {why}. People are alerted" in told
    assert "auto-unlock       undecided, 20" in told


def test_a_decided_or_broken_lock_is_not_called_undecided(board: Board) -> None:
    board.store.take("fine")
    board.store.take("broken", hostname=None, format=2)
    for name in ("fine", "broken"):
        assert board.get(f"/api/locks/{name}").json["undecided"] is None
        board.shows(f"/lock/{name}", but=("It is unknown when",))


def test_a_stamp_moved_alone_gives_no_last_heartbeat(board: Board) -> None:
    board.store.take("odd")
    board.store.write(("locks", "odd", "auto_unlock_at", f"{time.time() + 86_400:.3f}".encode()))
    lock = board.get("/api/locks/odd").json
    assert (lock["alive_at"], lock["state"]) == (None, "ok")
    board.shows("/lock/odd", "Last heartbeat unknown")


STUCK: list[tuple[str, str, float | None, int, float, int]] = [
    # name, verdict, auto-unlock in, waiters, alert, revision of the first ticket (0: not read)
    ("late-waited-for", "overdue", -1, 2, -50, 50),
    ("late-alone", "overdue", -1, 0, -50, 0),
    ("forged-or-not", "deadlock", 900, 999, 50, 60),
    ("thirty", "alert", 900, 30, -10, 40),
    ("broken-six", "broken", None, 6, -10, 55),
    ("person-six", "alert", None, 6, -10, 50),
    ("six-for-long", "alert", 900, 6, -10, 20),
    ("six", "alert", 800, 6, -10, 30),
    ("six-too-long", "held-too-long", 800, 6, 10, 45),
    ("six-not-read", "alert", 100, 6, -10, 0),
    ("one", "alert", 900, 1, -10, 10),
    ("nobody-broken", "broken", None, 0, -10, 0),
    ("nobody-deadlock", "deadlock", 900, 0, 50, 0),
    ("person-old", "alert", None, 0, -500, 0),
    ("person-new", "alert", None, 0, -20, 0),
    ("soon", "alert", 100, 0, -10, 0),
    ("late", "alert", 700, 0, -500, 0),
    ("well-soon", "ok", 100, 0, 50, 0),
    ("well-waited-for", "ok", 200, 9, 50, 5),
    ("well-for-ever", "ok", None, 9, 50, 5),
]


def test_urgency_puts_overdue_locks_first_and_forged_ones_below() -> None:
    locks = []
    for name, verdict, after, waiters, alert, head in STUCK:
        times: dict[str, Any] = {"alert_at": NOW + alert, "expected_runtime": 1000.0}
        if after is not None:
            times |= {"auto_unlock_at": NOW + after, "auto_unlock_after": 1000 - alert + after}
        holder = Holder(name, "u", "h", **times)
        state = "ok" if verdict in ("deadlock", "held-too-long") else verdict
        status = LockStatus(state, verdict == "deadlock", verdict == "held-too-long")
        assert status.verdict == verdict
        first = Ticket(name, "w", revision=head) if head else None
        order = urgency(holder, status, waiters, first)
        locks.append(Listed(holder, status, waiters, first, (), order, "", NOW))
    found = first_of(reversed(locks), "state", len(locks))
    assert [listed.holder.name for listed in found] == [name for name, *_ in STUCK]


def test_silence_is_shown_beside_the_age(board: Board) -> None:
    board.store.take("quiet", held_for=3000)
    board.store.push("quiet")
    text = board.text("/?q=quiet")
    assert re.search(r"held for 50 min \d s silent for \d s", text)
    (lock,) = [row.holder for row in table_of(board).rows().values() if row.holder.name == "quiet"]
    wall = time.time()
    (cells,) = ls.cells([Listed.of(lock, wall)], wall)
    told = dict(zip([column.key for column in COLUMNS], cells, strict=True))
    assert (str(told["locked_at"])[:6], str(told["alive_at"])[-1]) == ("50 min", "s")
    assert len(str(told["alive_at"])) < 4


# ---------------------------------------------------------------- a free lock
