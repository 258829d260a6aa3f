"""`clustermutex watch`: a line for each thing that happens to a lock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.removal import Removal
from lockclient.stores.requests import Remove
from lockclient.stores.service_protocol import ServiceStore
from tests.support.etcd_binary import Etcdctl
from tests.support.locks import ask
from tests.support.memory_store import MemoryStore
from tests.support.polls import ALL
from tests.support.processes import Service, start_service, wait_until
from tests.support.terminal import COMMAND, called, environment, in_terminal, one_line


@contextmanager
def watching(settings: Settings, store: ServiceStore, name: str = "there") -> Iterator[Service]:
    """One that runs, and has told of a lock that is held for the time of the block."""
    words = [COMMAND, "watch", "--json", "--initial"]
    with (
        ClusterMutex(name, store=store),
        start_service(words, environment(settings)) as service,
    ):
        wait_until(lambda: kinds(service, name) == ["held"], what="the first lock")
        yield service


def events(service: Service, name: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in service.log_text().splitlines() if line.endswith("}")]
    return [event for event in found if event.get("name") == name]


def kinds(service: Service, name: str | None = None) -> list[str]:
    return [event["event"] for event in events(service, name)]


def test_the_life_of_a_lock(settings: Settings, store: ServiceStore) -> None:
    """Taken, past its alert, alive again, past its end, released: one event each."""
    with watching(settings, store) as service:
        mutex = ClusterMutex(
            "x", reason="why", expected_runtime=0.5, auto_unlock_after=60, store=store
        )
        with mutex:
            wait_until(lambda: kinds(service, "x") == ["taken", "alert"], what="the alert")
            mutex.alive(force=True)
            wait_until(lambda: "recovered" in kinds(service, "x"), what="the recovery")
        wait_until(lambda: kinds(service, "x")[-1:] == ["released"], what="the release")
        # It may have gone past its alert a second time before its release.
        assert kinds(service, "x")[:3] == ["taken", "alert", "recovered"]
        taken = events(service, "x")[0]
        assert taken["reason"] == "why"
        assert taken["state"] == "ok"
        assert taken["fencing_token"] > 0
        assert abs(taken["time"] - time.time()) < 60
        assert kinds(service, "there") == ["held"]


def test_overdue_broken_and_removed(
    settings: Settings, store: ServiceStore, etcdctl: Etcdctl
) -> None:
    """What nobody wrote is told when it is due, and a removal is no release."""
    with watching(settings, store) as service:
        late = ClusterMutex("late", expected_runtime=0.2, auto_unlock_after=0.7, store=store)
        late.acquire()
        wait_until(lambda: kinds(service, "late")[-1:] == ["overdue"], what="the end")
        for how, who in (("auto-unlock", "unlocker@a:1"), ("force-unlock", "ann")):
            mutex = ClusterMutex(how, store=store)
            mutex.acquire()
            removal = Removal(mutex.record, time.time(), who, how, "because")
            ask(store, Remove(removal, None))
            wait_until(lambda kind=how: kinds(service, kind) == ["taken", kind], what=how)  # type: ignore[misc]
            told = events(service, how)[-1]
            assert (told["removed_by"], told["why"]) == (who, "because")
            with pytest.raises(LockLost):
                mutex.release()
        etcdctl("put", f"{settings.root}/locks/odd/uuid", "u")
        wait_until(lambda: kinds(service, "odd") == ["taken", "broken"], what="the broken one")
        with pytest.raises(LockLost):
            late.release()


def test_who_waits_and_who_leaves_the_line(settings: Settings, store: ServiceStore) -> None:
    """A waiter that gave up is told, and one that got the lock has not left: it is handed over."""
    with watching(settings, store) as service, ThreadPoolExecutor(1) as thread:
        holder = ClusterMutex("x", store=store)
        holder.acquire()
        gives_up = ClusterMutex("x", reason="in vain", timeout=1.5, store=store)
        assert not thread.submit(gives_up.acquire).result(60)
        wait_until(lambda: kinds(service, "x") == ["taken", "waiting", "left"], what="both")
        _, came, left = events(service, "x")
        assert came["uuid"] == left["uuid"] == holder.uuid
        assert came["waiter"]["reason"] == "in vain"
        assert came["waiter"] == left["waiter"]
        assert came["waiters"] == 1
        gets_it = ClusterMutex("x", store=store)
        taking = thread.submit(gets_it.acquire)
        wait_until(lambda: kinds(service, "x")[3:] == ["waiting"], what="the second")
        holder.release()
        assert taking.result(60)
        wait_until(lambda: "released" in kinds(service, "x"), what="the release")
        gets_it.release()
        wait_until(lambda: kinds(service, "x").count("released") == 2, what="the end")
        assert kinds(service, "x")[3:] == ["waiting", "released", "taken", "released"]
        uuids = [event["uuid"] for event in events(service, "x")[4:]]
        assert uuids[0] == came["uuid"] != uuids[1] == uuids[2]


def test_on_a_terminal(settings: Settings, store: ServiceStore) -> None:
    """A line for people, in colour, until Ctrl-C; only of the locks that were asked for."""
    like = ALL["Cyrillic letters"]
    with ClusterMutex("there", store=store), ClusterMutex(like, reason="the", store=store):
        with in_terminal(settings, "watch", "--initial", "the", columns=80) as terminal:
            terminal.wait_for("  there  by ")
            terminal.wait_for(f"({like.encode('ascii', 'backslashreplace').decode()})")
            with ClusterMutex("foreign", store=store), ClusterMutex("them", store=store):
                terminal.wait_for("taken")
            terminal.wait_for("released")
            assert terminal.interrupt() == 0
            assert "\x1b[34mtaken" in terminal.raw
            text = terminal.text
        said, *lines = [line for line in text.splitlines() if line.strip("^C\n ")]
        assert said == "Events appear here. Ctrl-C ends this."
        assert max(map(len, lines)) <= 80, "broken at words"
        first = [line for line in lines if line[0].isdigit()]
        assert all(line.startswith(" " * 20) for line in lines if line not in first)
        assert [line.split()[1:3] for line in first][2:] == [
            ["taken", "them"],
            ["released", "them"],
        ]
        assert "Traceback" not in text


def test_etcd_away_is_told_once_and_nothing_is_missed(
    own_etcd: Etcd, own_store: ServiceStore
) -> None:
    """It goes on by itself; what changed meanwhile is told when etcd is back."""
    settings = Settings((own_etcd.endpoint,))
    with watching(settings, own_store) as service:
        mutex = ClusterMutex("x", store=own_store)
        mutex.acquire()
        wait_until(lambda: kinds(service, "x") == ["taken"], what="the second lock")
        own_etcd.stop()
        wait_until(lambda: kinds(service) == ["away"], what="that it is away")
        assert events(service)[0]["trouble"]
        own_etcd.start()
        wait_until(lambda: kinds(service) == ["away", "back"], what="that it is back")
        mutex.release()
        wait_until(lambda: kinds(service, "x") == ["taken", "released"], what="the release")


@pytest.mark.parametrize("words", ["watch", "ls --watch", "ls", "show x", "removed"])
def test_away_at_the_start_is_an_error(words: str) -> None:
    """A command that can't begin does not wait."""
    memory = MemoryStore()
    memory.memory.away = True
    assert "The store in memory is away" in one_line(called(memory, *words.split(), status=69))


@pytest.mark.parametrize("command", ["ls", "watch"])
def test_a_state_that_there_is_not(command: str) -> None:
    """It is named, with those that there are: an empty list would look as if all were well."""
    told = one_line(called(MemoryStore(), command, "state:foo", status=2))
    assert "No state is 'foo': there are ok, " in told
