"""A store's server on loopback, for `up`, `demo` and tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from lockclient.cli.setup.ports import free_port
from lockclient.cli.setup.spawn import end, spawn

START_TIMEOUT_S = 60.0
"""Seconds until a program must be ready."""

_S = TypeVar("_S", bound="StoreServer")


class StoreServer(ABC):
    """A store's server on loopback, for as long as this program lives.

    Args:
        binary: the program's path.
        data: a directory of its own.
        log: where its output goes.
        port: of the clients; None picks a free one, and it stays the same over restarts.
    """

    scheme: str
    """The scheme of its URL."""
    name: str
    """For people."""
    service_options: tuple[str, ...] = ()
    """Options of the services besides its URL."""

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
        """The clients' `CLUSTERMUTEX_URL`."""
        return f"{self.scheme}://{self.endpoint}/clustermutex"

    @property
    def client_env(self) -> dict[str, str]:
        """The environment of its clients."""
        return dict(os.environ)

    @property
    def exports(self) -> dict[str, str]:
        """The clients' other variables, as a shell reads them."""
        return {}

    @property
    def warning(self) -> str:
        """A warning for people; empty: none."""
        return ""

    @property
    @abstractmethod
    def version(self) -> str:
        """Its version, like 3.5.1."""

    @abstractmethod
    def _command(self) -> tuple[list[str], Path]:
        """Return the command that starts it, and its working directory."""

    @abstractmethod
    def _serves(self) -> bool:
        """Return whether it serves; another program on its port must not count."""

    def start(self: _S) -> _S:
        """Start it, wait until it serves, and return it.

        Raises:
            RuntimeError: it ended, or does not serve after `START_TIMEOUT_S`.
            ClusterMutexError: it serves, but no locks yet.
        """
        command, folder = self._command()
        with self.log.open("ab") as output:
            began = output.tell()
            self.process = spawn(command, output=output, env=self.env, cwd=folder)
        until = time.monotonic() + START_TIMEOUT_S
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                lines = self.log.read_bytes()[began:].decode(errors="replace").splitlines()
                raise RuntimeError(
                    f"{self.name} does not serve on {self.endpoint}. The last it said: "
                    + " ".join(lines[-1:])
                )
            time.sleep(0.05)  # the server sends no signal when it listens
        return self

    def stop(self) -> None:
        """End it; its data stays."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)  # it may be frozen
            end(self.process)

    def __enter__(self: _S) -> _S:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def private_connection(path: Path) -> Iterator[socket.socket]:
    """Connect to a Unix socket that our own child makes in a private folder.

    Only that child can answer there, and it opens the socket after its port. Any program of this
    machine might listen on the port instead, and would get the password.

    Raises:
        OSError: no process listens there.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(5)
            # By the folder's number: a socket's path has 107 bytes at most.
            made.connect(f"/proc/self/fd/{folder}/{path.name}")
            yield made
    finally:
        os.close(folder)


def fetch(
    url: str, path: str, headers: Mapping[str, str] = MappingProxyType({}), timeout: float = 5
) -> tuple[int, bytes]:
    """GET from a program on this machine, without a proxy of the environment."""
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=timeout)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def release_folder(folder: Path, name: str, version: str) -> Path:
    """Return the data folder of a release: an older one can't read the data of a newer one."""
    return folder / f"{name}-{'.'.join(version.split('.')[:2])}"
