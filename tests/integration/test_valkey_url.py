"""Locks in Valkey by the URL alone: features, errors of missing ones, and TLS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockclient import Settings, StoreError, StoreUnavailable
from lockclient.cli.setup.ports import free_port
from lockclient.model.clocks import Deadline
from lockclient.stores import location
from lockclient.stores.outcomes import Taken
from lockclient.stores.request_types import Take
from lockclient.stores.valkey.location import ValkeyLocation
from tests.contract.asking import holder
from tests.support.certificates import Authority, Pair
from tests.support.locks import ask, has
from tests.support.terminal import called, piped
from tests.support.valkey_servers import Server, Servers, opened, redis_binary, running


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with running(tmp_path, 3) as three:
        with three.store():
            pass
        yield three


def test_the_command_takes_shows_and_frees_locks(servers: Servers) -> None:
    """run, lock, show, alive, unlock, force-unlock, doctor."""
    settings = Settings.load(servers.place().url())

    def examined(settings: Settings = settings) -> str:
        return called(settings, "doctor", status=None).stdout

    assert piped(settings, "run", "a", "--", "echo", "hi").stdout == "hi\n"
    uuid = piped(settings, "lock", "a", "--reason", "why not").stdout.strip()
    shown = called(settings, "show", "a").stdout
    assert uuid in shown
    assert "why not" in shown
    assert "waiters" not in shown
    assert "fencing" not in shown.lower()
    for verb in ("alive", "unlock"):
        piped(settings, verb, "a", "--uuid", uuid)
    piped(settings, "lock", "a")
    called(settings, "force-unlock", "a", "--yes", "--reason", "stuck")
    found = examined()
    assert "3 of 3 servers vote; 2 must agree" in found
    assert "No unlocker" in found
    with servers.store(expire=True, root="expiring") as store:
        assert "expire by themselves" in examined(Settings.load(store.location.url()))
    servers.all[0].kill()
    servers.all[1].command("HSET", f"{servers.root}/server", "kept", "0")
    found = examined()
    away = f"{servers.all[0].endpoint} has no vote: connection refused"
    assert f"{away}. → Check the network, and that the server runs." in found
    assert f"{servers.all[1].endpoint} may lose what it has answered" in found
    assert "2 of 3 servers vote; 2 must agree: none may fail. → Follow the advice" in found
    listed = called(settings, "ls").stderr
    assert f"{servers.all[0].endpoint} has no vote: connection refused." in listed
    servers.all[1].kill()
    assert "no lock can be acquired. → Follow the advice for the others: locks" in examined()
    servers.all[0].start()


def test_a_process_without_poll_is_refused() -> None:
    """The process is as `eventlet.monkey_patch(thread=False)` leaves it before the first import."""
    code = """
import select
del select.poll
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.store import ValkeyStore
ValkeyStore(ValkeyLocation(("127.0.0.1:1",)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ClusterMutexError: Locks in Valkey need select.poll, which eventlet" in ended.stderr


def test_nested_prefixes_do_not_collide(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "refuse_nested_root", lambda root: None)
    inner = f"{servers.root}/locks"
    with servers.store() as outside, servers.store(root=inner) as inside:
        mine = holder("n"), holder("n")
        for store, one in zip((outside, inside), mine, strict=True):
            assert isinstance(ask(store, Take(one)), Taken)
        with pytest.raises(StoreError, match=r"another program has this prefix, or one below it"):
            ask(outside, Take(holder("server")))
        assert (has(outside, "n"), has(inside, "n")) == tuple(one.uuid for one in mine)
        for store in (outside, inside):
            assert store.names("", 10, Deadline.after(5)) == ["n"]
            found = [voter.locks for voter in store.voters()]
            assert found == [frozenset("n")] * 3
    outer = f"{servers.root}-2"
    with servers.store(root=outer) as outside:
        first = holder("server")
        assert isinstance(ask(outside, Take(first)), Taken)
        late = opened(servers.place(root=f"{outer}/locks"))
        with closing(late), pytest.raises(StoreUnavailable, match=r"this prefix, or one below it"):
            late.vouch()
        assert has(outside, "server") == first.uuid


class TestTls:
    """Debian's Redis, which is built with it."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path)

    @staticmethod
    def server(folder: Path, authority: Authority, pair: Pair, clients: str = "no") -> Server:
        made = Server(folder / "server", redis_binary())
        made.options = (
            *("--port", "0", "--tls-port", str(made.port), "--tls-auth-clients", clients),
            *("--tls-cert-file", pair.cert, "--tls-key-file", pair.key),
            *("--tls-ca-cert-file", authority.cacert),
        )
        return made.start()

    @staticmethod
    def take(place: ValkeyLocation, *, vouched: bool = True) -> None:
        with closing(opened(place)) as store:
            if vouched:
                store.vouch()
            assert isinstance(ask(store, Take(holder()), 4.0), Taken)

    def test_tls_with_and_without_a_client_certificate(
        self, tmp_path: Path, authority: Authority
    ) -> None:
        mine = authority.issue(user="client")
        files: dict[str, Any] = {"VALKEY_CACERT": authority.cacert}
        for clients in ("no", "yes"):
            pair = authority.issue("127.0.0.1")
            server = self.server(tmp_path / clients, authority, pair, clients)
            url = f"rediss://{server.endpoint}/x"
            try:
                if clients == "yes":
                    refused = r"refused our certificate|was closed|may want a client certificate"
                    with pytest.raises(StoreUnavailable, match=refused):
                        self.take(ValkeyLocation.of(url, files), vouched=False)
                    files |= {"VALKEY_CERT": mine.cert, "VALKEY_KEY": mine.key}
                self.take(ValkeyLocation.of(url, files))
            finally:
                server.stop()

    def test_each_mistake_is_named(self, tmp_path: Path, authority: Authority) -> None:
        """A stranger's certificate, another name's, plain text to TLS, TLS to plain text."""
        server = self.server(tmp_path / "named", authority, authority.issue("host.example"))
        plain = Server(tmp_path / "plain").start()
        ours = {"VALKEY_CACERT": authority.cacert}
        try:
            for url, environ, words in (
                (f"rediss://{server.endpoint}", {}, "TLS: its certificate is not trusted"),
                (
                    f"rediss://{server.endpoint}",
                    ours,
                    "TLS: its certificate is for another host name",
                ),
                (
                    f"redis://{server.endpoint}",
                    {},
                    "closed: if there is TLS .* begins with valkeys://",
                ),
                (f"rediss://{plain.endpoint}", ours, "if there is no TLS .* begins with valkey://"),
            ):
                with pytest.raises(StoreUnavailable, match=words):
                    self.take(ValkeyLocation.of(url, environ), vouched=False)
        finally:
            server.stop()
            plain.stop()


def test_lone_surrogates_are_written(servers: Servers) -> None:
    with servers.store() as store:
        assert isinstance(ask(store, Take(replace(holder(), hostname="\ud800"))), Taken)


def test_a_sentinel_is_named(tmp_path: Path) -> None:
    port, conf = free_port(), tmp_path / "sentinel.conf"
    conf.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    sentinel = subprocess.Popen([redis_binary(), conf, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with (
            closing(opened(ValkeyLocation((f"127.0.0.1:{port}",)))) as store,
            pytest.raises(StoreError, match="it is a Sentinel"),
        ):
            ask(store, Take(holder()))
    finally:
        sentinel.kill()
        sentinel.wait()
