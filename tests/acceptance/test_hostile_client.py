"""A malicious client: both services keep their memory, and honest locks are not affected.

It takes 5 seconds in `make test`, and 120 in `make soak`. The machine may be slow and
busy: so a control, a thread that asks a server which does nothing else, says how long a probe takes
here anyway, and that is taken off.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from lockclient import Settings, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Runtime
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.service_store import ServiceStore
from tests.support.locks import take
from tests.support.processes import Figure, Service, start_service, wait_until
from tests.support.records import taker
from tests.support.soak import soaking
from tests.support.unlocker_process import mutexdash, unlocker, when_ready

SEED = int(os.environ.get("CLUSTERMUTEX_TEST_HOSTILE_SEED", "14"))
MEMORY, LATE, UNANSWERED = 300, 5.0, 1.0
"""MB of a service; seconds of a removal beyond its time; seconds of a probe."""
LASTS = 2.0
PATHS = ("healthz", "readyz")
EACH_PROBE, EACH_LOCK, EACH_LOOK = 0.1, 0.5, 2.0
"""Seconds between two of them."""

_NOTHING = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


class Probes:
    """Asks one address again and again, and takes down how long each answer took."""

    def __init__(self, url: str, every: float) -> None:
        self.waits: list[float] = []
        self._url, self._every = url, every
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Probes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ending.wait(self._every):
            began = time.monotonic()
            with suppress(OSError), urllib.request.urlopen(self._url, timeout=30) as answer:
                answer.read()
            self.waits.append(time.monotonic() - began)


class Honest:
    """Takes locks and falls silent, as if it had died, and sees when each of them goes."""

    def __init__(self, store: ServiceStore) -> None:
        self.due: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self._store = store

    def die_holding(self, name: str) -> None:
        _, token = take(self._store, taker(name, Runtime(1.0, LASTS), uuid=uuid4().hex))
        self.due[name] = time.monotonic() + LASTS

        def hear(event: WatchEvent) -> None:
            if event.uuid is None and not event.started and not event.gap:
                self.gone.setdefault(name, time.monotonic())

        self._store.watch(WatchTarget(name), token + 1, hear)

    def late(self) -> list[float]:
        """Return how many seconds after its time each lock went."""
        return sorted(self.gone[name] - due for name, due in self.due.items())


def peak(service: Service) -> int:
    """Return the most memory that a program has had, MB."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


@pytest.fixture
def roomy_etcd(own_etcd: Etcd) -> Etcd:
    """One that forgets what is past, and is not full too soon."""
    own_etcd.stop()
    own_etcd.extra = [
        *("--quota-backend-bytes", str(8 << 30)),
        *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "2000"),
    ]
    own_etcd.start()
    return own_etcd


@pytest.mark.parametrize("seconds", [5, *soaking(120)])
def test_the_services_survive_a_hostile_client(
    seconds: float, roomy_etcd: Etcd, figure: Figure
) -> None:
    settings = Settings(endpoints=(roomy_etcd.endpoint,))
    hostile = [sys.executable, "-m", "tests.acceptance.hostile_client", roomy_etcd.endpoint]
    with (
        closing(open_store(settings)) as store,
        when_ready(unlocker(settings, "--max-removals", "off")) as service,
        when_ready(mutexdash(settings)) as dash,
        start_service([sys.executable, "-c", _NOTHING]) as nothing,
    ):
        honest = Honest(store)
        probed = [f"{program.url}/{path}" for program in (service, dash) for path in PATHS]
        with (
            ExitStack() as stack,
            Probes(f"{dash.url}/lock/line", EACH_LOOK),
            Probes(f"{dash.url}/lock/line", EACH_LOOK),
            start_service([*hostile, str(seconds), str(SEED)]) as client,
        ):
            control, *probes = (
                stack.enter_context(Probes(url, EACH_PROBE)) for url in (nothing.url, *probed)
            )
            while client.process.poll() is None:
                honest.die_holding(f"honest-{len(honest.due)}")
                time.sleep(EACH_LOCK)
            said = client.log_text()
            wait_until(lambda: honest.gone.keys() == honest.due.keys(), what="all locks to go")
        memory = peak(service), peak(dash)
        log = service.log_text()

    where = f"seed {SEED}:\n{said[-3000:]}"
    assert client.process.returncode == 0, where
    anyway, worst = max(control.waits), [max(probe.waits) for probe in probes]
    late = honest.late()
    figure(
        f"{seconds:.0f} s, {json.loads(said.splitlines()[-1])}: unlocker {memory[0]} MB, dashboard "
        f"{memory[1]} MB at most; {len(late)} due locks went {late[len(late) // 2]:.1f} s after "
        f"their time, {late[-1]:.1f} s at most; of {sum(len(probe.waits) for probe in probes)} "
        f"probes the longest took {max(worst):.2f} s, of a server that does nothing {anyway:.2f} s"
    )
    assert max(memory) <= MEMORY, where
    assert late[-1] <= LATE + anyway, f"{where}\n{log[-3000:]}"
    assert max(worst) <= UNANSWERED + anyway, f"{where}\n{worst}"
