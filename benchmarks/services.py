"""The unlocker and the dashboard, as the sections start them and ask them."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from functools import cached_property
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.servers import cpu_seconds
from tests.support import processes


class Service(processes.Service):
    """`unlocker` or `mutexdash`, running on the locks of a store."""

    def __init__(self, name: str, url: str, *options: str) -> None:
        # Whatever settings of the caller's own there may be.
        env = {key: "" for key in os.environ if key.startswith(f"{name.upper()}_")}
        command = [sys.executable, "-m", name, "--url", url, "--listen", "127.0.0.1:0", *options]
        super().__init__(command, env)
        self.pid = self.process.pid

    def __enter__(self) -> Service:
        return self

    def wait_ready(self) -> None:
        """Wait until it says that it can do its work."""
        processes.wait_until(lambda: self._ask("/readyz")[0] == 200, 600, "a service to be ready")

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the body of an answer."""
        status, body = self._ask(path, headers)
        if status != 200:
            raise AssertionError(f"{path} was answered with {status}: {body[:300]!r}")
        return body

    def _ask(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @cached_property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.url.rpartition(":")[2])

    def memory(self) -> dict[str, int]:
        """Return the memory that it takes now and has taken at most, bytes."""
        said = Path(f"/proc/{self.pid}/status").read_text()
        kib = {key: int(text) for key, text in re.findall(r"(Vm\w+):\s+(\d+) kB", said)}
        return {"rss": kib["VmRSS"] * 1024, "peak_rss": kib["VmHWM"] * 1024}

    def spends(self, seconds: float) -> float:
        """Return the share of a core that it takes for so many seconds from now on."""
        before, begun = cpu_seconds(self.pid), time.monotonic()
        time.sleep(seconds)
        return (cpu_seconds(self.pid) - before) / (time.monotonic() - begun)
