"""Who waits for each other: circles among waits, on pages, in the command's words, in metrics."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.aio import _this_task
from lockclient.model.deadlocks import deadlocks
from lockclient.model.holder import Holder
from lockclient.model.process_identity import this_thread
from lockclient.model.ticket import Ticket
from tests.support.board import Board


def wait(name: str, actor: str | None, revision: int = 1, within: str | None = None) -> Ticket:
    uuid = f"w-{name}-{actor}-{revision}"
    return Ticket(name, uuid, actor=actor, revision=revision, within=within)


def held(**by: str | None) -> dict[str, Holder]:
    return {name: Holder(name, "u", "h", actor=actor) for name, actor in by.items()}


def found(holders: dict[str, Holder], *tickets: Ticket) -> list[tuple[str, ...]]:
    return [deadlock.names for deadlock in deadlocks(holders, tickets)]


# ---------------------------------------------------------------- circles


def test_two_that_wait_for_each_other_are_one_circle() -> None:
    holders = held(x="A", y="B", z="C")
    assert found(holders, wait("y", "A"), wait("x", "B")) == [("x", "y")]
    assert found(holders, wait("x", "B"), wait("y", "A"), wait("x", "D")) == [("x", "y")]
    assert found(holders, wait("y", "A"), wait("z", "B")) == []


def test_who_waits_inside_the_block_that_holds_the_lock_waits_for_ever() -> None:
    assert found(held(x="A"), wait("x", "A", within="u")) == [("x",)]


def test_a_thread_that_waits_for_what_it_took_in_another_job_waits_for_nobody() -> None:
    """Those of a pool are used again; and a block that lost the lock holds up nobody."""
    assert found(held(x="A"), wait("x", "A")) == []
    assert found(held(x="A"), wait("x", "A", within="of before")) == []


def test_a_longer_circle_is_found_from_wherever_one_begins() -> None:
    holders = held(a="1", b="2", c="3")
    waits = [wait("b", "1"), wait("c", "2"), wait("a", "3"), wait("a", "outside")]
    for turn in range(len(waits)):
        assert found(holders, *waits[turn:], *waits[:turn]) == [("a", "b", "c")]


def test_what_does_not_say_who_it_is_is_in_no_circle() -> None:
    """Clients in other languages, older ones: nothing is said of them."""
    assert found(held(x=None, y=None), wait("y", None), wait("x", None)) == []
    assert found(held(x="", y=""), wait("y", ""), wait("x", "")) == []
    assert found({}, wait("x", "A")) == []


def test_an_actor_waits_for_one_lock_the_oldest_counts() -> None:
    holders = held(x="A", y="B", z="C")
    assert found(holders, wait("z", "A", 9), wait("y", "A", 2), wait("x", "B")) == [("x", "y")]
    assert found(holders, wait("z", "A", 2), wait("y", "A", 9), wait("x", "B")) == []


@given(
    st.dictionaries(st.sampled_from("uvwxyz"), st.sampled_from("ABCDEF"), max_size=6),
    st.dictionaries(st.sampled_from("ABCDEF"), st.sampled_from("uvwxyz"), max_size=6),
)
def test_every_circle_is_found_once(holds: dict[str, str], waits: dict[str, str]) -> None:
    """Against the plainest way: from each actor, go on until somebody comes again."""
    circles = set()
    for start in waits:
        way = [start]
        while (after := holds.get(waits.get(way[-1], ""), "")) in waits and after not in way:
            way.append(after)
        if after == start:
            circles.add(frozenset(way))
    tickets = [wait(name, actor, within="u") for actor, name in waits.items()]
    result = deadlocks(held(**holds), tickets)
    actors = [frozenset(str(ticket.actor) for ticket in deadlock.waits) for deadlock in result]
    assert len(actors) == len(set(actors))
    assert set(actors) == circles


# ---------------------------------------------------------------- who one is


def test_threads_tasks_and_forks_are_told_apart() -> None:
    mine = this_thread()[1]
    others: list[str] = []
    thread = threading.Thread(target=lambda: others.append(this_thread()[1]))
    thread.start()
    thread.join()

    async def tasks() -> list[str]:
        async def one() -> str:
            return _this_task()[1]

        return [_this_task()[1], *await asyncio.gather(one(), one())]

    others += asyncio.run(tasks())
    assert len({mine, *others}) == 1 + len(others) == 5
    assert this_thread()[1] == mine
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, this_thread()[1].encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000).decode() not in (mine, "")
    os.close(reading)
    os.close(writing)


def test_who_comes_after_another_is_somebody_else() -> None:
    """The system gives a number of a thread that ended, and Python an address, to the next one."""
    idents, actors = [], []

    def note() -> None:
        idents.append(threading.get_ident())
        actors.append(this_thread()[1])
        assert this_thread()[1] == actors[-1]

    for _ in range(20):
        thread = threading.Thread(target=note, name="worker")
        thread.start()
        thread.join()
    assert len(set(idents)) < len(set(actors)) == 20

    async def one() -> tuple[int, str]:
        await asyncio.sleep(0)
        assert _this_task() == _this_task()
        return id(asyncio.current_task()), _this_task()[1]

    async def tasks() -> list[tuple[int, str]]:
        return [await asyncio.create_task(one(), name="worker") for _ in range(20)]

    seen = asyncio.run(tasks())
    assert len({address for address, _ in seen}) < len({actor for _, actor in seen}) == 20


# ---------------------------------------------------------------- on pages


@pytest.fixture
def board() -> Iterator[Board]:
    with Board("--allow-force-unlock --runbook-url https://r.example") as started:
        started.store.unlocker()
        yield started


def embrace(board: Board) -> None:
    board.store.take("x", uuid="ux", hostname="left", actor="A", backtrace="code of x")
    board.store.take("y", uuid="uy", hostname="right", actor="B", backtrace="code of y")
    board.store.wait("y", "wy", hostname="left", pid=1, actor="A", since=1.0)
    board.store.wait("x", "wx", hostname="right", pid=2, actor="B", since=1.0)


def test_a_deadlock_is_on_both_locks_pages_with_both_backtraces(board: Board) -> None:
    embrace(board)
    board.store.take("other")
    for name in "xy":
        waits = ("left : 1 holds x and has waited", "right : 2 holds y and has waited")
        code = ("code of x", "code of y")
        text = board.shows(f"/lock/{name}", "This may be a deadlock", *waits, *code)
        assert text.count("clustermutex force-unlock") == 2, "commands for both holders"
        html = board.html(f"/lock/{name}")
        assert 'href="https://r.example#lockdeadlock"' in html
        assert f"<title>Deadlock?: {name}" in html
    board.shows("/lock/other", but=("deadlock",))
    for path in ("/", "/waiting"):
        board.shows(path, "2 clients each hold a lock and wait for the next one's: x, y.")
    assert board.text("/").count("Deadlock?") == 2, "each row of theirs is marked"
    assert "<title>Deadlock? · Locks" in board.html("/")


def test_pages_that_were_seen_before_it_are_asked_for_again(board: Board) -> None:
    """It is known later than the waits that make it: the store is asked who waits."""
    board.store.take("x", uuid="ux", actor="A")
    tags = {}
    for path in ("/", "/lock/x", "/waiting"):
        tags[path] = board.get(path).headers["ETag"]
        assert board.get(path, If_None_Match=tags[path]).status_code == 304
    board.store.wait("x", "w", actor="A")
    for path, tag in tags.items():
        assert board.get(path, If_None_Match=tag).status_code == 200


def test_it_is_a_metric(board: Board) -> None:
    """Whoever holds nothing is in nobody's way, though its line is the same."""
    assert "mutexdash_deadlocks 0.0" in board.html("/metrics")
    embrace(board)
    assert "mutexdash_deadlocks 1.0" in board.html("/metrics")
    board.store.release("x")
    assert "mutexdash_deadlocks 0.0" in board.html("/metrics"), (
        "whoever holds nothing is in nobody's way, though its line is the same"
    )


def test_tickets_are_read_when_a_queue_has_changed_and_not_otherwise(board: Board) -> None:
    embrace(board)
    board.shows("/waiting", "1–2 of 2 waiters", "x, y")
    reads = board.store.reads_of_tickets
    board.store.push("x")
    board.shows("/waiting", "1–2 of 2 waiters", "x, y")
    assert board.store.reads_of_tickets == reads
    board.store.wait("x", "another")
    board.shows("/waiting", "1–3 of 3 waiters", "x, y")
    assert board.store.reads_of_tickets == reads + 1


# ---------------------------------------------------------------- all that wait


def test_all_waiters_are_on_one_page_the_longest_first(board: Board) -> None:
    board.store.take("deploy/prod", hostname="ci-1", pid=5)
    for number, name in enumerate(("deploy/prod", "free", "deploy/prod")):
        board.store.wait(
            name, f"w{number}", hostname=f"ci-{number + 2}.example.com", pid=60 + number,
            reason=f"release {number}", since=1.0,
        )  # fmt: skip
    parts = ("held by ci-1 : 5", "nobody at the moment", "1–3 of 3 waiters")
    text = board.shows("/waiting", *parts)
    places = [text.index(f"ci-{number}.example.com : {58 + number}") for number in (2, 3, 4)]
    assert places == sorted(places)
    board.shows("/waiting?q=lock:free", "1–1 of 1 waiter")
    board.shows("/waiting?q=nothing", "None of 3 waiters match.")
    board.shows("/host?name=ci-3.example.com", "Waits for (1)")


def test_nobody_waits(board: Board) -> None:
    board.shows("/waiting", "No client is waiting for a lock.")
    board.shows("/host?name=nobody", "This host holds no locks.")
    board.shows("/host", "give the host's name", code=400)


def test_hostile_waiters_are_text(board: Board) -> None:
    evil = "<img src=x onerror=alert(1)>\u202e"
    board.store.take("a", actor=evil, hostname=evil)
    board.store.wait("a", evil, actor=evil, hostname=evil, reason=f"https://x.example/{evil}")
    for path in ("/waiting", "/lock/a", "/", f"/host?name={evil}", "/waiting?q=<img"):
        html = board.html(path)
        assert "<img" not in html
        assert "\u202e" not in html.replace(evil, "")
    assert json.loads(board.get("/api/locks/a").data)["actor"] == evil
