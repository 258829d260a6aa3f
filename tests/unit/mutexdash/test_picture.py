"""What the dashboard makes of the table: order, search, pages, states, and when they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from lockclient.model.restore_marker import Restored
from lockclient.overview.columns import SORTS
from lockclient.overview.table import Table
from lockclient.overview.waiters import WaitQueues
from lockclient.stores.service_protocol import Tickets
from mutexdash.data.live import Live
from mutexdash.data.query import BadParameter, Query
from tests.support.dashboard_fakes import Board
from tests.support.processes import wait_until

ALL = ("q", "state", "sort", "page", "per_page")


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        yield started


def names(board: Board, **asked: str) -> list[str]:
    page = board.moment().picture.select(Query.read(asked, ALL))
    return [held.holder.name for held in page.items]


# ---------------------------------------------------------------- order


def test_the_most_urgent_come_first(board: Board) -> None:
    """Overdue, broken, past alert, then by time left; what is never unlocked is last."""
    board.store.take("fine-later", held_for=10)
    board.store.take("fine-sooner", held_for=100)
    board.store.take("never", held_for=10, unlock=None)
    board.store.take("past-alert", held_for=400)
    board.store.take("overdue-a-little", held_for=901)
    board.store.take("overdue-for-long", held_for=2000)
    board.store.take("broken", alert_at="soon")

    assert names(board) == [
        *("overdue-for-long", "overdue-a-little", "broken"),
        *("past-alert", "fine-sooner", "fine-later", "never"),
    ]


def test_what_somebody_waits_for_longer_comes_first_also_when_the_first_in_line_goes(
    board: Board,
) -> None:
    """Though the lines are as long as before; and a page that was seen before is asked for anew."""
    for name in ("a", "b"):
        board.store.take(name, held_for=400)
    for number, name in enumerate("abab", 1):
        board.store.wait(name, f"w{number}")
    assert names(board) == ["a", "b"]
    before = board.moment()
    board.store.write(("queue", "a", "w1", None), ("queue", "a", "w5", b"{}"))
    assert names(board) == ["b", "a"]
    after = board.moment()
    assert after.etag() != before.etag()
    for moment in (before, after):
        assert moment.picture.snapshot.waiters == {"a": 2, "b": 2}


def test_of_a_line_that_was_read_in_part_nobody_knows_the_first(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "b"):
        board.store.wait(name, f"w{board.store.revision}")
    board.settle()
    lines = WaitQueues(board.table, board.store)
    lines.look(1)
    assert {name: head.revision for name, head in lines.heads.items()} == {"a": 2, "b": 3}
    monkeypatch.setattr(board.store, "tickets", lambda *_: Tickets(lines.tickets[:-1], 2))
    in_part = WaitQueues(board.table, board.store)
    in_part.look(1)
    assert [*in_part.heads] == ["a"]


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_has_its_reverse(board: Board, sort: str) -> None:
    """`-` turns the order round; locks that lack the value stay last, equal ones by name."""
    for number, name in enumerate("abc"):
        facts = {"hostname": f"h{number}", "reason": "xyz"[number], "unlock": 900 - number * 100}
        board.store.take(name, held_for=10 + number * 10, **facts)
    for uuid, name in enumerate("bcc"):
        board.store.wait(name, f"w{uuid}")
    board.store.write(("locks", "bare", "uuid", b"u"))  # nothing to sort by, broken

    up, down = names(board, sort=sort), names(board, sort=f"-{sort}")

    if sort in ("hostname", "reason", "locked_at", "alive_at", "alert_at", "auto_unlock_at"):
        assert up[-1] == down[-1] == "bare"
        up.pop()
        down.pop()
    assert up == down[::-1] or sort == "waiters"
    assert sort != "waiters" or (up[-2:], down[:2]) == (["b", "c"], ["c", "b"])


# ---------------------------------------------------------------- search and filter


def test_a_search_looks_at_name_host_and_reason_in_any_case(board: Board) -> None:
    board.store.take("Deploy/Prod", hostname="ci-1", reason="release")
    board.store.take("other", hostname="DEPLOY-host", reason="x")
    board.store.take("third", hostname="h", reason="to deploy it")
    board.store.take("fourth", hostname="h", reason="x", thread="deploy", held_for=400)

    assert sorted(names(board, q="dEpLoY")) == ["Deploy/Prod", "other", "third"]
    assert names(board, state="alert") == ["fourth"]
    assert names(board, state="broken") == []


def test_each_word_of_a_search_must_be_found_somewhere(board: Board) -> None:
    board.store.take("deploy", hostname="ci-1", reason="release")
    board.store.take("deploy-2", hostname="ci-2", reason="release")

    assert names(board, q="release  ci-2 ") == ["deploy-2"]
    assert names(board, q="release ci-3") == []


def test_pages_leave_nothing_out_and_show_nothing_twice(board: Board) -> None:
    for number in range(25):
        board.store.take(f"lock-{number:02}")

    seen = [names(board, sort="name", page=str(page), per_page="10") for page in (1, 2, 3, 4)]

    assert [len(page) for page in seen] == [10, 10, 5, 0]
    assert [name for page in seen for name in page] == [f"lock-{number:02}" for number in range(25)]
    page = board.moment().picture.select(Query(per_page=10))
    assert (page.total, page.last) == (25, 3)


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(({"page": value}, "page") for value in ("0", "-1", "1e3", "", "٣", "9" * 5000)),
        ({"per_page": "1001"}, "per_page"),
        ({"sort": "colour"}, "sort"),
        ({"sort": "--name"}, "sort"),
        ({"state": "lost"}, "state"),
        ({"q": "x" * 301}, "q"),
        ({"stat": "ok"}, "'stat'"),
    ],
)
def test_a_bad_parameter_is_named_in_a_sentence(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadParameter, match=rf"parameter {said}") as caught:
        Query.read(given, ALL)
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 400


def test_what_is_not_said_has_a_default() -> None:
    assert Query.read({"q": "", "state": "", "sort": ""}, ALL) == Query()


# ---------------------------------------------------------------- when it changes


def test_the_etag_stays_while_nothing_changes(board: Board) -> None:
    board.store.take("a")
    first = board.moment()
    board.ahead += 10

    assert board.moment().etag() == first.etag()
    assert board.moment().picture is first.picture


def test_the_etag_changes_with_every_change(board: Board) -> None:
    """Taken, pushed, waited for, past alert, overdue, unlocker, etcd away, released, removed."""
    store = board.store
    changes: tuple[Callable[[], object], ...] = (
        lambda: store.take("a", held_for=0),
        lambda: store.push("a"),
        lambda: store.wait("a", "w1"),
        lambda: setattr(board, "ahead", 301),
        lambda: setattr(board, "ahead", 901),
        lambda: store.unlocker(),
        lambda: setattr(store, "here", False),
        lambda: store.release("a"),
        lambda: store.removed("a", "u1", how="auto-unlock"),
    )
    seen = [board.moment().etag()]
    for change in changes:
        change()
        seen.append(board.moment().etag())

    assert len(set(seen)) == len(changes) + 1


def test_an_unlockers_sign_of_life_changes_nothing(board: Board) -> None:
    """A heartbeat that writes its value anew must not make every page load again."""
    board.store.unlocker()
    before = board.moment()
    board.store.write(("unlockers", "watchdog-1:77", "", b'{"alive": 2}'))

    assert board.moment().etag() == before.etag()


def test_another_stores_same_revision_has_another_etag() -> None:
    """`clustermutex up` on a fresh etcd, under a page that is still open."""
    tags = []
    for uuid in ("u1", "u2"):
        with Board() as board:
            board.store.take("a", uuid=uuid)
            tags.append(board.moment().etag())
    assert tags[0] != tags[1]


def test_the_state_follows_the_clock(board: Board) -> None:
    """Nothing is written when a lock goes past its alert; it is shown all the same."""
    board.store.take("a", held_for=0)
    counts = []
    for ahead in (0, 299, 301, 899, 901):
        board.ahead = ahead
        counts.append(next(state for state, n in board.moment().picture.counts.items() if n))
    assert counts == ["ok", "ok", "alert", "alert", "overdue"]
    board.store.push("a", alert=1200, unlock=1800)
    assert board.moment().picture.counts["ok"] == 1


def test_the_age_of_a_store_that_is_away_counts_from_when_it_was_there(board: Board) -> None:
    assert board.moment().away_since is None
    there = time.time()
    board.store.here = False
    board.ahead = 60

    away = board.moment()
    assert away.away_since == pytest.approx(there, abs=5)
    board.store.here = True
    assert board.moment().away_since is None


def test_when_the_store_was_there_is_noted_while_nobody_looks() -> None:
    """Else the first who looks after a quiet night would see an hour for a second."""
    with Board() as board:
        clock = [1000.0]
        live = Live(board.table, clock=lambda: clock[0])
        clock[0] = 5000.0
        live.start()
        try:
            wait_until(lambda: live._connected_at == 5000.0, what="a look")
            board.store.here = False
            assert live.away_since() == 5000.0
        finally:
            live.stop()


def test_a_picture_is_good_for_a_while_that_grows_with_its_cost(board: Board) -> None:
    """Many viewers of many busy locks must not keep the process making pictures all the time."""
    board.live = Live(board.table, rest=1e9)
    board.store.take("a")
    first = board.moment()
    board.store.take("b")
    assert board.moment().picture is first.picture


def test_before_everything_was_read_there_is_nothing_to_see() -> None:
    assert Live(Table(Board().store)).moment() is None


def test_removals_are_searched_by_all_that_is_known(board: Board) -> None:
    board.store.removed("a", "u1", how="auto-unlock", removed_by="dog", why="late", hostname="h1")
    board.store.removed("b", "u2", how="force-unlock", removed_by="ann", why="asked", reason="r")
    snapshot = board.moment().picture.snapshot

    def found(text: str) -> list[str]:
        return [removal.holder.name for removal in snapshot.removed(Query(text)).items]

    assert found("") == ["b", "a"]  # the newest first
    names = [found(text) for text in ("H1", "ann asked", "force", "r dog")]
    assert names == [["a"], ["b"], ["b"], []]


# ---------------------------------------------------------------- a restore


def test_a_restore_is_told_for_a_day_and_counts_as_a_change(board: Board) -> None:
    """By a banner on every page, in which what somebody wrote steers nothing."""
    board.store.take("a")
    before = board.moment()
    page = board.html("/")
    assert "restored from a backup" not in page
    said = Restored("1", time.time() - 60, "<b>ann@host")
    board.store.write(("restored", "", "", said.value().encode()))
    after = board.moment()
    assert after.restored == Restored("1", 0, "", board.store.revision)
    assert after.etag() != before.etag()
    for path in ("/", "/lock/a", "/removed", "/timeline"):
        page = board.html(path)
        assert "The store was restored from a backup." in page
        assert "&lt;b&gt;ann@host" in page
    later = after._replace(wall=after.wall + 86400)
    assert later.restored is None
    assert later.etag() != after.etag()
