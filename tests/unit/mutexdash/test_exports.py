"""Exports of all removal records, and their bounds in memory and disk."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from tests.support.board import Board
from tests.support.records import BACKTRACE

MIB = 1024 * 1024


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        yield started


def test_the_files_hold_every_record_with_its_backtrace(board: Board) -> None:
    facts: dict[str, Any] = {"how": "auto-unlock", "removed_by": "dog", "backtrace": BACKTRACE}
    board.store.removed("a", "u1", **facts, removed_at=0.5, hostname='=cmd|"/c calc"!A1', pid=7)
    board.store.removed("b/c", "u2", **facts, why="+1", reason='line\nline, "quoted"')
    assert board.get("/removed.json?q=nothing").json == []
    assert len(board.html("/removed.csv?q=nothing").splitlines()) == 1
    whole = board.get("/removed.json")
    assert whole.headers["Content-Disposition"] == "attachment; filename=removed-locks.json"
    assert [removal["uuid"] for removal in whole.json] == ["u1", "u2"]
    assert all(removal["backtrace"] == BACKTRACE for removal in whole.json)

    answer = board.get("/removed.csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    first, second = csv.DictReader(io.StringIO(answer.get_data(as_text=True), newline=""))
    assert first["hostname"] == '\'=cmd|"/c calc"!A1', "a spreadsheet would run it"
    assert (first["removed_at"], first["pid"]) == ("1970-01-01T00:00:00.500+00:00", "7")
    assert (second["name"], second["why"]) == ("b/c", "'+1")
    assert (second["reason"], second["backtrace"]) == ('line\nline, "quoted"', BACKTRACE)
    assert len(board.get("/removed.json?q=line").json) == 1


def test_a_shared_backtrace_is_read_once(board: Board) -> None:
    backtrace = b"  File \xe2\x80\xa6"
    code = sha256(backtrace).hexdigest()
    board.store.write(("code", code, "", backtrace))
    for number in range(20):
        board.store.removed(f"lock-{number}", "u", code=code)
    board.store.removed("lost", "u", code="0" * 64)
    asked = board.store.questions
    whole = {removal["name"]: removal["backtrace"] for removal in board.get("/removed.json").json}
    assert whole.pop("lost") is None
    assert list(whole.values()) == ["  File …"] * 20
    assert board.store.questions - asked == 2


# ---------------------------------------------------------------- bounds


def test_an_export_is_not_larger_than_an_answer_may_be(board: Board) -> None:
    for number in range(300):
        board.store.removed("b", f"u{number}", how="auto-unlock", reason="y" * 60_000)
    board.store.removed("small", "u1", how="auto-unlock")
    board.settle()
    assert [removal["name"] for removal in board.get("/removed.json?q=small").json] == ["small"]
    refused = board.get("/removed.json")
    assert refused.status_code == 400
    assert "narrow it down by ?q=" in refused.get_data(as_text=True)


def test_kept_answers_take_16_mib_at_most_and_end_with_their_second(board: Board) -> None:
    texts = dict.fromkeys(("hostname", "thread", "identity", "reason", "client"), "x" * 200)
    for number in range(150):
        board.store.take(f"{number}" * 40, **texts)
    board.stopped = board.now()
    size = len(board.get("/api/locks?per_page=150").data)
    assert MIB / 8 < size < MIB / 4
    tracemalloc.start()

    def taken() -> int:
        return tracemalloc.get_traced_memory()[0]

    before = taken()
    for number in range(1, 30 * MIB // size):
        board.client.get(f"/api/locks?per_page=150&q={'+' * number}").close()
    kept = taken() - before
    board.stopped += 1
    board.client.get("/api/locks?per_page=1").close()
    left = taken() - before
    tracemalloc.stop()
    assert 4 * MIB < kept < 20 * MIB
    assert left < 4 * MIB
