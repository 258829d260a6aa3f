"""`up` keeps its ports."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from lockclient.cli.setup.ports import DEFAULT_PORTS, free_port, is_free, kept_ports


def test_a_taken_port_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    before = {name: free_port() for name in DEFAULT_PORTS}
    (tmp_path / "ports.json").write_text(json.dumps(before))
    assert kept_ports(tmp_path) == before
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", before["mutexdash"]))
        somebody.listen()
        after = kept_ports(tmp_path)
    assert after["mutexdash"] != before["mutexdash"]
    assert {**after, "mutexdash": 0} == {**before, "mutexdash": 0}
    assert kept_ports(tmp_path) == after, "though that of before is free now"


@pytest.mark.parametrize("said", ["", "[]", "{", '{"etcd": "x"}', '{"etcd": 99999999}', "null"])
def test_an_unreadable_file_is_rewritten(tmp_path: Path, said: str) -> None:
    (tmp_path / "ports.json").write_text(said)
    found = kept_ports(tmp_path)
    assert all(0 < port < 65536 for port in found.values())
    usual = {name: port for name, port in DEFAULT_PORTS.items() if is_free(port, lingering=True)}
    if said != '{"etcd": 99999999}':
        assert found.items() >= usual.items()
    assert json.loads((tmp_path / "ports.json").read_text()) == found
