"""The etcd that we start serves no web page: tried by HTTP as a browser would."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockclient.cli.setup.etcd_server import Etcd
from tests.support.etcd_binary import OPEN, Etcdctl, etcdctl_of
from tests.support.pages import Answer, request

PAGE = "http://page.example"
KEY = "L2NsdXN0ZXJtdXRleC9sb2Nrcy94L3V1aWQ="
"""`/clustermutex/locks/x/uuid`"""


def ask(server: Etcd, path: str, body: object = None, **headers: str) -> Answer:
    """Ask over HTTP, by any header, as a page can whose own name leads to this address."""
    return request(f"http://{server.endpoint}", path, body, **headers)


@pytest.mark.parametrize("path", ["range", "put", "deleterange", "txn"])
@pytest.mark.parametrize("version", ["v3", "v3beta", "v3alpha"])
def test_the_gateway_is_off(etcd: Etcd, etcdctl: Etcdctl, version: str, path: str) -> None:
    etcdctl("put", "/clustermutex/locks/x/uuid", "u1")
    body = {"key": KEY, "value": KEY}
    assert ask(etcd, f"/{version}/kv/{path}", body, Origin=PAGE).status == 404
    assert etcdctl("get", "/clustermutex/locks/x/uuid", "--print-value-only") == "u1\n"


@pytest.mark.parametrize("path", ["/version", "/health", "/metrics", "/v3/kv/range", "/v2/keys"])
def test_no_origin_may_read_and_no_name_of_a_page_is_answered(etcd: Etcd, path: str) -> None:
    for origin in (PAGE, "null", "http://127.0.0.1:8722", "http://nobody.invalid"):
        assert "Access-Control-Allow-Origin" not in ask(etcd, path, Origin=origin).headers
    # No name of a page: neither with the right port, nor with what only begins like one of ours.
    for host in ("page.example", f"page.example:{etcd.port}", "localhost.page.example"):
        answer = ask(etcd, path, Host=host)
        assert answer.status == 421
        assert "etcd_" not in answer.text
    assert ask(etcd, "/version", Host=f"localhost:{etcd.port}").status == 200


def test_no_peer_port_is_open(etcd: Etcd) -> None:
    assert etcd.process is not None
    (mine,) = _listening(etcd.process.pid)
    assert mine == etcd.port


def _listening(pid: int) -> set[int]:
    sockets = {
        file.readlink().name.removeprefix("socket:[").removesuffix("]")
        for file in Path(f"/proc/{pid}/fd").iterdir()
        if file.is_symlink()
    }
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
    ]
    return {
        int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in sockets
    }


def test_data_of_an_older_up_is_reused(etcd_binary: str, tmp_path: Path) -> None:
    server = Etcd(etcd_binary, tmp_path / "data", tmp_path / "log")
    peer = f"http://127.0.0.1:{server.peer_port}"
    flags = ("--listen-peer-urls", "--initial-advertise-peer-urls")
    server.extra = [*OPEN, "--initial-cluster", f"default={peer}"]
    for flag in flags:
        server.extra += [flag, peer]
    with server:
        said = ask(server, "/v3/kv/range", {"key": KEY}, Origin=PAGE, Host="page.example")
        assert said.status == 200
        etcdctl_of(server)("put", "x", "kept")
    server.extra = []
    for _ in range(2):
        with server:
            assert etcdctl_of(server)("get", "x", "--print-value-only") == "kept\n"
