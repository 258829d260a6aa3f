"""Counters that the locks protect: each worker reads one and writes it one higher later.

They are kept by the process that breaks all else, so that nothing happens to them. A counter of
the kind `plain` takes whatever comes; one of the kind `fenced` refuses a lower token than
it has seen. A write that is not one higher than what is there has lost an update.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

from tests.proof.history import Line, Sink


@dataclass
class Counter:
    """One of them: its value, the highest token, and when it was written."""

    value: int = 0
    token: int = 0
    lost: int = 0
    refused: int = 0
    written_at: list[float] = field(default_factory=list)

    @property
    def writes(self) -> int:
        """The number of writes."""
        return len(self.written_at)


class Register:
    """A server of counters; a context manager.

    Attributes:
        counters: by kind and lock.
        reading: the client that has read a counter last, and not written it yet.
    """

    def __init__(self, write: Sink | None = None) -> None:
        self.counters: dict[tuple[str, str], Counter] = {}
        self.reading = ""
        self._write = write
        self._lock = threading.Lock()
        register = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = register.do(json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = "{}:{}".format(*self._server.server_address)

    def __enter__(self) -> Register:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def do(self, said: dict[str, object]) -> int | None:
        """Read a counter, or write it; None: refused."""
        who, kind, lock, token = (said[name] for name in ("who", "kind", "lock", "token"))
        assert isinstance(token, int)
        with self._lock:
            counter = self.counters.setdefault((str(kind), str(lock)), Counter())
            if kind == "fenced" and token < counter.token:
                counter.refused += 1
                return None
            counter.token = max(token, counter.token)
            if not isinstance(value := said.get("value"), int):
                self.reading = str(who)
                return counter.value
            self.reading = ""
            before, counter.value = counter.value, value
            counter.lost += value != before + 1
            counter.written_at.append(time.monotonic())
            if self._write is not None:
                at = counter.written_at[-1]
                line = Line(at, str(who), "counted", value, str(lock), revision=token)
                self._write(_with_key(line, str(kind)))
            return value

    def sum(self, kind: str, what: str) -> int:
        """Add up what is known of all counters of a kind: `writes`, `lost`, `refused`."""
        return sum(getattr(one, what) for (of, _), one in self.counters.items() if of == kind)

    def longest_silence(self, begin: float, end: float) -> float:
        """Return for how many seconds no counter was written at most."""
        at = sorted({begin, end, *(at for one in self.counters.values() for at in one.written_at)})
        return max((after - before for before, after in pairwise(at)), default=0.0)


def _with_key(line: Line, key: str) -> Line:
    return Line(line.at, line.process, line.what, line.call, line.lock, "", line.revision, key=key)


def ask(endpoint: str, **said: object) -> int | None:
    """Ask a register from another process."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as at, at.makefile("rwb") as file:
        file.write(json.dumps(said).encode() + b"\n")
        file.flush()
        answer = json.loads(file.readline())
    return answer if isinstance(answer, int) else None


def count(endpoint: str, who: str, lock: str, token: int, pause: float) -> None:
    """Read both counters, and write them one higher after a pause, as programs do with their data.

    Without a token, 0, there is only the plain one.
    """
    said: dict[str, object] = {"who": who, "lock": lock, "token": token}
    kinds = ("plain", "fenced") if token else ("plain",)
    values = {kind: ask(endpoint, kind=kind, **said) for kind in kinds}
    time.sleep(pause)
    for kind, value in values.items():
        if value is not None:
            ask(endpoint, kind=kind, value=value + 1, **said)
