"""Cycles among waits, and the actors in them."""

from __future__ import annotations

import asyncio
import os
import threading

from hypothesis import given
from hypothesis import strategies as st

from lockclient.acquisition.shared_mutex import this_thread
from lockclient.aio import _this_task
from lockclient.model.deadlocks import deadlocks
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket


def wait(name: str, actor: str | None, revision: int = 1) -> Ticket:
    return Ticket(name, f"w-{name}-{actor}-{revision}", actor=actor, revision=revision)


def held(**by: str | None) -> dict[str, Holder]:
    return {name: Holder(name, "u", "h", actor=actor) for name, actor in by.items()}


def found(holders: dict[str, Holder], *tickets: Ticket) -> list[tuple[str, ...]]:
    return [deadlock.names for deadlock in deadlocks(holders, tickets)]


# ---------------------------------------------------------------- circles


def test_two_actors_that_wait_for_each_other_are_a_cycle() -> None:
    holders = held(x="A", y="B", z="C")
    assert found(holders, wait("y", "A"), wait("x", "B")) == [("x", "y")]
    assert found(holders, wait("x", "B"), wait("y", "A"), wait("x", "D")) == [("x", "y")]
    assert found(holders, wait("y", "A"), wait("z", "B")) == []


def test_a_longer_cycle_is_found_from_each_start() -> None:
    holders = held(a="1", b="2", c="3")
    waits = [wait("b", "1"), wait("c", "2"), wait("a", "3"), wait("a", "outside")]
    for turn in range(len(waits)):
        assert found(holders, *waits[turn:], *waits[:turn]) == [("a", "b", "c")]


def test_a_holder_without_an_actor_is_in_no_cycle() -> None:
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
    """Compared with a plain search: from each actor, follow the waits until one comes again."""
    circles = set()
    for start in waits:
        way = [start]
        while (after := holds.get(waits.get(way[-1], ""), "")) in waits and after not in way:
            way.append(after)
        if after == start and len(way) > 1:
            circles.add(frozenset(way))
    tickets = [wait(name, actor) for actor, name in waits.items()]
    result = deadlocks(held(**holds), tickets)
    actors = [frozenset(str(ticket.actor) for ticket in deadlock.waits) for deadlock in result]
    assert len(actors) == len(set(actors))
    assert set(actors) == circles


# ---------------------------------------------------------------- who one is


def test_threads_tasks_and_forks_are_different_actors() -> None:
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


def test_a_reused_thread_id_is_another_actor() -> None:
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
