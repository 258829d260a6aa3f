"""What the programs do over every store that is looked at: the same test for each."""

from __future__ import annotations

import json
import subprocess

from lockclient import ClusterMutex, Settings
from lockclient.stores.protocol import MutexStore
from tests.support.http_requests import read
from tests.support.processes import Service, wait_until
from tests.support.terminal import COMMAND, environment
from tests.support.unlocker_process import REMOVED, figure


def watch_tells(settings: Settings, store: MutexStore) -> None:
    """See `watch` tell what is held at the begin, what is released, and what is taken."""
    first = ClusterMutex("first", store=store)
    first.acquire()
    words = [COMMAND, "watch", "--json", "--initial"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=environment(settings)
    ) as process:
        try:
            assert _next(process) == ("held", "first")
            first.release()
            assert _next(process) == ("released", "first")
            with ClusterMutex("second", store=store):
                assert _next(process) == ("taken", "second")
        finally:
            process.terminate()


def is_alerted_on_and_removed(service: Service, store: MutexStore, name: str, uuid: str) -> None:
    """See the only dead holder of an unlocker be alerted on first, then removed, with a record
    that has the code which took the lock."""
    wait_until(lambda: f"Lock '{name}' is past its alert" in service.log_text())
    assert read(store, name).holder is not None
    wait_until(lambda: read(store, name, uuid).removal)
    removal = read(store, name, uuid).removal
    assert removal is not None
    assert removal.how == "auto-unlock"
    assert removal.removed_by.startswith("unlocker@")
    assert "in <module>" in (removal.holder.backtrace or "")
    wait_until(lambda: figure(service, REMOVED) == 1)


def _next(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    event = json.loads(process.stdout.readline())
    return event["event"], event["name"]
