"""What the programs do over every store that is looked at: the same test for each."""

from __future__ import annotations

import json
import subprocess

from lockclient import ClusterMutex, Settings
from lockclient.store import MutexStore
from tests.terminals import COMMAND, environment


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


def _next(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    event = json.loads(process.stdout.readline())
    return event["event"], event["name"]
