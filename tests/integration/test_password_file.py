"""Password files: a new password needs no restart, and errors name the file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, Settings, StoreError, StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import etcdctl_of
from tests.support.processes import wait_until
from tests.support.valkey_servers import opened as opened_valkey
from tests.support.valkey_servers import running

GONE = "The password file .*secret' can't be read: No such file"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("old\n")
    return file


def test_etcd_s_is_read_for_each_token(
    etcd_binary: str, opened: Callable[..., ServiceStore], secret: Path
) -> None:
    """By threads and by event loops."""
    server = Etcd(etcd_binary, secret.with_name("data"), secret.with_name("etcd.log"))
    server.extra = ["--bcrypt-cost=4"]
    with server:
        etcdctl = etcdctl_of(server)
        etcdctl("user", "add", "root:old")
        etcdctl("user", "grant-role", "root", "root")
        etcdctl("auth", "enable")
        settings = Settings((server.endpoint,), user="root", password_file=str(secret))

        async def lock_on_a_loop(store: ServiceStore) -> None:
            async with AsyncClusterMutex("loop", store=store):
                pass

        store = opened(settings)
        with ClusterMutex("held", store=store) as held:
            asyncio.run(lock_on_a_loop(store))
            secret.write_text("new\n")
            how = ("--user=root:old", "user", "passwd", "root", "--interactive=false")
            etcdctl(*how, input="new\n")
            held.alive(force=True)
            asyncio.run(lock_on_a_loop(store))
        refused = (
            r"Check ETCDCTL_USER and ETCDCTL_PASSWORD_FILE \(.*secret\): it does not let us in"
        )
        secret.write_text("wrong")
        for words in (refused, f"ETCDCTL_PASSWORD_FILE: {GONE}"):
            store = opened(settings)
            with pytest.raises(StoreError, match=words):
                ClusterMutex("refused", store=store).acquire(timeout=30)
            with pytest.raises(StoreError, match=words):
                asyncio.run(lock_on_a_loop(store))
            secret.unlink(missing_ok=True)


def test_valkey_s_is_read_for_each_connection(secret: Path) -> None:
    user = ("ACL", "SETUSER", "shop", "reset", "on", "~*", "&*", "+@all")
    with running(secret.parent, 1) as one:
        one.command(*user, ">old")
        place = one.place(user="shop", password_file=str(secret))
        with one.store(user="shop", password_file=str(secret)) as store:
            held = ClusterMutex("a", store=store)
            held.acquire(timeout=30)
            secret.write_text("new\n")
            one.command(*user, ">new")
            one.command("CLIENT", "KILL", "USER", "shop")

            def pushes() -> bool:
                with suppress(StoreError, StoreUnavailable):
                    held.alive(force=True)
                    return True
                return False

            wait_until(pushes, what="a connection with the new password")
            held.release()
        secret.unlink()
        with (
            closing(opened_valkey(place)) as refused,
            pytest.raises(StoreError, match=f"VALKEY_PASSWORD_FILE: {GONE}"),
        ):
            ClusterMutex("b", store=refused).acquire(timeout=30)
