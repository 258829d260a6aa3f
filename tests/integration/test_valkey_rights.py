"""`clustermutex setup-auth` for servers of Valkey: each program can do its work, and no more."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings, StoreError, StoreUnavailable
from lockclient.model.clocks import Stamps
from lockclient.model.removal import Removal
from lockclient.stores.request_types import Push, Remove, Take, Unlock
from lockclient.stores.service_store import Change
from lockclient.stores.valkey.errors import ErrorReply
from lockclient.stores.valkey.keys import KeyNames
from tests.contract.asking import holder, removal
from tests.support.following import following
from tests.support.locks import held, read, remove, soon, take, unlock
from tests.support.processes import needed, run_to_end, wait_until
from tests.support.terminal import called
from tests.support.valkey_servers import Servers, ValkeyStore, opened, running
from tests.support.valkey_user import as_user

USERS = {"client": "shop", "unlocker": "warden", "dashboard": "o'brien$(x)", "operator": "ann"}
SECRETS = {f"{kind.upper()}_PASSWORD": f"of the {kind}'s" for kind in USERS}


def set_up(
    servers: Servers, *words: str, status: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    script = called(Settings.load(servers.place().url()), "setup-auth", *words).stdout
    assert "of the" not in script
    env = {**SECRETS, "VALKEY_CLI": needed("redis-cli"), **more}
    return run_to_end("sh", typed=script, env=env, status=status)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers on which sh has run what the command prints, and no other user may do much."""
    with running(tmp_path_factory.mktemp("servers"), 3) as three:
        with three.store():
            pass
        named = [word for kind, user in USERS.items() for word in (f"--{kind}", user)]
        for _ in range(2):  # it can be run again
            set_up(three, *named)
        yield three


def store_of(servers: Servers, kind: str) -> closing[ValkeyStore]:
    """Open a store as that kind's user, for the time of a block."""
    password = SECRETS[f"{kind.upper()}_PASSWORD"]
    return closing(opened(servers.place(user=USERS[kind], password=password)))


def test_the_script_names_the_password_that_it_needs(tmp_path: Path) -> None:
    with running(tmp_path, 1, options=("--requirepass", "right")) as one:
        for wrong in ({}, {"REDISCLI_AUTH": "wrong"}):
            done = set_up(one, "--client", "shop", status=1, **wrong)
            assert f"{one.all[0].endpoint} lets nobody in who asks so: " in done.stderr
            assert "Set REDISCLI_AUTH to the password of who may make users" in done.stderr
            assert "multibulk" not in done.stderr
        set_up(one, "--client", "shop", REDISCLI_AUTH="right")


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


def test_the_unlocker_role_can_remove(servers: Servers) -> None:
    with (
        store_of(servers, "client") as client,
        store_of(servers, "unlocker") as unlocker,
        store_of(servers, "dashboard") as dashboard,
    ):
        dashboard.poll = 0.1
        with following(dashboard, removals=10) as table:
            uuid, _ = take(client, mine := holder("left"))
            wait_until(lambda: "left" in table.rows())
            unlocker.announce("u", "{}", 60.0, soon())
            wait_until(lambda: "u" in table.unlockers())
            remove(unlocker, mine)
            wait_until(lambda: [removal.holder.name for removal in table.removals()] == ["left"])
            assert read(client, "left", uuid).removal
            assert unlocker.forget(Change("removed", "left", uuid, None, 0, 0), soon())
            unlocker.withdraw_announcement("u", soon())
            wait_until(lambda: not table.removals())
            wait_until(lambda: not table.unlockers())


def test_an_operator_removes(servers: Servers) -> None:
    with store_of(servers, "client") as client, store_of(servers, "operator") as operator:
        take(client, mine := holder("hangs"))
        remove(operator, mine)


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
def test_all_other_commands_are_refused(servers: Servers, kind: str, what: str) -> None:
    with store_of(servers, "client") as client, store_of(servers, kind) as store:
        uuid, token = take(client, mine := holder("held"))
        key = KeyNames(servers.root).record("held", uuid)
        servers.command("SET", key, "{}")
        with pytest.raises(StoreError, match=r"may not do that .*clustermutex setup-auth"):
            ATTEMPTS[what](store, uuid, token, removal(mine))
        assert held(client, "held").stamp_revisions == (token, token)
        assert servers.command("GET", key) == [b"{}"] * 3
        unlock(client, uuid, "held")


def ask_as(servers: Servers, kind: str, *words: str) -> Any:
    password = SECRETS[f"{kind.upper()}_PASSWORD"]
    place = servers.place(user=USERS[kind], password=password)
    return as_user(place, servers.all[0].endpoint, *words)


@pytest.mark.parametrize("kind", USERS)
def test_no_other_key_is_in_reach(servers: Servers, kind: str) -> None:
    servers.command("SET", "other", "secret")
    for command in ("GET other", "KEYS *", "FLUSHALL", "CONFIG SET a b", "CONFIG GET requirepass"):
        with pytest.raises(ErrorReply, match=r"(?i)no permission"):
            ask_as(servers, kind, *command.split())


def test_the_reading_role_sends_no_script_and_writes_nothing(servers: Servers) -> None:
    endless, note = "while true do end", f"{servers.root}/server"
    for words in (
        *((verb, endless, "0") for verb in ("EVAL", "EVAL_RO")),
        ("HSET", note, "votes_at", "0"),
        *((verb, f"{servers.root}/locks/a") for verb in ("DEL", "PERSIST")),
        ("FUNCTION", "LOAD", "#!lua name=x"),
        ("FCALL_RO", "x", "0"),
        ("SADD", f"{servers.root}/locks", "a"),
        ("SCRIPT", "LOAD", endless),
        ("PUBLISH", f"{servers.root}/released/a", "x"),
    ):
        with pytest.raises(ErrorReply, match=r"(?i)no permission"):
            ask_as(servers, "dashboard", *words)


def test_the_reading_role_ends_no_quarantine(tmp_path: Path) -> None:
    with running(tmp_path, 1) as one:
        set_up(one, "--client", "shop", "--dashboard", USERS["dashboard"])
        with store_of(one, "dashboard") as viewer:
            (voter,) = viewer.voters()
            assert "no program has met it since that may take or remove locks" in voter.trouble
            with store_of(one, "client") as client:
                list(client.voters())
                (voter,) = viewer.voters()
                assert voter.waits > 3000
                with pytest.raises(StoreUnavailable, match="may not do that"):
                    viewer.vouch()
                client.vouch()
                uuid, _ = take(client, holder("a"))
            assert read(viewer, "a", uuid).holder is not None
            (voter,) = viewer.voters()
            assert voter.locks == {"a"}


def test_the_dashboard_role_reads_the_same_locks(tmp_path: Path) -> None:
    with running(tmp_path, 1) as one, one.store(expire=True) as store:
        set_up(one, "--dashboard", USERS["dashboard"])
        secret = SECRETS["DASHBOARD_PASSWORD"]
        place = one.place(expire=True, user=USERS["dashboard"], password=secret)
        with closing(opened(place)) as viewer:
            for number in range(600):
                take(store, holder(f"lock-{number}"))
            uuid, _ = take(store, holder("short", auto_unlock_after=1.0))
            assert read(viewer, "lock-1", uuid).holder == read(store, "lock-1", uuid).holder
            wait_until(lambda: read(store, "short", uuid).holder is None, what="the expiry")
            assert read(viewer, "short", uuid).holder is None
            names = viewer.names("", 1000, soon())
            assert len(names) == 600
            assert names == store.names("", 1000, soon())


def test_reads_are_bounded(servers: Servers) -> None:
    with store_of(servers, "client") as client, store_of(servers, "dashboard") as viewer:
        uuid, _ = take(client, mine := holder("large"))
        keys, large = KeyNames(servers.root), "x" * 5_000_000
        servers.command("HSET", keys.lock(mine.name), "about", large, "other", large)
        servers.command("SET", keys.record(mine.name, uuid), large)
        for store in (client, viewer):
            seen = read(store, mine.name, uuid)
            assert seen.holder is not None
            assert "more than 65536" in seen.holder.problems["about"]
        servers.command("DEL", keys.lock(mine.name), keys.record(mine.name, uuid))


@pytest.mark.parametrize("rights", ["resetchannels", "&* -publish -pubsub"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_refused_hint_fails_no_release(tmp_path: Path, number: int, rights: str) -> None:
    with running(tmp_path, number) as some, some.store() as other:
        some.command("ACL", "SETUSER", "app", "on", ">p", "~*", "+@all", *rights.split())
        place = some.place(user="app", password="p")
        with closing(opened(place)) as store:
            for _ in range(2):
                lock = ClusterMutex("a", store=store, expected_runtime=60).acquire(timeout=60)
                assert lock is not None
                with following(other):  # without a subscriber nothing is published
                    lock.release()
            assert other.names("", 5, soon()) == []
            uuid, _ = take(store, mine := holder("b"))
            remove(store, mine)
            assert read(other, "b", uuid).removal is not None
        env = {"VALKEY_USER": "app", "VALKEY_PASSWORD": "p"}
        found = called(Settings.load(place.url(), env), "doctor", status=None).stdout
        assert found.count(f"it lacks &{some.root}/released/* or +publish") == number
