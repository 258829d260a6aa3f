"""`clustermutex vouch`: an operator states that nobody holds a lock; new servers vote at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings, StoreUnavailable
from tests.support.terminal import called, in_terminal, one_line, piped
from tests.support.valkey_servers import Server, Servers, redis_binary, running


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Three servers that are new to their keyspace, and are vouched for by nobody."""
    with running(tmp_path, 3) as three:
        yield three


@pytest.fixture
def settings(servers: Servers) -> Settings:
    return Settings.load(servers.place().url())


def test_vouch_shows_the_servers_asks_and_ends_their_quarantine(
    servers: Servers, settings: Settings
) -> None:
    told = piped(settings, "run", "a", "--timeout", "1", "--", "true", status=69).stderr
    assert "`clustermutex vouch` lets servers vote at once" in told
    assert "`clustermutex vouch`" in called(settings, "doctor", status=2).stdout
    with in_terminal(settings, "vouch") as terminal:
        terminal.wait_for("[y/N]")
        for server in servers.all:
            assert f"{server.endpoint}  waits, and votes in " in terminal.text
        terminal.enter("n\n")
        assert terminal.ended() == 1
        assert "The answer was no" in terminal.text
    called(settings, "ls", status=69)
    with in_terminal(settings, "vouch") as terminal:
        terminal.wait_for("[y/N]")
        terminal.enter("y\n")
        assert terminal.ended() == 0
        assert "3 servers need not wait any more" in terminal.text
    assert piped(settings, "run", "a", "--", "echo", "had").stdout == "had\n"
    assert "No server waits" in called(settings, "vouch", "--yes").stdout


def test_vouch_without_a_terminal_needs_yes(settings: Settings) -> None:
    assert "--yes" in one_line(called(settings, "vouch", status=2))
    called(settings, "ls", status=69)
    assert "3 servers need not wait any more" in called(settings, "vouch", "--yes").stdout
    called(settings, "ls")


def test_vouch_refuses_servers_with_locks(servers: Servers, settings: Settings) -> None:
    with servers.store() as store:
        mutex = ClusterMutex("deploy/prod", store=store)
        mutex.acquire()
        for server in servers.all[:2]:
            server.empty()
        told = called(settings, "vouch", columns=120, status=1).stderr
        assert "1 lock ('deploy/prod') stands there" in " ".join(told.split())
        called(settings, "ls", status=69)
        assert "2 servers need not wait any more" in called(settings, "vouch", "--yes").stdout
        called(settings, "ls")


def test_vouch_names_an_unreachable_server_and_reaches_the_others(
    servers: Servers, settings: Settings
) -> None:
    servers.all[0].kill()
    away = servers.all[0].endpoint
    asked = called(settings, "vouch", columns=120, typed="n\n", status=1).stdout
    assert f"Beware: the locks on {away} could not be read." in asked
    assert "[y/N]" in asked
    done = called(settings, "vouch", "--yes", status=69)
    assert f"{away}  has no vote: connection refused" in done.stdout
    assert f"noted that nobody holds a lock ({away}: connection refused)" in done.stderr
    called(settings, "ls")
    again = called(settings, "vouch", "--yes", status=69).stderr
    assert f"{away} could not be reached" in again, "though no other waits"
    with servers.store(vouched=False) as store:
        with pytest.raises(StoreUnavailable, match="connection refused"):
            store.vouch()
        assert [bool(voter.trouble) for voter in store.voters()] == [True, False, False]
        assert not any(voter.waits for voter in store.voters())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "maxmemory-policy"),
        (("--requirepass", "secret"), "it wants a password"),
        (("--replicaof", "127.0.0.1", "1"), "it is a replica"),
        (("--rename-command", "SSCAN", ""), "SSCAN"),
    ],
)
def test_vouch_fails_without_a_reachable_server(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    server = Server(tmp_path / "server", redis_binary(), options=options)
    with server:
        where = Settings.load(f"valkey://{server.endpoint}/p")
        done = called(where, "vouch", "--yes", status=69)
        assert why in done.stdout
        assert f"{server.endpoint} could not be reached" in done.stderr
    assert "could not be reached" in called(where, "vouch", "--yes", status=69).stderr


def test_a_store_without_votes_needs_none(tmp_path: Path) -> None:
    """etcd: nothing is asked of it."""
    said = one_line(called(Settings.load("etcd://127.0.0.1:1"), "vouch", "--yes", status=1))
    assert "etcd speaks with one voice" in said
