"""The table of promises in docs/stores.md equals what this suite tests."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

from lockclient.stores.mutex_store import Capabilities
from tests.contract.conftest import STORES

ROOT = Path(__file__).parents[2]
SUITE = Path(__file__).parent
COLUMNS = {"etcd": "etcd", "Google Cloud Storage": "bucket", "Valkey, Redis": "five Valkeys"}
"""By the table's columns, a store of this suite."""


class Row(NamedTuple):
    """A promise: its number in the README, if it has one, and what each store makes of it."""

    number: str
    ability: str
    kept: dict[str, str]


def table() -> list[Row]:
    text = (ROOT / "docs/stores.md").read_text(encoding="utf-8")
    section = text.partition("## What each store promises\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert head[3:] == list(COLUMNS)
    return [
        Row(row[0], row[2].strip("`"), {store: re.split(r"[:,]", cell)[0] for store, cell in
            zip(head[3:], row[3:], strict=True)})
        for row in rows
    ]  # fmt: skip


def test_the_table_has_each_promise_and_each_ability_once() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is promised")[2]
    promised = re.findall(r"^(\d)\. ", section.partition("\n## ")[0], flags=re.MULTILINE)
    assert [row.number for row in table() if row.number] == promised
    tests = "".join(file.read_text() for file in SUITE.glob("test_*.py"))
    asked = set(re.findall(r'@pytest.mark.needs\("(\w+)"\)', tests))
    asked &= {ability.name for ability in fields(Capabilities)}  # the others are a test's hands
    assert {row.ability for row in table() if row.ability} == asked


@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_states_what_the_suite_tests(column: str) -> None:
    can: Capabilities = STORES[COLUMNS[column]]
    for row in table():
        assert row.kept[column] in ("yes", "no", "with exceptions")
        if row.ability:
            assert row.kept[column] == ("yes" if getattr(can, row.ability) else "no"), row


def test_the_readme_names_the_same_exceptions() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\d) [^|]*\| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", text, flags=re.MULTILINE
    )
    said = {number: dict(zip(COLUMNS, cells, strict=True)) for number, *cells in rows}
    assert [*said] == [row.number for row in numbered()]
    for column in ("Google Cloud Storage", "Valkey, Redis"):
        excepted = {number for number, cells in said.items() if cells[column] != "yes"}
        assert excepted == {row.number for row in numbered() if row.kept[column] != "yes"}


def numbered() -> list[Row]:
    return [row for row in table() if row.number]
