"""A deadlock of two processes on a real etcd is shown by the command and the dashboard."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from lockclient import Settings
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import Etcdctl, put_at_once
from tests.support.locks import held, remove
from tests.support.pages import request
from tests.support.processes import line_from, tell, wait_until
from tests.support.terminal import called, piped
from tests.support.unlocker_process import mutexdash, when_ready

PROGRAM = """
import sys
from lockclient import ClusterMutex
ClusterMutex.setup(sys.argv[1])
with ClusterMutex(sys.argv[2]):
    print("has", flush=True)
    sys.stdin.readline()
    with ClusterMutex(sys.argv[3]):
        print("has both", flush=True)
"""


@contextmanager
def holding(settings: Settings, first: str, second: str) -> Iterator[subprocess.Popen[str]]:
    """Have a process hold one lock; it wants the other as soon as a line is written to it."""
    command = [sys.executable, "-c", PROGRAM, settings.url(), first, second]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert line_from(process) == "has"
            yield process
        finally:
            process.kill()


def stuck(settings: Settings) -> Any:
    return json.loads(called(settings, "ls", "--json").stdout)["deadlocks"]


def test_a_deadlock_of_two_processes_is_found_and_freed(
    settings: Settings, store: ServiceStore
) -> None:
    with ExitStack() as stack:
        ann = stack.enter_context(holding(settings, "x", "y"))
        ben = stack.enter_context(holding(settings, "y", "x"))
        assert stuck(settings) == []
        for process in (ann, ben):
            tell(process)
        wait_until(lambda: stuck(settings) == [["x", "y"]], what="the deadlock")
        said = piped(settings, "ls").stderr
        for process, has, wants in ((ann, "x", "y"), (ben, "y", "x")):
            both = f"pid {process.pid}, has '{has}' and waits for '{wants}'"
            assert both in said
            assert both in piped(settings, "show", has).stdout
        assert json.loads(piped(settings, "show", "y", "--json").stdout)["deadlock"] == ["y", "x"]
        examined = piped(settings, "doctor", "--listen", "0", status=2).stdout
        assert "warning  locks     This may be a deadlock: " in examined
        with when_ready(mutexdash(settings)) as board:

            def told() -> Any:
                return request(board.url, "/api/locks").json["deadlocks"]

            wait_until(lambda: told() == [["x", "y"]], what="the dashboard to see it")
            page = request(board.url, "/lock/x").text
            assert "This may be a deadlock" in page
            assert page.count("&lt;string&gt;") > 1, "both have a backtrace"
            ann.kill()  # its lock stays, as that of any holder that died
            remove(store, held(store, "x"))
            assert line_from(ben) == "has both"
            wait_until(lambda: told() == [], what="the dashboard to see that it is over")


def test_a_deadlock_is_found_behind_many_other_waiters(
    settings: Settings, store: ServiceStore, etcdctl: Etcdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = '{"hostname": "h", "actor": "a"}'
    for start in range(0, 600, 100):
        tickets = {f"{number}": value for number in range(start, start + 100)}
        put_at_once(etcdctl, f"{settings.root}/queue/a{start % 3}/", tickets)
    with ExitStack() as stack:
        one = stack.enter_context(holding(settings, "x", "y"))
        other = stack.enter_context(holding(settings, "y", "x"))
        tell(one)
        tell(other)
        wait_until(lambda: stuck(settings) == [["x", "y"]], what="the deadlock")
        shown = json.loads(piped(settings, "show", "x", "--json").stdout)
        assert shown["deadlock"] == ["x", "y"]
        monkeypatch.setattr("lockclient.stores.etcd.listing.MAX_TICKET_BYTES", 10_000)
        assert stuck(settings) == []
        said = called(settings, "doctor", "--listen", "0", status=2).stdout
        assert "a deadlock among them is not seen" in said
