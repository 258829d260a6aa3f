"""Connections to etcd: never through a proxy; renewed for new certificates and a new address."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from tests.support.certificates import Authority, TlsEtcd
from tests.support.locks import soon
from tests.support.processes import Figure, needed, wait_until
from tests.support.relay import Relay

Opener = Callable[[Settings], ServiceStore]


@pytest.fixture
def web_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A proxy for the web that the environment names, and that refuses; what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                asked.append(caller.recv(1000))
                caller.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=serve, daemon=True).start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)


def test_a_proxy_for_the_web_is_not_asked_for_etcd(
    web_proxy: list[bytes], settings: Settings, opened: Opener
) -> None:
    """By threads, asyncio and the watch: it would see the password."""
    store = opened(settings)

    async def lock_once() -> None:
        async with AsyncClusterMutex("y", store=store):
            pass

    told: list[object] = []
    (*_, last) = store.load(("locks",), soon())
    following = store.follow(last.revision + 1, told.append)
    with closing(following), ClusterMutex("x", store=store):
        wait_until(lambda: told, what="the watch")
        asyncio.run(lock_once())
    assert web_proxy == []


# ---------------------------------------------------------------- renewed

REFUSED_S = 5.0
"""Seconds in which a client finds a member whose old address or certificate is refused."""
SILENT_S = 30.0
"""Seconds in which a client finds a member whose old address is silent. gRPC pings it 10 s after
the last answer, or 20 s if no call is in flight by then, and the ping has 5 s. One attempt to
connect takes a second, and the connection is replaced 2 s after the first failure."""
BUSY_S = 30.0
"""Seconds that a machine busy with other tests may add."""

USES = """
import asyncio, faulthandler, os, sys, threading, time
from lockclient import AsyncClusterMutex, ClusterMutex, ClusterMutexError, Settings, open_store

faulthandler.dump_traceback_later(80)  # before the test gives up
store = open_store(Settings.load(sys.argv[1]))

def works(use):
    os.write(1, f"{use} {time.monotonic()}\\n".encode())  # one line, whichever thread writes

def threads():
    while True:
        try:
            with ClusterMutex("x", store=store, timeout=60):
                works("threads")
        except ClusterMutexError as error:
            print(error, file=sys.stderr, flush=True)
        time.sleep(0.1)

async def tasks():
    while True:
        try:
            async with AsyncClusterMutex("y", store=store, timeout=60):
                works("asyncio")
        except ClusterMutexError as error:
            print(error, file=sys.stderr, flush=True)
        await asyncio.sleep(0.1)

threading.Thread(target=threads, daemon=True).start()
watch = store.follow(1, lambda batch: works("missed" if batch.gap else "watch"))
asyncio.run(tasks())
"""
"""A program that uses one store by threads, in asyncio and by a watch, and tells what works."""


class Uses:
    """The running program: when each of its uses worked last, on the monotonic clock."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.last: dict[str, float] = {}
        self._lines = lines

    def read(self) -> None:
        """Read what it says, to its end."""
        for line in self._lines:
            use, _, when = line.partition(" ")
            self.last[use] = float(when)

    def all_work(self, since: float) -> dict[str, float]:
        """Wait until each use has worked since that moment; return the seconds that it took.

        The first moment does not count: an answer from before may still be read in it.
        """
        took: dict[str, float] = {}

        def look() -> bool:
            for use, when in list(self.last.items()):
                if when > since + 0.3:
                    took.setdefault(use, when - since)
            return len(took) == 3

        try:
            wait_until(look)
        except AssertionError as error:
            raise AssertionError(f"only {took} work since {since}: {self.last}") from error
        return took


@contextmanager
def uses(command: list[str], url: str, env: dict[str, str] | None = None) -> Iterator[Uses]:
    """Run the program, by this command, until the end of the block; begins when all works."""
    words = [*command, sys.executable, "-c", USES, url]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    ) as program:
        assert program.stdout is not None
        running = Uses(iter(program.stdout))
        reader = threading.Thread(target=running.read, daemon=True)
        reader.start()
        try:
            running.all_work(since=0.0)
            yield running
        finally:
            program.kill()
            reader.join()


def told(took: dict[str, float]) -> str:
    return ", ".join(f"{use} {seconds:.1f} s" for use, seconds in sorted(took.items()))


@pytest.mark.parametrize("renewed", ["all", "the client's"])
def test_a_running_process_reads_renewed_certificates(
    renewed: str, etcd_binary: str, tmp_path: Path, figure: Figure
) -> None:
    """The files are replaced where they are; etcd restarts and trusts the new client only."""
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    signer = after if renewed == "all" else before
    files = {what: tmp_path / f"{what}.pem" for what in ("cacert", "cert", "key")}

    def install(server: Authority, client: Authority) -> None:
        pair = client.issue(user="client")
        for what, source in (("cacert", server.cacert), ("cert", pair.cert), ("key", pair.key)):
            shutil.copy(source, tmp_path / "new")
            (tmp_path / "new").replace(files[what])

    def etcd_of(server: Authority, clients: Authority, port: int | None = None) -> TlsEtcd:
        pair = server.issue("127.0.0.1")
        where = (tmp_path / "data", tmp_path / "log", port)
        return TlsEtcd(clients, pair, etcd_binary, *where, ask_clients=True)

    old = etcd_of(before, before)
    new = etcd_of(signer, after, old.port)
    install(before, before)
    env = {f"ETCDCTL_{what.upper()}": str(path) for what, path in files.items()}
    with old, uses([], f"etcds://{old.endpoint}/x", env) as running:
        install(signer, after)
        old.stop()
        with new:
            took = running.all_work(since=time.monotonic())
    figure(f"after a restart with renewed certificates: {told(took)}")
    assert max(took.values()) < REFUSED_S + BUSY_S


@pytest.mark.parametrize("old_address", ["refuses", "is silent"])
def test_a_member_is_found_at_a_new_address_of_its_name(
    old_address: str, own_etcd: Etcd, tmp_path: Path, figure: Figure
) -> None:
    # An etcd of its own: others compact theirs, which would end the watch.
    hosts, name = tmp_path / "hosts", "etcd-0.etcd.test"
    own = [needed("unshare"), "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces")
    with Relay(own_etcd.endpoint, "127.0.0.2") as old:
        port = int(old.endpoint.rpartition(":")[2])
        hosts.write_text(f"127.0.0.2 {name}\n")
        # A mount namespace has an /etc/hosts of its own.
        command = [*own, 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
        url = f"etcd://{name}:{port}/{tmp_path.name}"
        with uses(command, url) as running, Relay(own_etcd.endpoint, "127.0.0.3", port):
            if old_address == "refuses":
                old.close()
            else:
                old.hold(requests=True)
                old.hold(requests=False)
            since = time.monotonic()
            hosts.write_text(f"127.0.0.3 {name}\n")
            took = running.all_work(since)
    figure(f"where the old address {old_address}: {told(took)}")
    limit = REFUSED_S if old_address == "refuses" else SILENT_S
    assert max(took.values()) < limit + BUSY_S
