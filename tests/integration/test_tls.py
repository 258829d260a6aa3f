"""TLS with a real etcd: all requests work, and each mistake is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from lockclient import ClusterMutex, LockLost, Settings, StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.settings import made_of
from lockclient.stores.timeouts import STORE_TIMEOUT_S
from tests.support.certificates import Authority, TlsEtcd
from tests.support.following import following
from tests.support.locks import queue_up, remove
from tests.support.processes import Figure, wait_until


@dataclass
class Town:
    """Etcds of each kind, whom they trust, and a stranger."""

    authority: Authority
    stranger: Authority
    servers: dict[str, Etcd]
    junk: str

    def settings(self, server: str, **others: str) -> Settings:
        """Return settings for a server; each of `others` names one of our files, see `file`."""
        files = {what: self.file(what, whose) for what, whose in others.items()}
        return made_of(None, [self.servers[server].endpoint], {"root": "/tls", **files})

    def file(self, what: str, whose: str) -> str:
        """Return a file's path: `cacert`, `cert` or `key`, of `ours`, a `stranger`, or `junk`."""
        if whose == "junk":
            return self.junk
        authority = self.authority if whose == "ours" else self.stranger
        if what == "cacert":
            return authority.cacert
        pair = authority.issue(user="client")
        return pair.cert if what == "cert" else pair.key


@pytest.fixture(scope="module")
def town(etcd: Etcd, etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """An etcd with TLS, one that asks for certificates, one with another name's, a plain one."""
    folder = tmp_path_factory.mktemp("town")
    ours, stranger = Authority(folder, "ours"), Authority(folder, "stranger")
    right, wrong = ours.issue("127.0.0.1", "localhost"), ours.issue("etcd-1.example")
    junk = folder / "junk.pem"
    junk.write_text("no certificate")

    def server(name: str) -> TlsEtcd:
        return TlsEtcd(
            ours,
            wrong if name == "another name" else right,
            etcd_binary,
            folder / name,
            folder / f"{name}.log",
            ask_clients=name == "asking",
        )

    with ExitStack() as stack:
        servers: dict[str, Etcd] = {
            name: stack.enter_context(server(name)) for name in ("tls", "asking", "another name")
        }
        yield Town(ours, stranger, {**servers, "plain": etcd}, str(junk))


Opener = Callable[[Settings], EtcdStore]
CERTIFIED = {"cacert": "ours", "cert": "ours", "key": "ours"}


@pytest.mark.parametrize(("server", "files"), [("tls", {"cacert": "ours"}), ("asking", CERTIFIED)])
def test_each_request_works_over_tls(
    town: Town, opened: Opener, server: str, files: dict[str, str]
) -> None:
    store = opened(town.settings(server, **files))
    waiter = ClusterMutex("x", store=store)
    with following(store) as table:
        with ClusterMutex("x", store=store) as held:
            wait_until(lambda: table.row("x"), what="the lock in the table")
            thread = queue_up(waiter)
            held.alive(force=True)
        thread.join(30)
        assert waiter.healthy
        remove(store, waiter.record)
        wait_until(lambda: not waiter.healthy, what="the loss")
        with pytest.raises(LockLost, match="ann"):
            waiter.release()
        wait_until(lambda: not table.rows(), what="the lock gone from the table")
    assert len(store.clock_offsets(5)) == 1


def test_the_variables_of_etcdctl_work(town: Town, opened: Opener) -> None:
    server = town.servers["asking"]
    environ = {
        f"ETCDCTL_{what.upper()}": town.file(what, whose) for what, whose in CERTIFIED.items()
    }
    listed = {"ETCDCTL_ENDPOINTS": f"https://localhost:{server.port}"}
    for more in (listed, {"CLUSTERMUTEX_URL": f"etcds://localhost:{server.port}/tls"}):
        with ClusterMutex("x", store=opened(Settings.load(None, {**environ, **more}))):
            pass


MISTAKES: dict[str, tuple[str, dict[str, str], str, str]] = {
    "an authority that did not sign": (
        "tls",
        {"cacert": "stranger"},
        "TLS: its certificate is not trusted: unable to get local issuer certificate",
        "ETCDCTL_CACERT must be the authority that signed for this etcd.",
    ),
    "a certificate for another host": (
        "another name",
        {"cacert": "ours"},
        "TLS: its certificate is for another host name",
        "Name each etcd as its certificate does",
    ),
    "no client certificate": (
        "asking",
        {"cacert": "ours"},
        "TLS: it refused our certificate, or that we have none",
        "ETCDCTL_CERT and ETCDCTL_KEY must be a certificate",
    ),
    "a client certificate by a stranger": (
        "asking",
        {"cacert": "ours", "cert": "stranger", "key": "stranger"},
        "TLS: it refused our certificate, or that we have none",
        "signed by the authority that this etcd trusts",
    ),
    "plain text where TLS is talked": (
        "tls",
        {},
        "it closed the connection at once, as a server does that talks TLS only",
        "set ETCDCTL_CACERT to its authority",
    ),
    "TLS where plain text is talked": (
        "plain",
        {"cacert": "ours"},
        "TLS: it does not talk TLS at this port",
        "leave out ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY",
    ),
    "an authority's file that is none": (
        "tls",
        {"cacert": "junk"},
        "TLS: the certificate files can't be used",
        "must be PEM files",
    ),
    "a key of another certificate": (
        "asking",
        {"cacert": "ours", "cert": "ours", "key": "stranger"},
        "TLS: our key is not that of our certificate",
        "ETCDCTL_KEY must be the key of ETCDCTL_CERT",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_tls_mistake_is_named(
    town: Town, opened: Opener, figure: Figure, mistake: str
) -> None:
    server, files, cause, advice = MISTAKES[mistake]
    store = opened(town.settings(server, **files))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        ClusterMutex("x", store=store).acquire(timeout=1)
    took = time.monotonic() - began
    text = str(caught.value)
    assert cause in text
    assert advice in text
    assert "Check that it runs" not in text
    assert took < STORE_TIMEOUT_S
    figure(f"told after {took:.1f} s of 1 s given: {text}")


def test_a_watch_logs_tls_mistakes(
    town: Town,
    opened: Opener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = opened(town.settings("tls", cacert="stranger"))
    watch = store.follow(1, lambda batch: None)
    wait_until(lambda: "its certificate is not trusted" in caplog.text, what="the log")
    watch.close()
