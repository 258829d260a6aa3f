"""The line that a person sees who waits: at any width it says who has the lock, and since when."""

from __future__ import annotations

import time

import pytest

from lockclient.cli.scripts.queue_status import sentence
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.outcomes import ReadResult
from lockclient.text.timestamps import utc

HOST = "cron-1.prod.example.com"


def seen(since: float) -> ReadResult:
    holder = Holder("n", "u", hostname=HOST, pid=20857, locked_at=since, reason="totals")
    return ReadResult(holder, tuple(Ticket("n", f"{number}") for number in range(6)), None, 1)


@pytest.mark.parametrize("name", ["deploy/prod", "deploy/" + "a-long-name/" * 10])
@pytest.mark.parametrize("width", [79, 100, 119])
def test_the_pid_and_since_when_are_never_cut(name: str, width: int) -> None:
    since = time.time() - 60
    line = sentence(name, seen(since), "5", width)
    assert len(line) <= width
    assert line.startswith("Waiting for deploy/")
    assert ", 6th in line, held by cron-1" in line
    assert line.endswith(f":20857, since {utc(since)[11:]}")


def test_where_there_is_room_it_says_all() -> None:
    since = time.time() - 90000
    line = sentence("deploy/prod", seen(since), "5", 200)
    assert line == (
        f"Waiting for deploy/prod, 6th in line of 6, held by {HOST}, pid 20857, for 'totals', "
        f"since {utc(since)}"
    )
    assert utc(since) in sentence("deploy/prod", seen(since), "5", 100)


def test_a_lock_that_is_free_just_now() -> None:
    free = ReadResult(None, (), None, 1)
    assert sentence("deploy/prod", free, None, 79) == "Waiting for deploy/prod"
