"""`clustermutex setup-auth` for servers of Valkey: each program can do its work, and no more."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockclient import ClusterMutex, StoreError
from lockclient.model.clocks import Deadline, Stamps
from lockclient.model.removal import Removal
from lockclient.overview.table import Table
from lockclient.stores.outcomes import Done, Taken
from lockclient.stores.requests import Push, Read, Remove, Take, Unlock
from lockclient.stores.service_protocol import Change
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.store import ValkeyStore
from lockclient.stores.valkey.wire.connection import new_connection
from tests.contract.asking import holder, removal
from tests.support.processes import BIN, needed, wait_until
from tests.support.valkey_servers import Servers, running

USERS = {"client": "shop", "unlocker": "warden", "dashboard": "o'brien$(x)", "operator": "ann"}
SECRETS = {f"{kind.upper()}_PASSWORD": f"of the {kind}'s" for kind in USERS}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers on which sh has run what the command prints, and no other user may do much."""
    with running(tmp_path_factory.mktemp("servers"), 3) as three:
        with three.store():
            pass
        named = [word for kind, user in USERS.items() for word in (f"--{kind}", user)]
        environ = {**os.environ, "CLUSTERMUTEX_URL": three.place().url()}
        environ["VALKEY_CLI"] = needed("redis-cli")
        script = subprocess.run(
            [BIN / "clustermutex", "setup-auth", *named],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        assert "of the" not in script
        for _ in range(2):  # it can be run again
            done = subprocess.run(
                ["sh"],
                input=script,
                env={**environ, **SECRETS},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
        yield three


@contextmanager
def store_of(servers: Servers, kind: str) -> Iterator[ValkeyStore]:
    """Open a store as that kind's user."""
    place = servers.place(user=USERS[kind], password=SECRETS[f"{kind.upper()}_PASSWORD"])
    store = ValkeyStore(place)
    try:
        yield store
    finally:
        store.close()


def soon() -> Deadline:
    return Deadline.after(60)


def test_the_script_says_whose_password_it_wants(tmp_path: Path) -> None:
    """Before it changes anything; it is not told by the server's own words for that."""
    with running(tmp_path, 1, options=("--requirepass", "right")) as one:
        environ = {**os.environ, **SECRETS, "CLUSTERMUTEX_URL": one.place().url()}
        environ["VALKEY_CLI"] = needed("redis-cli")
        command = [str(BIN / "clustermutex"), "setup-auth", "--client", "shop"]

        def made(**more: str) -> subprocess.CompletedProcess[str]:
            script = subprocess.run(command, env=environ, capture_output=True, text=True)
            given = {**environ, **more}
            return subprocess.run(
                ["sh"], input=script.stdout, env=given, capture_output=True, text=True, timeout=60
            )

        for wrong in ({}, {"REDISCLI_AUTH": "wrong"}):
            done = made(**wrong)
            assert done.returncode == 1
            assert f"{one.all[0].endpoint} lets nobody in who asks so: " in done.stderr
            assert "Set REDISCLI_AUTH to the password of who may make users" in done.stderr
            assert "multibulk" not in done.stderr
        done = made(REDISCLI_AUTH="right")
        assert done.returncode == 0, done.stderr


def test_a_client_takes_and_waits(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    with store_of(servers, "client") as store:
        waiting = ClusterMutex("a", store=store, expected_runtime=60)
        with ClusterMutex("a", store=store, expected_runtime=60) as one:
            one.alive(force=True)
            assert not waiting.acquire(timeout=0.5)
        assert waiting.acquire(timeout=60)
        waiting.release()
        with ClusterMutex("b", store=store, auto_unlock_after=None):
            assert store.names("", 5, soon()) == ["b"]
    assert "hints" not in caplog.text


def test_an_unlocker_removes_and_all_see_it(servers: Servers) -> None:
    """With its sign of life; the record goes when it is told to forget it."""
    with (
        store_of(servers, "client") as client,
        store_of(servers, "unlocker") as unlocker,
        store_of(servers, "dashboard") as dashboard,
    ):
        dashboard.poll = 0.1
        table = Table(dashboard, removals=10)
        table.start()
        try:
            assert table.wait_ready(60)
            mine = holder("left")
            assert isinstance(client.ask(Take(mine), soon()), Taken)
            wait_until(lambda: "left" in table.rows())
            unlocker.announce("u", "{}", 60.0, soon())
            wait_until(lambda: "u" in table.unlockers())
            assert isinstance(unlocker.ask(Remove(removal(mine), None), soon()), Done)
            wait_until(lambda: [each.holder.name for each in table.removals()] == ["left"])
            assert client.ask(Read("left", mine.uuid), soon()).removal  # type: ignore[union-attr]
            forgotten = Change("removed", "left", mine.uuid or "", None, 0, 0)
            assert unlocker.forget(forgotten, soon())
            unlocker.withdraw_announcement("u", soon())
            wait_until(lambda: not table.removals())
            wait_until(lambda: not table.unlockers())
        finally:
            table.stop()


def test_an_operator_removes(servers: Servers) -> None:
    with store_of(servers, "client") as client, store_of(servers, "operator") as operator:
        mine = holder("hangs")
        assert isinstance(client.ask(Take(mine), soon()), Taken)
        assert isinstance(operator.ask(Remove(removal(mine), None), soon()), Done)


Attempt = Callable[[ValkeyStore, str, int, Removal], object]
ATTEMPTS: dict[str, Attempt] = {
    "take": lambda store, *_: store.ask(Take(holder("other")), soon()),
    "push": lambda store, uuid, at, _: store.ask(Push("held", uuid, Stamps(1, 2), at), soon()),
    "release": lambda store, uuid, *_: store.ask(Unlock("held", uuid), soon()),
    "remove": lambda store, _, __, record: store.ask(Remove(record, None), soon()),
    "announce": lambda store, *_: store.announce("u", "{}", 60.0, soon()),
    "forget": lambda store, uuid, *_: store.forget(
        Change("removed", "held", uuid, None, 0, 0), soon()
    ),
}


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *(("dashboard", what) for what in ATTEMPTS),
        *(("client", what) for what in ("remove", "announce", "forget")),
        ("operator", "announce"),
    ],
)
def test_nothing_more_works(servers: Servers, kind: str, what: str) -> None:
    """It is refused, with the right that is lacking, and changes nothing."""
    with store_of(servers, "client") as client, store_of(servers, kind) as store:
        mine = holder("held")
        got = client.ask(Take(mine), soon())
        assert isinstance(got, Taken)
        key = KeyNames(servers.root).record("held", mine.uuid or "")
        for each in servers.all:
            each.command("SET", key, "{}")
        with pytest.raises(StoreError, match=r"may not do that .*clustermutex setup-auth"):
            ATTEMPTS[what](store, mine.uuid or "", got.token, removal(mine))
        there = client.ask(Read("held"), soon())
        assert there.holder.stamp_revisions == (got.token, got.token)  # type: ignore[union-attr]
        assert [each.command("GET", key) for each in servers.all] == [b"{}"] * 3
        assert isinstance(client.ask(Unlock("held", mine.uuid or ""), soon()), Done)


def test_no_other_key_is_in_reach(servers: Servers) -> None:
    """Neither another prefix nor a command that is not needed."""
    place = servers.place(user=USERS["unlocker"], password=SECRETS["UNLOCKER_PASSWORD"])
    connection = new_connection(place, servers.all[0].endpoint)
    connection.connect()
    try:
        for words in (("GET", "other"), ("KEYS", "*"), ("FLUSHALL",), ("CONFIG", "SET", "a", "b")):
            connection.send_command(*words)
            with pytest.raises(Exception, match=r"(?i)no permission"):
                connection.read_response()
    finally:
        connection.disconnect()
