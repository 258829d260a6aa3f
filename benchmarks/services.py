"""The unlocker and the dashboard, as the sections start them and ask them."""

from __future__ import annotations

import http.client
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import population
from benchmarks.servers import cpu_seconds, wait_until
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.cli.setup.processes import end, spawn


class Service:
    """A program of ours that runs."""

    def __init__(self, name: str, pid: int, log: Path) -> None:
        self.pid = pid
        self._name = name
        self._log = log

    def wait_ready(self) -> None:
        """Wait until it says that it can do its work."""
        what = f"the {self._name}"
        wait_until(lambda: self._address() is not None, what, log=self._log)
        wait_until(lambda: self.ask("/readyz")[0] == 200, what, 600, self._log)

    def ask(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Return an answer's status and body."""
        address = self._address()
        assert address is not None
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def port(self) -> int:
        """Return the port on which it listens."""
        return int((self._address() or "").rpartition(":")[2])

    def memory(self) -> dict[str, int]:
        """Return the memory that it takes now and has taken at most, bytes."""
        said = Path(f"/proc/{self.pid}/status").read_text()
        kib = {key: int(text) for key, text in re.findall(r"(Vm\w+):\s+(\d+) kB", said)}
        return {"rss": kib["VmRSS"] * 1024, "peak_rss": kib["VmHWM"] * 1024}

    def _address(self) -> str | None:
        found = re.search(r" on http://([\d.:]+)", self._log.read_text(errors="replace"))
        return found and found[1]


@contextmanager
def service(name: str, server: Etcd, *options: str) -> Iterator[Service]:
    """Start `unlocker` or `mutexdash` on an etcd's locks; end it at the end."""
    url = f"etcd://{server.endpoint}{population.ROOT}"
    with serve(name, url, server.log.parent, *options) as program:
        yield program


@contextmanager
def serve(name: str, url: str, folder: Path, *options: str) -> Iterator[Service]:
    """Start `unlocker` or `mutexdash` on a store's locks; end it at the end."""
    command = [
        *(sys.executable, "-m", name, "--url", url),
        *("--listen", "127.0.0.1:0", *options),
    ]
    # Whatever settings of the caller's own there may be.
    own = f"{name.upper()}_"
    env = {key: text for key, text in os.environ.items() if not key.startswith(own)}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = spawn(command, output=output, env=env)
    try:
        yield Service(name, process.pid, log)
    finally:
        end(process)


def spends(pid: int, seconds: float) -> float:
    """Return the share of a core that a process takes for so many seconds from now on."""
    before, begun = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - begun)
