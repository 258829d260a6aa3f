"""What went, and how: rows that stay for a moment, lanes, and the files of what was removed."""

from __future__ import annotations

import csv
import gc
import io
import json
import random
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from lockclient.model.holder import OK, Holder
from lockclient.overview.rows import Row, Transition
from mutexdash.data.history import History
from mutexdash.data.picture import Picture, Snapshot
from mutexdash.data.query import Query
from mutexdash.data.rows import Ended
from mutexdash.data.timeline import Lanes, lanes
from tests.support.dashboard_fakes import Board
from tests.support.processes import wait_until
from tests.support.records import BACKTRACE


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        # A machine that is busy for seconds must not have rows go that are about to be looked at.
        started.stopped = time.time()
        yield started


def shown(board: Board, **asked: Any) -> list[tuple[str, str]]:
    page = board.moment().picture.select(Query(**asked), ended=True)
    return [(row.holder.name, row.ended.text if row.ended else "held") for row in page.items]


def remove(board: Board, name: str, uuid: str, **facts: Any) -> None:
    """Delete a lock and leave a record, in one step, as every removal does."""
    gone = [(*key, None) for key in board.store.kept if key[:2] == ("locks", name)]
    record = json.dumps({"removed_at": board.now() - 0.001, **facts}).encode()
    board.store.write(*gone, ("removed", name, uuid, record))


def wait_for_history(board: Board, version: int) -> None:
    """The table tells its listeners a moment after it shows a change."""
    board.settle()
    wait_until(lambda: board.history.version >= version, what="the history")


# ---------------------------------------------------------------- rows that went


def test_a_row_that_went_stays_for_a_moment_with_the_reason(board: Board) -> None:
    for number, name in enumerate(("released", "auto", "forced")):
        board.store.take(name, uuid=name, held_for=100 + number)
    board.moment()
    board.store.release("released")
    remove(board, "auto", "auto", how="auto-unlock", removed_by="dog:7", why="no heartbeat")
    remove(board, "forced", "forced", how="force-unlock", removed_by="ann", why="it hangs")
    wait_for_history(board, 3)

    assert shown(board) == [
        ("forced", "Force-unlocked by ann: it hangs"),
        ("auto", "Auto-unlocked by dog:7: no heartbeat"),
        ("released", "Released"),
    ]
    assert board.moment().picture.held == 0
    assert board.get("/api/locks").json["locks"] == []
    before = board.moment().etag()
    board.ahead += 6.5
    assert shown(board) == []
    assert board.moment().etag() != before


def test_a_row_that_went_stands_where_it_stood_and_counts_for_nothing(board: Board) -> None:
    for number in range(30):
        board.store.take(f"lock-{number:02}", held_for=0)
    board.moment()
    for name in ("lock-05", "lock-10", "lock-29"):
        board.store.release(name)
    wait_for_history(board, 3)

    def page(number: int, sort: str) -> list[str]:
        return [name for name, _ in shown(board, sort=sort, page=number, per_page=9)]

    every = [f"lock-{number:02}" for number in range(30)]
    first, second, third = (page(number, "name") for number in (1, 2, 3))
    # 27 are held, 9 a page; those that went stand behind their neighbour, on its page.
    assert (first, third[-2:]) == (every[:11], ["lock-28", "lock-29"])
    assert first + second + third == every
    assert page(1, "-name") + page(2, "-name") + page(3, "-name") == every[::-1]
    assert board.moment().picture.select(Query(per_page=9), ended=True).total == 27


def test_who_takes_it_next_hides_that_it_went(board: Board) -> None:
    board.store.take("a", uuid="u1")
    board.moment()
    board.store.release("a")
    board.store.take("a", uuid="u2")
    wait_for_history(board, 1)
    assert shown(board) == [("a", "held")]


def test_a_filter_holds_for_what_went_too(board: Board) -> None:
    board.store.take("late", held_for=400)
    board.store.take("fine")
    board.store.wait("fine", "w1")
    picture = board.moment().picture
    assert [row.holder.name for row in picture.select(Query(state="waiters")).items] == ["fine"]
    assert (picture.waited, picture.waiting) == (1, 1)
    board.store.write(("queue", "fine", "w1", None))
    board.store.release("late")
    board.store.release("fine")
    wait_for_history(board, 2)
    assert shown(board, state="alert") == [("late", "Released")]
    assert shown(board, text="FINE") == [("fine", "Released")]
    assert shown(board, state="waiters") == []


def test_what_was_gone_before_anybody_looked_is_no_news() -> None:
    board = Board()
    board.store.removed("a", "u1", how="auto-unlock")
    board.store.take("b")
    with board:
        assert shown(board) == [("b", "held")]
        assert board.history.ended(0) == []


def test_what_went_while_the_watch_was_lost_is_told_by_its_record(board: Board) -> None:
    board.store.take("a", uuid="u1")
    board.moment()
    board.store.lose_watches()
    remove(board, "a", "u1", how="auto-unlock", removed_by="dog", why="late")
    board.table.resync()
    wait_for_history(board, 1)
    (ended,) = board.history.ended(0)
    assert (ended.how, ended.by, ended.exact) == ("auto-unlock", "dog", True)


# ---------------------------------------------------------------- a picture made of the one before


def test_a_picture_made_of_the_one_before_is_as_one_made_afresh(board: Board) -> None:
    """Whatever happens in whatever order: taken, pushed, broken, released, waited for, time."""
    chance = random.Random(3)
    for step in range(300):
        name = f"lock-{chance.randrange(60)}"
        match chance.randrange(6):
            case 0:
                board.store.release(name)
            case 1:
                uuid = f"w{chance.randrange(3)}"
                leaves = ("queue", name, uuid) in board.store.kept and chance.randrange(2)
                board.store.write(("queue", name, uuid, None if leaves else b"{}"))
            case 2:
                board.ahead += chance.choice((1, 50, -20))
            case 3:
                board.store.take(name, uuid=f"u{step}", alert_at=chance.choice(("x", "1", "9e9")))
            case _:
                how = {"held_for": chance.randrange(1000), "unlock": chance.choice((900, 301))}
                board.store.take(name, uuid=f"u{step}", **how)
        made = board.moment()
        snapshot = Snapshot.of(board.table, board.waiting.waits())
        ended = board.history.ended(made.wall - 6)
        fresh = Picture(snapshot, made.wall, ended)
        rows = [(row.key, row.state, row.waiters) for row in made.picture.select(Query()).items]
        assert rows == [(row.key, row.state, row.waiters) for row in fresh.select(Query()).items]
        assert (made.picture.counts, made.picture.held) == (fresh.counts, fresh.held)
        assert made.picture.waited == fresh.waited


def test_two_dashboards_have_one_etag() -> None:
    """A viewer may ask any of several behind one address, and be told that nothing is new."""
    with Board() as one, Board() as two:
        for name in ("a", "b"):
            one.store.take(name, uuid=name)
        for name in ("b", "a"):
            two.store.write(*[row[:4] for row in one.store.kept.values() if row.name == name])
        # Fencing tokens are part of what is shown, and each store has its own.
        assert one.moment().picture.tag != two.moment().picture.tag
        with Board(one.store) as three:
            assert three.moment().etag() == one.moment().etag()


def test_old_pictures_do_not_pile_up(board: Board) -> None:
    """A rendered template is a cycle, and keeps its picture until the collector comes by."""
    for number in range(50):
        board.store.take(f"lock-{number}")
    old = board.moment().picture
    board.store.take("one more")
    new = board.moment().picture
    assert (len(old.snapshot.rows), len(new.snapshot.rows)) == (0, 51)
    assert old.select(Query()).total == 50, "it still shows what it showed"
    del old
    gc.collect()


# ---------------------------------------------------------------- lanes


def lanes_of(board: Board, **asked: Any) -> Lanes:
    board.settle()
    return lanes(board.live, board.moment(), **asked)


def test_lanes_show_who_held_what_and_how_it_ended(board: Board) -> None:
    board.store.take("a", uuid="u1", held_for=1800)
    board.store.take("zz", uuid="u2", held_for=7200, alert=300, unlock=None)
    board.moment()
    remove(board, "a", "u1", how="force-unlock", removed_by="ann", why="it hangs")
    board.store.take("a", uuid="u3", held_for=0)
    wait_for_history(board, 1)

    found = lanes_of(board)
    assert [lane.name for lane in found.lanes] == ["zz", "a"], "as the list has them"
    first, second = found.lanes[1].spans
    assert (first.how, first.by, first.why) == ("force-unlock", "ann", "it hangs")
    assert [first.left, first.width] == pytest.approx([0.5, 0.5], abs=0.02)
    assert (second.how, second.end, second.verdict) == ("held", None, OK)
    assert second.width == pytest.approx(0, abs=0.02)
    (whole,) = found.lanes[0].spans
    assert [whole.left, whole.width] == pytest.approx([0, 1])
    assert [lane.name for lane in lanes_of(board, query=Query("ZZ")).lanes] == ["zz"]


def test_lanes_are_bounded(board: Board) -> None:
    for number in range(20):
        board.store.take(f"held-{number:02}")
        board.store.take(f"gone-{number:02}", uuid=f"u{number}")
    board.moment()
    for number in range(20):
        board.store.release(f"gone-{number:02}")
    wait_for_history(board, 20)
    found = lanes_of(board, most=10)
    names = [lane.name for lane in found.lanes]
    assert len(names) == 10
    gone = [name for name in names if name.startswith("gone")]
    assert gone == [f"gone-{number}" for number in range(19, 14, -1)]
    assert found.more == 30
    assert len(lanes_of(board, most=100).lanes) == 40


def test_a_lock_that_was_taken_again_is_held_however_many_are_more_urgent(board: Board) -> None:
    for number in range(10):
        board.store.take(f"urgent-{number}", unlock=100)
    board.store.take("a", uuid="u1", unlock=9000)
    board.moment()
    board.store.release("a")
    board.store.take("a", uuid="u2", unlock=9000)
    wait_for_history(board, 1)
    found = lanes_of(board, most=4)
    assert [span.how for span in found.lanes[-1].spans] == ["released", "held"]
    assert (len(found.lanes), found.more) == (4, 7)


def test_history_forgets_the_oldest() -> None:
    history = History(most=3)
    for number in range(5):
        row = Row(Holder("a", f"u{number}"), 0.0, found=False)
        history.note([Transition("a", row, None, live=True)])
    assert [ended.holder.uuid for ended in history.ended(0)] == ["u4", "u3", "u2"]
    assert Ended(Holder("a"), 1.0).text == "Released"


# ---------------------------------------------------------------- files


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


def test_one_removal_has_its_backtrace(board: Board) -> None:
    board.store.removed("b/c", "u2", how="auto-unlock", backtrace=BACKTRACE)
    for path in ("/api/removed/b%2Fc?uuid=u2", "/api/removal?name=b/c&uuid=u2"):
        assert board.get(path).json["backtrace"] == BACKTRACE
    for path in ("/api/removed/b%2Fc?uuid=u3", "/api/removed/b%2Fc", "/api/removed/c?uuid=u2"):
        assert board.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/removed.csv", "/removed.json", "/api/removed/a?uuid=u"])
def test_with_etcd_away_nothing_is_read(board: Board, path: str) -> None:
    board.store.here = False
    assert board.get(path).status_code == 503


def test_exports_have_the_backtraces_that_records_have_in_common(board: Board) -> None:
    """Read once for all of them."""
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
